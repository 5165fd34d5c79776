//! Processes that are not children of the test, by `/proc`.

use std::fs;

use forrst_testkit::until;

/// The fields of `/proc/PID/stat` after the name, which may contain anything: the state, the parent, the group, …
fn stat(pid: i32) -> Option<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    Some(rest.split_whitespace().map(str::to_owned).collect())
}

/// A zombie is not alive.
pub(crate) fn is_alive(pid: i32) -> bool {
    stat(pid).is_some_and(|stat| !matches!(stat[0].as_str(), "Z" | "X"))
}

pub(crate) fn is_stopped(pid: i32) -> bool {
    stat(pid).is_some_and(|stat| stat[0] == "T")
}

pub(crate) fn parent_of(pid: i32) -> i32 {
    stat(pid).expect("it is there")[1].parse().unwrap()
}

pub(crate) fn group_of(pid: i32) -> i32 {
    stat(pid).expect("it is there")[2].parse().unwrap()
}

#[track_caller]
pub(crate) fn until_dead(pid: i32) {
    until("the process is dead", || !is_alive(pid));
}
