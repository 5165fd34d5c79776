//! Commands that keep their lock until they end.

use forrst_testkit::until;
use rustix::process::{Pid, Signal, kill_process};

use super::job::{Job, PATIENT, status};
use super::process::{group_of, is_alive, parent_of};
use crate::commands::forrst::Forrst;
use crate::commands::server::Server;

#[test]
fn the_command_has_its_lock_in_the_environment() {
    let server = Server::start();
    let script = "echo \"$FORRST_LOCK_KEY $FORRST_LOCK_OWNER $FORRST_LOCK_FENCE\"";
    let run = [
        "run", "--key", "k", "--owner", "me", "--", "sh", "-c", script,
    ];
    let first = Forrst::new(&server, &run).run().check(0).output;
    let second = Forrst::new(&server, &run).run().check(0).output;
    for output in [&first, &second] {
        assert!(output.starts_with("lock:k me 0"), "{output}");
    }
    assert!(first < second, "fences grow: {first}{second}");
    let shared = [
        "run",
        "--key",
        "k",
        "--function",
        "demo.echo",
        "--",
        "sh",
        "-c",
        script,
    ];
    let output = Forrst::new(&server, &shared).run().check(0).output;
    assert!(output.starts_with("lock:demo.echo:k "), "{output}");
}

#[test]
fn the_lock_is_renewed_while_the_command_runs_and_then_released() {
    let server = Server::start();
    let job = Job::start(&server, &["--ttl", "3s"], PATIENT);
    let child = job.pid("pid");
    let first = status(&server)["expires_at"].as_str().unwrap().to_owned();
    until("it was renewed several times", || {
        let now = status(&server);
        let [first, now] = [first.as_str(), now["expires_at"].as_str().unwrap()]
            .map(|time| humantime::parse_rfc3339(time).unwrap());
        now.duration_since(first)
            .is_ok_and(|gained| gained.as_secs() >= 2)
    });
    assert!(is_alive(child));
    assert_eq!(group_of(child), child, "it has a group of its own");
    assert_ne!(
        group_of(parent_of(child)),
        group_of(job.parent()),
        "and so does the guard"
    );
    job.create("stop");
    let ended = job.wait().check(3);
    assert_eq!(ended.errors, "");
    assert_eq!(status(&server)["locked"], false);
}

#[test]
fn the_exit_code_is_that_of_the_command() {
    let server = Server::start();
    for (script, code) in [("exit 0", 0), ("exit 1", 1), ("exit 75", 75)] {
        let run = ["run", "--key", "k", "--", "sh", "-c", script];
        Forrst::new(&server, &run).run().check(code);
        assert_eq!(status(&server)["locked"], false, "{script}");
    }
}

#[test]
fn forrst_run_ends_by_the_signal_that_ended_its_command() {
    let server = Server::start();
    for (name, signal) in [
        ("TERM", Signal::TERM),
        ("KILL", Signal::KILL),
        ("INT", Signal::INT),
        ("SEGV", Signal::SEGV),
        ("USR1", Signal::USR1),
        ("PIPE", Signal::PIPE),
    ] {
        let script = format!("kill -{name} $$");
        let run = ["run", "--key", "k", "--", "sh", "-c", &script];
        let ended = Forrst::new(&server, &run).run().check_signal(signal);
        assert_eq!(ended.errors, "", "{name}");
        assert_eq!(status(&server)["locked"], false, "{name}");
    }
    // A shell shows the same as without `forrst run`.
    let forrst = env!("CARGO_BIN_EXE_forrst");
    let script = format!("{forrst} run --key k -- sh -c 'kill -TERM $$'; echo $?");
    let shell = std::process::Command::new("bash")
        .args(["-c", &script])
        .env("FORRST_URL", server.url())
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&shell.stdout), "143\n");
}

