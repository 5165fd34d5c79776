//! Shared locks, limited locks, and locks on several keys, from the command line.

use forrst_testkit::until;
use serde_json::Value;

use crate::access::keys::make_key;
use crate::commands::forrst::Forrst;
use crate::commands::server::Server;
use crate::commands::shown;

fn status(server: &Server, key: &str) -> Value {
    Forrst::new(server, &["lock", "status", key, "--json"]).json()
}

#[test]
fn several_keys_are_taken_and_released_together() {
    let server = Server::start();
    let forrst = |arguments: &[&str]| Forrst::new(&server, arguments).run();
    let acquire = [
        "lock",
        "acquire",
        "account:2",
        "account:1",
        "--owner",
        "me",
        "--ttl",
        "1h",
        "--note",
        "transfer",
    ];
    shown::check("lock-acquired-set", &forrst(&acquire).check(0).output);
    let held = forrst(&["lock", "status", "account:1"]).check(0);
    shown::check("lock-held-set", &held.output);
    forrst(&["lock", "acquire", "account:1"]).check(75);
    forrst(&["lock", "release", "account:1", "--owner", "me"]).check(0);
    assert_eq!(status(&server, "account:2")["locked"], false);
    forrst(&["lock", "status", "account:2", "--exit-code"]).check(0);
}

#[test]
fn the_json_of_an_acquisition_is_that_of_the_server() {
    let server = Server::start();
    for (kind, member, expected) in [
        (&["--shared"][..], "mode", Value::from("shared")),
        (&["--limit", "2"], "limit", Value::from(2)),
    ] {
        let acquire = ["lock", "acquire", member, "--ttl", "1h", "--json"];
        let data: Value = Forrst::new(&server, &[&acquire, kind].concat()).json();
        assert_eq!(data[member], expected, "{data}");
        assert_eq!(data["full_key"], format!("lock:{member}"));
        let left = data["ttl_remaining_ms"].as_u64().unwrap();
        assert!((1..=3_600_000).contains(&left), "{data}");
        assert!(data["elapsed_ms"].is_u64(), "{data}");
    }
}

#[test]
fn the_release_command_names_the_lease() {
    let server = Server::start();
    let forrst = |arguments: &[&str]| Forrst::new(&server, arguments).run();
    let acquire = [
        "lock", "acquire", "k", "--shared", "--ttl", "1h", "--owner", "me",
    ];
    forrst(&acquire).check(0);
    let second = forrst(&acquire).check(0).output;
    let (_, command) = second.split_once("To release it: forrst ").unwrap();
    let command: Vec<&str> = command.split_whitespace().collect();
    forrst(&command).check(0);
    assert_eq!(status(&server, "k")["holder_count"], 1);
}

#[test]
fn at_most_as_many_commands_as_the_limit_run_at_once() {
    let server = Server::start();
    let run = |then: &str| {
        let url = server.url();
        let forrst = env!("CARGO_BIN_EXE_forrst");
        format!("{forrst} run --url {url} --key pool --limit 2 -- {then}")
    };
    let third = run("echo three at once");
    let second = run(&format!("sh -c '{third}; echo $?'"));
    let first = ["run", "--key", "pool", "--limit", "2", "--", "sh", "-c"];
    let output = Forrst::new(&server, &[&first[..], &[&second]].concat()).run();
    assert_eq!(output.check(0).output, "75\n");
}

#[test]
fn kinds_are_shown() {
    let server = Server::start();
    let forrst = |arguments: &[&str]| Forrst::new(&server, arguments).run();
    let acquire = |rest: &[&str]| {
        let common = ["lock", "acquire", "--ttl", "1h"];
        forrst(&[&common, rest].concat())
    };
    acquire(&["licences", "--limit", "2", "--owner", "one"]).check(0);
    acquire(&["licences", "--limit", "2", "--owner", "two"]).check(0);
    acquire(&["licences", "--limit", "2"]).check(75);
    acquire(&["config", "--shared", "--owner", "reader"]).check(0);
    acquire(&["export:orders", "--owner", "writer"]).check(0);
    acquire(&["config", "--shared", "--limit", "2"]).check(2);
    let held = forrst(&["lock", "status", "licences"]).check(0);
    shown::check("lock-held-limited", &held.output);
    let listed = forrst(&["lock", "list"]).check(0);
    shown::check("lock-list-kinds", &listed.output);
    let forced = forrst(&["lock", "force-release", "licences", "--yes"]).check(0);
    let expected = "lock:licences is released by force: 2 leases have ended\n";
    assert_eq!(forced.output, expected);
}

