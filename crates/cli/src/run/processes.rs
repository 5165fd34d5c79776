//! The processes of a command: its process group, and whatever it has started outside of it.
//!
//! `timeout`, `setsid` and every shell with job control make process groups and sessions of their own, which a signal to the
//! group does not reach. Only Linux lists the processes of others (in `/proc`), and only there a process can adopt orphans; on
//! other systems the process group has to do.

use std::collections::HashMap;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, getpid, kill_process, kill_process_group, test_kill_process_group,
};

use crate::output::print_error;

/// The process group of a command.
#[derive(Debug, Clone, Copy)]
pub(super) struct ProcessGroup(Pid);

impl ProcessGroup {
    /// The group that this process leads.
    pub(super) fn led_by(leader: Pid) -> Self {
        Self(leader)
    }

    /// The group with this id. `kill(2)` takes 0 and 1 for our own group and for every process.
    pub(super) fn from_id(id: i32) -> Option<Self> {
        let id = Some(id).filter(|id| *id > 1);
        id.and_then(Pid::from_raw).map(Self)
    }

    pub(super) fn pid(self) -> Pid {
        self.0
    }

    pub(super) fn id(self) -> i32 {
        self.0.as_raw_nonzero().get()
    }

    /// Sends a signal. A number that is not a signal is ignored.
    pub(super) fn signal(self, number: i32) {
        if let Some(signal) = Signal::from_named_raw(number) {
            self.send(signal);
        }
    }

    /// Sends SIGTERM, and SIGCONT, because a stopped process cannot handle it.
    pub(super) fn terminate(self) {
        self.send(Signal::TERM);
        self.send(Signal::CONT);
    }

    pub(super) fn kill(self) {
        self.send(Signal::KILL);
    }

    /// Whether any process is left in it, including those that we may not signal.
    pub(super) fn exists(self) -> bool {
        matches!(test_kill_process_group(self.0), Ok(()) | Err(Errno::PERM))
    }

    fn send(self, signal: Signal) {
        // A group that has ended already is no failure: most signals are sent to end it.
        if kill_process_group(self.0, signal) == Err(Errno::PERM) {
            report_denied(self.0, signal);
        }
    }
}

/// Makes this process the parent of all its descendants whose own parents have ended.
pub(super) fn adopt_orphans() {
    #[cfg(target_os = "linux")]
    {
        // If this fails, only the process group is ended, as on other systems.
        let _ = rustix::process::set_child_subreaper(Some(getpid()));
    }
}

/// The living descendants of this process that are not in `group`, except one: a signal to the group reaches the others.
pub(super) fn descendants_outside(group: Option<ProcessGroup>, except: Option<Pid>) -> Vec<Pid> {
    let found = scan(group, except);
    // A process whose parent ends during a scan is listed with that parent, and missed. By the next scan it has been adopted.
    if found.is_empty() {
        scan(group, except)
    } else {
        found
    }
}

/// Kills all descendants of this process. Returns when none is left, or after a second: a process that hangs in the kernel
/// cannot be killed.
pub(super) fn kill_descendants() {
    const ROUNDS: usize = 200;
    for _ in 0..ROUNDS {
        let left = descendants_outside(None, None);
        if left.is_empty() {
            return;
        }
        signal_each(&left, Signal::KILL);
        thread::sleep(Duration::from_millis(5));
    }
}

/// Sends a signal to each process. Some may have ended meanwhile.
pub(super) fn signal_each(processes: &[Pid], signal: Signal) {
    for process in processes {
        if kill_process(*process, signal) == Err(Errno::PERM) {
            report_denied(*process, signal);
        }
    }
}

/// Warns once that a process cannot be signalled, because it may run on without the lock.
fn report_denied(process: Pid, signal: Signal) {
    static IS_REPORTED: AtomicBool = AtomicBool::new(false);
    if IS_REPORTED.swap(true, Ordering::Relaxed) {
        return;
    }
    print_error(&format!(
        "warning: forrst may not signal the command: process {process} runs as another user, as by sudo, and did not get \
         signal {number} (Operation not permitted). It is not ended when the lock is lost: run forrst as that user\n",
        process = process.as_raw_nonzero(),
        number = signal.as_raw(),
    ));
}

/// A process as `/proc` lists it; a zombie is not alive.
struct Process {
    pid: Pid,
    parent: i32,
    group: i32,
    is_alive: bool,
}

fn scan(group: Option<ProcessGroup>, except: Option<Pid>) -> Vec<Pid> {
    let mut children: HashMap<i32, Vec<Process>> = HashMap::new();
    for process in all_processes() {
        children.entry(process.parent).or_default().push(process);
    }
    let mut found = Vec::new();
    let mut parents = vec![getpid()];
    while let Some(parent) = parents.pop() {
        let of_parent = children.remove(&parent.as_raw_nonzero().get());
        for process in of_parent.into_iter().flatten() {
            parents.push(process.pid);
            let is_in_group = group.is_some_and(|group| group.id() == process.group);
            if process.is_alive && !is_in_group && except != Some(process.pid) {
                found.push(process.pid);
            }
        }
    }
    found
}

/// All processes that this one can see.
fn all_processes() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let pids = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid: i32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        parse_stat(Pid::from_raw(pid)?, &stat)
    })
    .collect()
}

/// Reads `/proc/PID/stat`. The name of the program, in parentheses, may contain anything.
fn parse_stat(pid: Pid, stat: &str) -> Option<Process> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut words = rest.split_whitespace();
    Some(Process {
        pid,
        is_alive: !matches!(words.next()?, "Z" | "X"),
        parent: words.next()?.parse().ok()?,
        group: words.next()?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_name_with_parentheses_and_blanks_is_skipped() {
        let parse =
            |stat| parse_stat(getpid(), stat).map(|one| (one.parent, one.group, one.is_alive));
        assert_eq!(parse("7 (a) S 1 (x) R 3 4 5"), Some((3, 4, true)));
        assert_eq!(parse("7 (sleep) S 3 4 5 0"), Some((3, 4, true)));
        assert_eq!(parse("7 (sleep) Z 3 4 5 0"), Some((3, 4, false)));
        assert_eq!(parse("nothing"), None);
    }
}
