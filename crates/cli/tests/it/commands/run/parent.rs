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
fn stopped_for_longer_than_the_lease_its_command_is_dead_when_the_next_holder_comes() {
    let server = Server::start();
    let job = Job::start(&server, &["--ttl", "3s"], STUBBORN);
    let child = job.pid("pid");
    job.signal(Signal::STOP);
    until("it is stopped", || is_stopped(job.parent()));
    let granted_at = take_over(&server);
    assert!(
        !is_alive(child),
        "it lives while somebody else holds the lock"
    );
    assert!(job.last_beat() < granted_at);
    assert_eq!(job.file("signals"), "TERM\n", "it was asked first");
    let holder = status(&server)["owner"].clone();
    job.signal(Signal::CONT);
    job.wait().check(76).complains(&["lost"]);
    assert_eq!(
        status(&server)["owner"],
        holder,
        "the next holder is not disturbed"
    );
}

#[test]
fn killed_it_takes_its_command_along() {
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
fn ended_gently_it_waits_for_its_command_and_releases() {
    let server = Server::start();
    let job = Job::start(&server, &["--ttl", "1h"], PATIENT);
    job.pid("pid");
    job.signal(Signal::TERM);
    job.wait().check(5);
    assert_eq!(status(&server)["locked"], false);
}

#[test]
fn ended_while_it_waits_it_leaves_the_line() {
    let server = Server::start();
    Forrst::new(
        &server,
        &["lock", "acquire", "k", "--ttl", "1h", "--owner", "other"],
    )
    .run()
    .check(0);
    for signal in [Signal::TERM, Signal::INT] {
        let job = Job::start(&server, &["--block", "1m"], "echo started > pid");
        until("it minds signals", || minds_signals(job.parent()));
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
        "it was not granted to who has left"
    );
}

/// Before that, a signal would end it as it ends every program: SIGUSR2 is the last that it asks for, but for two.
fn minds_signals(pid: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    let wanted = 1 << (Signal::CONT.as_raw() - 1);
    caught.is_some_and(|caught| caught & wanted != 0)
}

#[test]
fn without_its_guard_the_command_is_killed_and_the_lock_released() {
    let server = Server::start();
    let job = Job::start(&server, &["--ttl", "1h"], STUBBORN);
    let child = job.pid("pid");
    let guard = parent_of(child);
    kill(guard, Signal::TERM);
    kill(guard, Signal::INT);
    assert!(is_alive(guard), "what is meant for others does not harm it");
    kill(guard, Signal::KILL);
    until_dead(child);
    job.wait().check(70).complains(&["guard"]);
    assert_eq!(status(&server)["locked"], false);
}

#[test]
fn without_its_guard_what_has_a_group_of_its_own_is_killed_too() {
    let server = Server::start();
    let script = format!("setsid bash -c 'echo $$ > detached; exec sleep 1000' & {STUBBORN}");
    let job = Job::start(&server, &["--ttl", "1h"], &script);
    let (child, detached) = (job.pid("pid"), job.pid("detached"));
    kill(parent_of(child), Signal::KILL);
    until_dead(child);
    until_dead(detached);
    job.wait().check(70);
}

/// As when somebody kills every `forrst` there is: then nobody is left to see it.
#[test]
fn with_nobody_left_to_watch_it_the_command_dies_too() {
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

/// The guard is not needed for that, as long as one of the two is awake.
#[test]
fn a_stopped_guard_does_not_save_the_command() {
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