#[test]
fn a_command_that_cannot_be_run_has_exit_code_126_or_127() {
    let server = Server::start();
    for (program, code) in [("./no/such/program", 127), ("/etc/passwd", 126)] {
        let ended = Forrst::new(&server, &["run", "--key", "k", "--", program])
            .run()
            .check(code);
        ended.check_errors(&[program]);
        assert_eq!(status(&server)["locked"], false, "{program}");
    }
}

#[test]
fn the_command_has_the_standard_streams() {
    let server = Server::start();
    let script = "cat; echo oops >&2";
    let run = Forrst::new(&server, &["run", "--key", "k", "--", "sh", "-c", script]);
    let ended = run.run_with_input("from the pipe\n").check(0);
    assert_eq!(ended.output, "from the pipe\n");
    assert_eq!(ended.errors, "oops\n");
}

#[test]
fn flags_after_the_command_belong_to_it() {
    let server = Server::start();
    let run = ["run", "--key", "k", "echo", "--ttl", "--help", "--", "-n"];
    let output = Forrst::new(&server, &run).run().check(0).output;
    assert_eq!(output, "--ttl --help -- -n\n");
}

#[test]
fn without_the_lock_the_command_is_not_started() {
    let server = Server::start();
    Forrst::new(&server, &["lock", "acquire", "k", "--ttl", "1h"])
        .run()
        .check(0);
    for flags in [&[][..], &["--block", "300ms"]] {
        let job = Job::start(&server, flags, "echo started > pid");
        let (ended, folder) = job.wait_and_keep();
        ended.check(75).check_errors(&["forrst lock status lock:k"]);
        assert!(!folder.path().join("pid").exists());
    }
    let unreachable = [
        "run",
        "--key",
        "k",
        "--url",
        "http://127.0.0.1:1",
        "--",
        "echo",
        "started",
    ];
    let ended = Forrst::alone(&unreachable).run().check(69);
    assert_eq!(ended.output, "");
}

#[test]
fn a_wait_may_be_longer_than_the_ttl() {
    let server = Server::start();
    let take = ["lock", "acquire", "k", "--ttl", "4s", "--owner", "other"];
    Forrst::new(&server, &take).run().check(0);
    let job = Job::start(
        &server,
        &["--ttl", "3s", "--block", "1m"],
        "echo started; exit 4",
    );
    let ended = job.wait().check(4);
    assert_eq!(ended.output, "started\n");
    assert_eq!(ended.errors, "");
}

/// Otherwise it would run on without the lock.
#[test]
fn leftover_processes_are_ended_before_the_release() {
    let server = Server::start();
    let script = "(trap '' TERM HUP; echo $BASHPID > left; exec sleep 1000) & until [ -s left ]; do sleep 0.01; done; exit 6";
    let (ended, folder) = Job::start(&server, &[], script).wait_and_keep();
    ended.check(6);
    let left = std::fs::read_to_string(folder.path().join("left")).unwrap();
    assert!(!is_alive(left.trim().parse().unwrap()));
    assert_eq!(status(&server)["locked"], false);
    // A filter on the output has time to write the rest.
    let script = "exec > >(sleep 0.2; cat); echo the rest";
    let ended = Job::start(&server, &[], script).wait().check(0);
    assert_eq!(ended.output, "the rest\n");
}

/// A service that is started under a lock has to run afterwards.
#[test]
fn a_daemon_outlives_a_command_that_ends_by_itself() {
    let server = Server::start();
    let script = "setsid bash -c 'echo $$ > daemon; exec sleep 1000' >/dev/null 2>&1 </dev/null &
        until [ -s daemon ]; do sleep 0.01; done; exit 6";
    let (ended, folder) = Job::start(&server, &[], script).wait_and_keep();
    ended.check(6);
    let daemon = std::fs::read_to_string(folder.path().join("daemon")).unwrap();
    let daemon: i32 = daemon.trim().parse().unwrap();
    assert!(is_alive(daemon));
    kill_process(Pid::from_raw(daemon).unwrap(), Signal::KILL).unwrap();
}
