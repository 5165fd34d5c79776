//! `forrst lock watch`.

use forrst_testkit::until;
use rustix::process::Signal;
use serde_json::Value;

use crate::access::keys::make_key;
use crate::commands::forrst::{Forrst, Running};
use crate::commands::server::Server;
use crate::commands::terminal::AtTerminal;

fn done(server: &Server, arguments: &[&str]) {
    Forrst::new(server, &[&["lock"], arguments].concat())
        .run()
        .check(0);
}

/// Waits for that many lines, and returns the last one without its time.
#[track_caller]
fn line(watching: &Running, count: usize) -> String {
    until(&format!("there are {count} lines"), || {
        watching.output().matches('\n').count() >= count
    });
    let output = watching.output();
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!(lines.len(), count, "{output}");
    let (time, state) = lines[count - 1].split_once("  ").unwrap();
    humantime::parse_rfc3339(time).unwrap();
    state.to_owned()
}

#[test]
fn each_change_of_a_lock_is_a_line() {
    let server = Server::start();
    let watching = Forrst::new(&server, &["lock", "watch", "k"]).start();
    assert_eq!(line(&watching, 1), "free");
    done(&server, &["acquire", "k", "--ttl", "1h", "--owner", "me"]);
    let held = line(&watching, 2);
    assert!(held.starts_with("held by me, fence 0"), "{held}");
    assert!(held.contains(", expires in 1h ("), "{held}");
    // Not a change.
    done(&server, &["extend", "k", "--ttl", "2h", "--owner", "me"]);
    done(&server, &["force-release", "k", "--yes"]);
    assert_eq!(line(&watching, 3), "free");
    for (owner, count) in [("a", 4), ("b", 5)] {
        done(
            &server,
            &["acquire", "k", "--shared", "--ttl", "1h", "--owner", owner],
        );
        line(&watching, count);
    }
    assert_eq!(line(&watching, 5), "held, shared by 2: a, b");
    watching.signal(Signal::INT);
    let ended = watching.wait().check_signal(Signal::INT);
    assert_eq!(ended.errors, "");
}

#[test]
fn changes_are_printed_as_the_server_sends_them() {
    let server = Server::start();
    let watch = ["lock", "watch", "k", "--function", "a.b", "--json"];
    let watching = Forrst::new(&server, &watch).start();
    let document = |number: usize| -> Value {
        until("it is printed", || {
            watching.output().matches('\n').count() > number
        });
        serde_json::from_str(watching.output().lines().nth(number).unwrap()).unwrap()
    };
    let free = document(0);
    assert_eq!(
        (&free["key"], &free["locked"]),
        (&"lock:a.b:k".into(), &false.into())
    );
    done(
        &server,
        &["acquire", "k", "--function", "a.b", "--owner", "me"],
    );
    let held = document(1);
    assert_eq!(
        (&held["owner"], &held["locked"]),
        (&"me".into(), &true.into())
    );
    assert_ne!(held["revision"], free["revision"]);
}

#[test]
fn it_goes_on_after_a_restart_of_the_server() {
    let mut server = Server::durable();
    done(&server, &["acquire", "k", "--ttl", "1h", "--owner", "me"]);
    let watching = Forrst::new(&server, &["lock", "watch", "k"]).start();
    assert!(line(&watching, 1).starts_with("held by me"));
    server.kill();
    until("it says so", || {
        watching.errors().contains("trying again\n")
    });
    server.restart();
    assert!(line(&watching, 2).starts_with("held by me"));
    done(&server, &["release", "k", "--owner", "me"]);
    assert_eq!(line(&watching, 3), "free");
    let errors = watching.errors();
    assert!(errors.starts_with("warning: "), "{errors}");
    assert_eq!(errors.lines().count(), 1, "once an outage: {errors}");
}

#[test]
fn at_a_terminal_control_c_ends_it() {
    let server = Server::start();
    let mut watching = AtTerminal::start(&["lock", "watch", "k"], &server.url());
    watching.until_shown("  free");
    watching.types("\u{3}");
    // `setsid` shows it as a shell does, or has become the command.
    assert!(matches!(watching.wait(), None | Some(130)));
}

#[test]
fn a_reader_that_has_seen_enough_ends_it() {
    let server = Server::start();
    let script = format!("{} lock watch k | head -n 1", env!("CARGO_BIN_EXE_forrst"));
    let mut shell = std::process::Command::new("sh")
        .args(["-c", &script])
        .env("FORRST_URL", server.url())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    done(&server, &["acquire", "k", "--owner", "me"]);
    let mut is_done = false;
    until("the pipe is closed", || {
        // Whenever it writes next, it finds that out.
        let _ = Forrst::new(&server, &["lock", "force-release", "k", "--yes"]).run();
        let _ = Forrst::new(&server, &["lock", "acquire", "k"]).run();
        is_done |= shell.try_wait().unwrap().is_some();
        is_done
    });
    assert!(shell.wait().unwrap().success());
}

#[test]
fn a_key_without_the_role_observe_is_refused() {
    let (key, block) = make_key("worker", &["--role", "call"]);
    let server = Server::with_keys(&block);
    let watch = Forrst::new(&server, &["lock", "watch", "k"]);
    let ended = watch.variable("FORRST_API_KEY", key).run().check(77);
    ended.check_errors(&["observe"]);
}

#[test]
fn mistakes_and_refusals_have_their_exit_codes() {
    let server = Server::start();
    let watch = |key: &str| Forrst::new(&server, &["lock", "watch", key]).run();
    watch("").check(1).check_errors(&["key"]);
    let nowhere = ["lock", "watch", "k", "--url", "http://127.0.0.1:1"];
    let ended = Forrst::alone(&nowhere).run().check(69);
    ended.check_errors(&["no server can be reached"]);
    let json = Forrst::alone(&[&nowhere[..], &["--json"]].concat())
        .run()
        .check(69)
        .json();
    assert_eq!(json["errors"][0]["code"], "UNAVAILABLE");
}
