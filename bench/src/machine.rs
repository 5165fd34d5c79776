//! The machine on which the run takes place, for the head of the report.

use serde::Serialize;

#[derive(Debug, Serialize)]
pub(crate) struct Machine {
    cores: usize,
    cpu: String,
    kernel: String,
    memory_gib: u64,
    /// The load average of the last minute when the run began: other load on the machine distorts the results.
    load: String,
}

impl Machine {
    pub(crate) fn detect() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let value = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name));
            let value = line.and_then(|line| line.split_once(':'));
            value
                .map_or("unknown", |(_, value)| value.trim())
                .to_owned()
        };
        let memory = value(&read("/proc/meminfo"), "MemTotal");
        let memory = memory
            .split(' ')
            .next()
            .and_then(|kib| kib.parse::<u64>().ok());
        Self {
            cores: std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
            cpu: value(&read("/proc/cpuinfo"), "model name"),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            memory_gib: memory.unwrap_or_default() / (1024 * 1024),
            load: read("/proc/loadavg")
                .split(' ')
                .next()
                .unwrap_or_default()
                .to_owned(),
        }
    }

    pub(crate) fn text(&self) -> String {
        let Self {
            cores,
            cpu,
            kernel,
            memory_gib,
            load,
        } = self;
        format!(
            "{cores} cores ({cpu}), {memory_gib} GiB, Linux {kernel}; load {load} before the run"
        )
    }
}
