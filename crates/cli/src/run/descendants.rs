//! What a command has started, in whatever process group and session it is: `timeout`, `setsid` and every shell with
//! job control make some of their own.
//!
//! Only Linux shows them to others, and only there somebody can be the heir of those whose parents have ended.

use std::collections::HashMap;
use std::fs;

use rustix::process::{Pid, Signal, getpid, kill_process};

use super::group::Group;

/// Makes this process the parent of all its descendants whose own parents have ended.
pub(super) fn adopt() {
    #[cfg(target_os = "linux")]
    {
        // Where this is not possible, the process group is ended, as on other systems.
        let _ = rustix::process::set_child_subreaper(Some(getpid()));
    }
}

/// A process that lives.
struct Process {
    pid: Pid,
    group: i32,
}

/// The descendants of this process that live outside of a group, without one of them: what is in the group is reached by
/// signals to the group.
pub(super) fn outside(group: Option<Group>, without: Option<Pid>) -> Vec<Pid> {
    let mut children: HashMap<i32, Vec<Process>> = HashMap::new();
    for (parent, process) in living() {
        children.entry(parent).or_default().push(process);
    }
    let mut found = Vec::new();
    let mut parents = vec![getpid()];
    while let Some(parent) = parents.pop() {
        let of_parent = children.remove(&parent.as_raw_nonzero().get());
        for process in of_parent.into_iter().flatten() {
            parents.push(process.pid);
            let is_in_group = group.is_some_and(|group| group.number() == process.group);
            if !is_in_group && without != Some(process.pid) {
                found.push(process.pid);
            }
        }
    }
    found
}

/// Sends a signal to all of them. Those that have ended meanwhile are nobody's loss.
pub(super) fn send(processes: &[Pid], signal: Signal) {
    for process in processes {
        let _ = kill_process(*process, signal);
    }
}

/// All processes that this one can see, with their parents. Bodies do not count.
fn living() -> Vec<(i32, Process)> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let pids = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid: i32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (parent, group) = read(&stat)?;
        let pid = Pid::from_raw(pid)?;
        Some((parent, Process { pid, group }))
    })
    .collect()
}

/// The parent and the group of a process that lives, from its line in `/proc`. The name in it may have anything in it.
fn read(stat: &str) -> Option<(i32, i32)> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut words = rest.split_whitespace();
    let is_alive = !matches!(words.next()?, "Z" | "X");
    let parent = words.next()?.parse().ok()?;
    let group = words.next()?.parse().ok()?;
    is_alive.then_some((parent, group))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_do_not_confuse() {
        assert_eq!(read("7 (a) S 1 (x) R 3 4 5"), Some((3, 4)));
        assert_eq!(read("7 (sleep) S 3 4 5 0"), Some((3, 4)));
        assert_eq!(read("7 (sleep) Z 3 4 5 0"), None);
        assert_eq!(read("nothing"), None);
    }
}
