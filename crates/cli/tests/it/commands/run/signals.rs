//! Signals to `forrst run`, which it forwards to its command.

use forrst_testkit::until;
use rustix::process::{Pid, Signal, kill_process};

use super::job::{Job, PATIENT, status};
use super::process::{is_alive, is_stopped};
use crate::commands::server::Server;

#[test]
fn signals_are_forwarded() {
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
fn forrst_run_ends_by_a_forwarded_signal_that_ends_the_command() {
    let server = Server::start();
    let job = Job::start(&server, &["--ttl", "1h"], "echo $$ > pid; exec sleep 1000");
    job.pid("pid");
    job.signal(Signal::HUP);
    job.wait().check_signal(Signal::HUP);
}

/// The task that forwards signals also sends renewals to the guard.
#[test]
fn a_flood_of_signals_does_not_delay_renewals_for_the_guard() {
    let server = Server::start();
    let script = "trap '' USR1; echo $$ > pid; until [ -e stop ]; do sleep 0.02; done; exit 3";
    let job = Job::start(&server, &["--ttl", "3s"], script);
    let child = job.pid("pid");
    let expiry = || {
        let status = status(&server);
        let time = status["expires_at"].as_str().map(str::to_owned);
        time.map(|time| humantime::parse_rfc3339(&time).unwrap())
    };
    let first = expiry().unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(std::sync::atomic::Ordering::Relaxed) && is_alive(child) {
                job.signal(Signal::USR1);
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        });
        until("it is renewed for longer than its ttl", || {
            let gained = expiry().and_then(|now| now.duration_since(first).ok());
            !is_alive(child) || gained.is_some_and(|gained| gained.as_secs() >= 5)
        });
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert!(is_alive(child), "the guard ended it");
    job.create("stop");
    job.wait().check(3);
}

/// It is stopped from outside, so `forrst run` does not know of it.
#[test]
fn a_stopped_command_gets_the_signal_to_end() {
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
fn forrst_run_and_its_command_stop_and_continue_together() {
    let server = Server::start();
    let job = Job::start(&server, &["--ttl", "1h"], PATIENT);
    let child = job.pid("pid");
    for _ in 0..2 {
        job.signal(Signal::TSTP);
        until("the command stops", || is_stopped(child));
        until("and so does forrst run", || is_stopped(job.parent()));
        job.signal(Signal::CONT);
        until("both continue", || {
            !is_stopped(child) && !is_stopped(job.parent())
        });
    }
    job.create("stop");
    job.wait().check(3);
}
