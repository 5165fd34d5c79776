//! The CPU time and memory of processes, as the kernel reports them in /proc.

use std::time::Duration;

/// The CPU time of a process with all its threads, including those that have ended.
pub(crate) fn cpu_time(pid: u32) -> Result<Duration, String> {
    let stat = read(pid, "stat")?;
    // The name may contain spaces and parentheses; the state and the numbers follow the last parenthesis.
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let ticks = |field: usize| fields.get(field).and_then(|text| text.parse::<u64>().ok());
    let (user, system) = ticks(11).zip(ticks(12)).ok_or("no CPU times in /proc")?;
    let per_second = rustix::param::clock_ticks_per_second();
    Ok(Duration::from_secs_f64(
        (user + system) as f64 / per_second as f64,
    ))
}

/// The resident memory of a process, in bytes.
pub(crate) fn resident_bytes(pid: u32) -> Result<u64, String> {
    let status = read(pid, "status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next());
    let kib: u64 = kib
        .and_then(|kib| kib.parse().ok())
        .ok_or("no VmRSS in /proc")?;
    Ok(kib * 1024)
}

fn read(pid: u32, file: &str) -> Result<String, String> {
    let path = format!("/proc/{pid}/{file}");
    std::fs::read_to_string(&path).map_err(|error| format!("cannot read {path}: {error}"))
}
