//! Signals reach the command.

use rustix::process::{Pid, Signal, kill_process};

use super::job::{Job, PATIENT, status};
use super::process::is_stopped;
use crate::forrst::until;
use crate::server::Server;

#[test]
fn every_signal_that_a_command_may_want_is_passed_on() {
    let server = Server::start();
    let script = "for name in INT HUP QUIT USR1 USR2; do trap \"echo $name >> signals\" $name; done
        trap 'exit 9' TERM; echo $$ > pid; while :; do sleep 0.02; done";
    let job = Job::start(&server, &["--ttl", "1h"], script);
    job.pid("pid");
    let mut expected = String::new();
    for (signal, name) in [
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
        (Signal::HUP, "HUP"),
        (Signal::QUIT, "QUIT"),
        (Signal::INT, "INT"),
    ] {
        job.signal(signal);
        expected.push_str(name);
        expected.push('\n');
        until(&format!("{name} has arrived"), || {
            job.file("signals") == expected
        });
    }
    job.signal(Signal::TERM);
    job.wait().check(9);
    assert_eq!(status(&server)["locked"], false);
}

#[test]
fn a_command_that_a_passed_on_signal_ends_is_told_so() {
    let server = Server::start();
    let job = Job::start(&server, &["--ttl", "1h"], "echo $$ > pid; exec sleep 1000");
    job.pid("pid");
    job.signal(Signal::HUP);
    job.wait().check(129);
}

/// It is stopped by somebody else, so `forrst run` does not know of it.
#[test]
fn a_stopped_command_hears_that_it_is_to_end() {
    let server = Server::start();
    for (signal, name, code) in [
        (Signal::TERM, "TERM", 5),
        (Signal::HUP, "HUP", 6),
        (Signal::INT, "INT", 7),
        (Signal::QUIT, "QUIT", 8),
    ] {
        let script =
            format!("trap 'exit {code}' {name}; echo $$ > pid; while :; do sleep 0.02; done");
        let job = Job::start(&server, &["--ttl", "1h"], &script);
        let child = job.pid("pid");
        kill_process(Pid::from_raw(child).unwrap(), Signal::STOP).unwrap();
        until("the command stops", || is_stopped(child));
        job.signal(signal);
        job.wait().check(code);
    }
}

#[test]
fn stopped_and_continued_both_stop_and_go_on() {
    let server = Server::start();
    let job = Job::start(&server, &["--ttl", "1h"], PATIENT);
    let child = job.pid("pid");
    for _ in 0..2 {
        job.signal(Signal::TSTP);
        until("the command stops", || is_stopped(child));
        until("and so does what runs it", || is_stopped(job.parent()));
        job.signal(Signal::CONT);
        until("both go on", || {
            !is_stopped(child) && !is_stopped(job.parent())
        });
    }
    job.tell("stop");
    job.wait().check(3);
}
