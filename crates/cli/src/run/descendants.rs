//! What a command has started, in whatever process group and session it is: `timeout`, `setsid` and every shell with
//! job control make some of their own.
//!
//! Only Linux shows them to others, and only there somebody can be the heir of those whose parents have ended.

use std::collections::HashMap;
use std::fs;
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, getpid, kill_process};

use super::group::{Group, report_denied};

/// So often it is looked whether what was killed has ended: what hangs in the kernel is not waited for without an end.
const LOOKS: usize = 200;

/// Makes this process the parent of all its descendants whose own parents have ended.
pub(super) fn adopt() {
    #[cfg(target_os = "linux")]
    {
        // Where this is not possible, the process group is ended, as on other systems.
        let _ = rustix::process::set_child_subreaper(Some(getpid()));
    }
}

/// A process, or its body.
struct Process {
    pid: Pid,
    parent: i32,
    group: i32,
    is_alive: bool,
}

/// The descendants of this process that live outside of a group, without one of them: what is in the group is reached by
/// signals to the group.
pub(super) fn outside(group: Option<Group>, without: Option<Pid>) -> Vec<Pid> {
    let found = look(group, without);
    // Whose parent ended in that moment was seen with a parent that was not, and is at its heir's by now.
    if found.is_empty() {
        look(group, without)
    } else {
        found
    }
}

/// Kills all descendants of this process, and returns when none is left, or none that can be killed.
pub(super) fn kill_all() {
    for _ in 0..LOOKS {
        let left = outside(None, None);
        if left.is_empty() {
            return;
        }
        send(&left, Signal::KILL);
        thread::sleep(Duration::from_millis(5));
    }
}

fn look(group: Option<Group>, without: Option<Pid>) -> Vec<Pid> {
    let mut children: HashMap<i32, Vec<Process>> = HashMap::new();
    for process in processes() {
        children.entry(process.parent).or_default().push(process);
    }
    let mut found = Vec::new();
    let mut parents = vec![getpid()];
    while let Some(parent) = parents.pop() {
        let of_parent = children.remove(&parent.as_raw_nonzero().get());
        for process in of_parent.into_iter().flatten() {
            parents.push(process.pid);
            let is_in_group = group.is_some_and(|group| group.number() == process.group);
            if process.is_alive && !is_in_group && without != Some(process.pid) {
                found.push(process.pid);
            }
        }
    }
    found
}

/// Sends a signal to all of them. Some may have ended meanwhile.
pub(super) fn send(processes: &[Pid], signal: Signal) {
    for process in processes {
        if kill_process(*process, signal) == Err(Errno::PERM) {
            report_denied(*process, signal);
        }
    }
}

/// All processes that this one can see.
fn processes() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let pids = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid: i32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        read(Pid::from_raw(pid)?, &stat)
    })
    .collect()
}

/// A process from its line in `/proc`. The name in it may have anything in it.
fn read(pid: Pid, stat: &str) -> Option<Process> {
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
    fn names_do_not_confuse() {
        let read = |stat| read(getpid(), stat).map(|one| (one.parent, one.group, one.is_alive));
        assert_eq!(read("7 (a) S 1 (x) R 3 4 5"), Some((3, 4, true)));
        assert_eq!(read("7 (sleep) S 3 4 5 0"), Some((3, 4, true)));
        assert_eq!(read("7 (sleep) Z 3 4 5 0"), Some((3, 4, false)));
        assert_eq!(read("nothing"), None);
    }
}