#[test]
fn the_queue_is_shown_and_an_attempt_can_be_withdrawn() {
    let server = Server::start();
    let forrst = |arguments: &[&str]| Forrst::new(&server, arguments).run();
    let waiters = ["lock", "waiters", "b"];
    assert_eq!(
        forrst(&waiters).check(0).output,
        "No caller waits for lock:b\n"
    );
    forrst(&["lock", "acquire", "a", "--ttl", "1h"]).check(0);
    let waiting = [
        "lock",
        "acquire",
        "a",
        "b",
        "--block",
        "1m",
        "--owner",
        "me",
        "--attempt",
        "1",
        "--note",
        "nightly",
    ];
    let waiting = Forrst::new(&server, &waiting).start();
    let mut queue = String::new();
    until("it waits", || {
        queue = forrst(&waiters).check(0).output;
        queue.contains("nightly")
    });
    shown::check("lock-waiters", &queue);
    let free = forrst(&["lock", "status", "b"]).check(0);
    assert_eq!(free.output, "lock:b is free, and reserved for a waiter\n");
    forrst(&["lock", "status", "b", "--exit-code"]).check(75);
    let withdraw = ["lock", "withdraw", "b", "--owner", "me", "--attempt", "1"];
    let expected = "lock:b is withdrawn: it waited, and has left the queue\n";
    assert_eq!(forrst(&withdraw).check(0).output, expected);
    waiting
        .wait()
        .check(1)
        .check_errors(&["LOCK_ALREADY_RELEASED"]);
    let expected = "lock:b is withdrawn: the server did not know of it\n";
    let withdraw = ["lock", "withdraw", "b", "--owner", "me", "--attempt", "2"];
    assert_eq!(forrst(&withdraw).check(0).output, expected);
}

#[test]
fn a_command_runs_under_several_keys() {
    let server = Server::start();
    let show = "printf '%s|' \"$FORRST_LOCK_KEY\" $FORRST_LOCK_KEYS";
    let run = ["run", "--key", "b", "--key", "a", "--", "sh", "-c", show];
    let output = Forrst::new(&server, &run).run().check(0).output;
    assert_eq!(output, "lock:b|lock:b|lock:a|");
    assert_eq!(status(&server, "a")["locked"], false);
}

#[test]
fn commands_run_side_by_side_under_shared_locks() {
    let server = Server::start();
    let inner = format!(
        "{} run --url {} --key config --shared -- echo both",
        env!("CARGO_BIN_EXE_forrst"),
        server.url()
    );
    let run = [
        "run", "--key", "config", "--shared", "--", "sh", "-c", &inner,
    ];
    let output = Forrst::new(&server, &run).run().check(0).output;
    assert_eq!(output, "both\n");
    let run = ["run", "--key", "config", "--", "sh", "-c", &inner];
    Forrst::new(&server, &run).run().check(75);
}

#[test]
fn callers_and_kinds_are_listed() {
    let roles: &[&str] = &["--role", "call", "--role", "observe"];
    let keys = ["render", "report"].map(|name| make_key(name, roles));
    let blocks: String = keys.iter().map(|(_, block)| block.as_str()).collect();
    let server = Server::with_keys(&blocks);
    let forrst = |key: usize, arguments: &[&str]| {
        let forrst = Forrst::new(&server, arguments);
        forrst
            .variable("FORRST_API_KEY", &keys[key].0)
            .run()
            .check(0)
    };
    let acquire = ["lock", "acquire", "k", "--limit", "3", "--ttl", "1h"];
    for key in [0, 1] {
        forrst(key, &[&acquire[..], &["--owner", "me"]].concat());
    }
    let listed = forrst(0, &["lock", "list"]).output;
    let (head, row) = listed.trim_end().split_once('\n').unwrap();
    assert!(head.trim_end().ends_with("CALLER"), "{listed}");
    assert!(row.contains("2 of 3"), "{listed}");
    assert!(row.trim_end().ends_with("render"), "{listed}");
    // The lease of another caller is shown with a hash of its token.
    let shown = forrst(0, &["lock", "status", "k"]).output;
    for text in ["render", "report", "hmac:"] {
        assert!(shown.contains(text), "{shown}");
    }
}
