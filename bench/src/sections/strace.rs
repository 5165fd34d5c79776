//! Counts the system calls of a process with strace, if that is installed and permitted.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

pub(super) struct Trace {
    strace: Child,
    output: PathBuf,
    _folder: TempDir,
}

/// Begins to count the calls of all threads; `None` if strace is not installed or not permitted.
pub(super) fn attach(pid: u32) -> Result<Option<Trace>, String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let output = folder.path().join("calls");
    let strace = Command::new("strace")
        .args(["-c", "-f", "-p", &pid.to_string(), "-o"])
        .arg(&output)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut strace) = strace else {
        return Ok(None);
    };
    let started = Instant::now();
    while !is_traced(pid) {
        let has_ended = strace.try_wait().map_err(|error| error.to_string())?;
        if has_ended.is_some() || started.elapsed() > Duration::from_secs(10) {
            let _ = strace.kill();
            let _ = strace.wait();
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(Some(Trace {
        strace,
        output,
        _folder: folder,
    }))
}

fn is_traced(pid: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
    let mut threads = threads.into_iter().flatten().flatten();
    threads.all(|thread| {
        let status = std::fs::read_to_string(thread.path().join("status")).unwrap_or_default();
        let tracer = status
            .lines()
            .find_map(|line| line.strip_prefix("TracerPid:"));
        tracer.is_some_and(|tracer| tracer.trim() != "0")
    })
}

impl Trace {
    /// Stops, and returns the number of calls.
    pub(super) fn finish(mut self) -> Result<u64, String> {
        let stopped = kill_process(Pid::from_child(&self.strace), Signal::INT);
        stopped.map_err(|error| format!("strace does not end: {error}"))?;
        self.strace.wait().map_err(|error| error.to_string())?;
        let table = std::fs::read_to_string(&self.output).map_err(|error| error.to_string())?;
        let total = table.lines().find(|line| line.ends_with("total"));
        let calls = total.and_then(|line| line.split_whitespace().nth(3));
        let calls = calls.and_then(|calls| calls.parse().ok());
        calls.ok_or_else(|| format!("strace printed no total: {table:?}"))
    }
}
