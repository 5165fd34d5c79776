//! `forrst run` itself is stopped, ended or killed, or its guard is.

use forrst_testkit::until;
use rustix::process::{Pid, Signal, kill_process};

use super::job::{Job, PATIENT, STUBBORN, status, take_over};
use super::process::{is_alive, is_stopped, parent_of, until_dead};
use crate::commands::forrst::Forrst;
use crate::commands::server::Server;

fn kill(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

#[test]
fn a_command_is_killed_when_forrst_run_is_stopped_for_longer_than_the_lease() {
    let server = Server::start();
    let job = Job::start(&server, &["--ttl", "3s"], STUBBORN);
    let child = job.pid("pid");
    job.signal(Signal::STOP);
    until("it is stopped", || is_stopped(job.parent()));
    let granted_at = take_over(&server);
    assert!(
        !is_alive(child),
        "it lives while another client holds the lock"
    );
    assert!(job.last_beat() < granted_at);
    assert_eq!(
        job.file("signals"),
        "TERM\n",
        "it got SIGTERM before SIGKILL"
    );
    let holder = status(&server)["owner"].clone();
    job.signal(Signal::CONT);
    job.wait().check(76).check_errors(&["lost"]);
    assert_eq!(
        status(&server)["owner"],
        holder,
        "the next holder is not disturbed"
    );
}

#[test]
fn a_command_is_killed_when_forrst_run_is_killed() {
    let server = Server::start();
    let script =
        format!("(trap '' TERM; echo $BASHPID > grandchild; exec sleep 1000) & {STUBBORN}");
    let job = Job::start(&server, &["--ttl", "4s"], &script);
    let (child, grandchild) = (job.pid("pid"), job.pid("grandchild"));
    let guard = parent_of(child);
    job.signal(Signal::KILL);
    for pid in [child, grandchild, guard] {
        until_dead(pid);
    }
    assert_eq!(job.wait().code, None);
    until("the lease ends by itself", || {
        status(&server)["locked"] == false
    });
}

#[test]
fn after_sigterm_forrst_run_waits_for_its_command_and_releases() {
    let server = Server::start();
    let job = Job::start(&server, &["--ttl", "1h"], PATIENT);
    job.pid("pid");
    job.signal(Signal::TERM);
    job.wait().check(5);
    assert_eq!(status(&server)["locked"], false);
}

#[test]
fn a_signal_during_the_wait_leaves_the_queue() {
    let server = Server::start();
    Forrst::new(
        &server,
        &["lock", "acquire", "k", "--ttl", "1h", "--owner", "other"],
    )
    .run()
    .check(0);
    for signal in [Signal::TERM, Signal::INT] {
        let job = Job::start(&server, &["--block", "1m"], "echo started > pid");
        until("it handles signals", || handles_signals(job.parent()));
        job.signal(signal);
        let (ended, folder) = job.wait_and_keep();
        ended.check_signal(signal);
        assert!(!folder.path().join("pid").exists());
    }
    Forrst::new(&server, &["lock", "release", "k", "--owner", "other"])
        .run()
        .check(0);
    assert_eq!(
        status(&server)["locked"],
        false,
        "it was not granted to a client that has left the queue"
    );
}

/// Whether all handlers are installed, of which that of SIGCONT is the last. Before that, a signal would just end the process.
fn handles_signals(pid: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    let wanted = 1 << (Signal::CONT.as_raw() - 1);
    caught.is_some_and(|caught| caught & wanted != 0)
}

#[test]
fn when_the_guard_is_killed_the_command_is_killed_and_the_lock_released() {
    let server = Server::start();
    let job = Job::start(&server, &["--ttl", "1h"], STUBBORN);
    let child = job.pid("pid");
    let guard = parent_of(child);
    kill(guard, Signal::TERM);
    kill(guard, Signal::INT);
    assert!(
        is_alive(guard),
        "it ignores signals that are meant for `forrst run`"
    );
    kill(guard, Signal::KILL);
    until_dead(child);
    job.wait().check(70).check_errors(&["guard"]);
    assert_eq!(status(&server)["locked"], false);
}

#[test]
fn when_the_guard_is_killed_processes_in_other_groups_are_killed_too() {
    let server = Server::start();
    let script = format!("setsid bash -c 'echo $$ > detached; exec sleep 1000' & {STUBBORN}");
    let job = Job::start(&server, &["--ttl", "1h"], &script);
    let (child, detached) = (job.pid("pid"), job.pid("detached"));
    kill(parent_of(child), Signal::KILL);
    until_dead(child);
    until_dead(detached);
    job.wait().check(70);
}

/// As after `killall -KILL forrst`.
#[test]
fn a_command_dies_when_both_its_watchers_are_killed() {
    let server = Server::start();
    let job = Job::start(&server, &["--ttl", "1h"], STUBBORN);
    let child = job.pid("pid");
    let guard = parent_of(child);
    job.signal(Signal::STOP);
    until("it is stopped", || is_stopped(job.parent()));
    kill(guard, Signal::KILL);
    until_dead(child);
    job.signal(Signal::KILL);
    assert_eq!(job.wait().code, None);
}

/// `forrst run` kills the command itself then.
#[test]
fn a_command_is_killed_even_if_its_guard_is_stopped() {
    let mut server = Server::durable();
    let job = Job::start(&server, &["--ttl", "4s"], STUBBORN);
    let child = job.pid("pid");
    let guard = parent_of(child);
    kill(guard, Signal::STOP);
    server.restart_elsewhere();
    let granted_at = take_over(&server);
    assert!(!is_alive(child));
    assert!(job.last_beat() < granted_at);
    kill(guard, Signal::CONT);
    job.wait().check(76);
}
