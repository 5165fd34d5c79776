//! `--audit-log`: what is recorded, and what happens when it cannot be written.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};

use forrst_testkit::{Answer, Running, Serve, request, until};
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::access::client::Transport;
use crate::access::keys::Guarded;

const LOCK: &str = "urn:cline:forrst:ext:atomic-lock:fn:";

fn acquire(running: &Running, key: &str) {
    let ttl = json!({"value": 60, "unit": "second"});
    let arguments = json!({"key": key, "owner": "worker-1", "ttl": ttl});
    running.ask(&request(&format!("{LOCK}acquire"), arguments));
}

fn force(running: &Running, key: &str) -> Answer {
    let arguments = json!({"key": format!("lock:{key}")});
    running.ask(&request(&format!("{LOCK}force-release"), arguments))
}

/// The entries about results, without those that announce an act.
fn entries(text: &str) -> Vec<Value> {
    let lines = text.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .filter(|entry: &Value| entry["result"] != "PENDING")
        .collect()
}

#[test]
fn force_releases_are_recorded_and_a_moved_file_is_opened_again() {
    let serve = Serve::new(
        env!("CARGO_BIN_EXE_forrst"),
        &["--store", "memory:", "--audit-log", "audit.jsonl"],
    );
    fs::write(serve.path("audit.jsonl"), "{\"act\":\"earlier\"}\n").unwrap();
    let running = serve.start();
    acquire(&running, "a");
    force(&running, "a");
    force(&running, "a");
    let read = |name: &str| fs::read_to_string(serve.path(name)).unwrap_or_default();
    let written = entries(&read("audit.jsonl"));
    let [earlier, forced, failed] = &written[..] else {
        panic!("{written:#?}");
    };
    assert_eq!(earlier["act"], "earlier", "earlier entries stay");
    assert_eq!(forced["act"], "force-release");
    assert_eq!(forced["result"], "OK");
    assert_eq!(forced["lock"], "lock:a");
    assert_eq!(forced["holder"], "worker-1");
    assert_eq!(forced["who"], Value::Null);
    for member in ["at", "fence", "request", "function"] {
        assert!(forced[member].is_string(), "{member} in {forced}");
    }
    assert_eq!(failed["result"], "LOCK_NOT_FOUND");

    fs::rename(serve.path("audit.jsonl"), serve.path("audit.1")).unwrap();
    running.signal(Signal::HUP);
    until("the file is opened again", || {
        serve.path("audit.jsonl").exists()
    });
    force(&running, "b");
    assert_eq!(entries(&read("audit.jsonl")).len(), 1);
    assert_eq!(entries(&read("audit.1")).len(), 3);
    let mode = fs::metadata(serve.path("audit.jsonl"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn all_keys_of_a_lease_are_recorded() {
    let serve = Serve::new(
        env!("CARGO_BIN_EXE_forrst"),
        &["--store", "memory:", "--audit-log", "audit.jsonl"],
    );
    let running = serve.start();
    let acquire_set = |keys: Value| {
        let ttl = json!({"value": 60, "unit": "second"});
        let arguments = json!({"keys": keys, "owner": "worker-1", "ttl": ttl, "mode": "shared"});
        running.ask(&request(&format!("{LOCK}acquire"), arguments));
    };
    acquire_set(json!(["a", "b"]));
    force(&running, "b");
    acquire_set(json!(["a", "c"]));
    acquire_set(json!(["b", "c"]));
    force(&running, "c");
    let text = fs::read_to_string(serve.path("audit.jsonl")).unwrap();
    let written = entries(&text);
    let [one, several] = &written[..] else {
        panic!("{written:#?}");
    };
    assert_eq!(one["lock"], "lock:b");
    assert_eq!(one["locks"], json!(["lock:a", "lock:b"]));
    assert_eq!(one["holder"], "worker-1");
    assert_eq!(several["lock"], "lock:c");
    let leases = several["leases"].as_array().unwrap();
    assert_eq!(leases.len(), 2);
    assert_eq!(leases[0]["locks"], json!(["lock:a", "lock:c"]));
    assert_eq!(leases[1]["locks"], json!(["lock:b", "lock:c"]));
    assert_eq!(leases[1]["holder"], "worker-1");
}

#[test]
fn a_withdrawal_by_an_admin_for_another_caller_is_recorded() {
    let caller: &[&str] = &["--role", "call"];
    let guarded = Guarded::with(
        &["--audit-log", "audit.jsonl"],
        &[("caller", caller), ("admin", &["--role", "admin"])],
    );
    let ttl = json!({"value": 60, "unit": "second"});
    let attempt = json!({"keys": ["a", "b"], "owner": "worker-1", "attempt": "1", "ttl": ttl});
    let acquire = request(&format!("{LOCK}acquire"), attempt);
    let withdraw = json!({"key": "lock:b", "owner": "worker-1", "attempt": "1"});
    let withdraw = request(&format!("{LOCK}withdraw"), withdraw);
    let ask = |key: usize, request: &Value| {
        Transport::Http.ask(&guarded.address(), Some(&guarded.keys[key]), request)
    };
    assert_eq!(ask(0, &acquire)["result"]["acquired"], true);
    assert_eq!(ask(1, &withdraw)["result"]["was"], "held");
    let text = fs::read_to_string(guarded.serve.path("audit.jsonl")).unwrap();
    let written = entries(&text);
    let [withdrawn] = &written[..] else {
        panic!("{written:#?}");
    };
    assert_eq!(withdrawn["act"], "withdraw");
    assert_eq!(withdrawn["who"], "admin");
    assert_eq!(withdrawn["holder"], "worker-1");
    assert_eq!(withdrawn["locks"], json!(["lock:a", "lock:b"]));
}

#[test]
fn the_audit_log_can_be_set_in_the_environment_and_in_the_file() {
    for serve in [
        Serve::new(env!("CARGO_BIN_EXE_forrst"), &["--store", "memory:"])
            .variable("FORRST_AUDIT_LOG", "audit.jsonl"),
        Serve::new(env!("CARGO_BIN_EXE_forrst"), &["--store", "memory:"])
            .config("audit-log = 'audit.jsonl'\nlog-keys = true"),
    ] {
        let running = serve.start();
        force(&running, "a");
        let written = fs::read_to_string(serve.path("audit.jsonl")).unwrap();
        assert!(written.contains("LOCK_NOT_FOUND"), "{written}");
    }
}

#[test]
fn a_server_does_not_start_without_its_audit_log() {
    let serve = Serve::new(
        env!("CARGO_BIN_EXE_forrst"),
        &[
            "--store",
            "memory:",
            "--audit-log",
            "no/such/folder/audit.jsonl",
        ],
    );
    let (code, _, errors) = serve.run();
    assert_eq!(code, Some(1));
    assert!(
        errors.contains("cannot write the audit log no/such/folder/audit.jsonl"),
        "{errors}"
    );
}

#[test]
fn a_force_release_is_announced_before_it_is_done() {
    let serve = Serve::new(
        env!("CARGO_BIN_EXE_forrst"),
        &["--store", "memory:", "--audit-log", "audit.jsonl"],
    );
    let running = serve.start();
    acquire(&running, "a");
    force(&running, "a");
    let text = fs::read_to_string(serve.path("audit.jsonl")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    let results = lines.map(|line: Value| (line["act"].clone(), line["result"].clone()));
    let act = || json!("force-release");
    let expected = [(act(), json!("PENDING")), (act(), json!("OK"))];
    assert_eq!(results.collect::<Vec<_>>(), expected);
}

/// Checks that a force-release that cannot be recorded is refused.
fn check_refused(running: &Running) {
    acquire(running, "a");
    let refused = force(running, "a");
    assert_eq!((refused.status, refused.code()), (503, Some("UNAVAILABLE")));
    let status = request(&format!("{LOCK}status"), json!({"key": "lock:a"}));
    assert_eq!(running.ask(&status).body["result"]["locked"], true);
}

#[test]
fn a_force_release_is_refused_when_the_audit_log_has_no_room() {
    let serve = Serve::new(
        env!("CARGO_BIN_EXE_forrst"),
        &["--store", "memory:", "--audit-log", "/dev/full"],
    );
    let running = serve.start();
    check_refused(&running);
    until("the log says why", || {
        running.errors().contains("the audit log cannot be written")
    });
}

#[test]
fn an_audit_log_that_blocks_stops_only_force_releases() {
    let serve = Serve::new(
        env!("CARGO_BIN_EXE_forrst"),
        &["--store", "memory:", "--audit-log", "pipe", "--demo"],
    );
    let pipe = serve.path("pipe");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RWXU, 0).unwrap();
    let mut filled = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
        .open(&pipe)
        .unwrap();
    while filled.write(&[b'x'; 4096]).is_ok() {}
    let running = serve.start();
    check_refused(&running);
    assert_eq!(running.ask(&request("demo.echo", json!({}))).status, 200);
    running.signal(Signal::TERM);
    assert_eq!(running.wait().code(), Some(0));
}
