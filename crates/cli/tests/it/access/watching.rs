//! Who may see metrics, the dashboard and waiters, and what the audit log records.

use std::io::{Read, Write};
use std::thread;
use std::time::Duration;

use forrst_testkit::{Serve, until};
use serde_json::{Value, json};

use crate::access::client::{
    Reply, Transport, acquire, code, connect, exchange, lock, post, post_text,
};
use crate::access::keys::{FORRST, Guarded};

fn get(address: &str, path: &str, key: Option<&str>) -> Reply {
    let key = key.map(|key| format!("authorization: Bearer {key}\r\n"));
    let text = format!(
        "GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n{}\r\n",
        key.unwrap_or_default()
    );
    exchange(connect(address), &text)
}

const ROLES: [(&str, &[&str]); 3] = [
    ("caller", &["--role", "call"]),
    ("observer", &["--role", "observe"]),
    ("admin", &["--role", "admin"]),
];

#[test]
fn metrics_need_a_key_with_the_role_observe_and_the_dashboard_needs_none() {
    let guarded = Guarded::with(&["--audit-log", "audit.jsonl"], &ROLES);
    let address = guarded.address();
    let refused = get(&address, "/metrics", None);
    assert_eq!(
        (refused.status, refused.code()),
        (401, Some("UNAUTHORIZED"))
    );
    assert!(refused.head.contains("www-authenticate: bearer"));
    for (key, status) in guarded.keys.iter().zip([403, 200, 200]) {
        assert_eq!(get(&address, "/metrics", Some(key)).status, status);
    }
    for path in ["/", "/page.js", "/health", "/ready"] {
        assert_eq!(get(&address, path, None).status, 200, "{path}");
    }
    assert_eq!(audit_of(&guarded).len(), 2);
}

#[test]
fn the_owners_of_waiters_are_masked_like_those_of_holders() {
    let guarded = Guarded::start(&ROLES);
    let (address, keys) = (guarded.address(), guarded.keys.clone());
    let ask =
        |key: usize, request: &Value| Transport::Http.ask(&address, Some(&keys[key]), request);
    assert_eq!(code(&ask(0, &acquire("k"))), None);
    let mut waiting = acquire("k");
    waiting["call"]["arguments"]["owner"] = "the-token".into();
    waiting["call"]["arguments"]["block"] = json!({"value": 20, "unit": "second"});
    let waiting = thread::spawn({
        let (address, key) = (address.clone(), keys[0].clone());
        move || Transport::Http.ask(&address, Some(&key), &waiting)
    });
    let waiters = lock("waiters", json!({"key": "lock:k"}));
    until("a caller waits", || {
        ask(2, &waiters)["result"]["waiters"][0]["owner"] == "the-token"
    });
    let seen = ask(1, &waiters);
    let first = &seen["result"]["waiters"][0];
    assert_eq!(first["caller"], "caller");
    assert!(
        first["owner"].as_str().unwrap().starts_with("hmac:"),
        "{seen}"
    );
    let forced = ask(2, &lock("force-release", json!({"key": "lock:k"})));
    assert_eq!(code(&forced), None);
    assert_eq!(code(&waiting.join().unwrap()), None);
}

#[test]
fn the_audit_log_records_denials_and_force_releases() {
    let guarded = Guarded::with(&["--audit-log", "audit.jsonl"], &ROLES);
    let force = lock("force-release", json!({"key": "lock:k"}));
    for key in [None, Some(0), Some(2)] {
        let key = key.map(|key: usize| guarded.keys[key].as_str());
        Transport::Http.ask(&guarded.address(), key, &force);
    }
    let audit = audit_of(&guarded);
    let entries = audit
        .iter()
        .filter(|entry| entry["result"] != "PENDING")
        .map(|entry| ["who", "act", "result"].map(|member| entry[member].as_str().unwrap_or("-")));
    let expected = [
        ["-", "denied", "UNAUTHORIZED"],
        ["caller", "denied", "FORBIDDEN"],
        ["admin", "force-release", "LOCK_NOT_FOUND"],
    ];
    assert_eq!(entries.collect::<Vec<_>>(), expected);
    for key in &guarded.keys {
        assert!(!format!("{audit:?}").contains(key.as_str()));
    }
}

/// Ends the server, so that everything is written, and reads its audit log.
fn audit_of(guarded: &Guarded) -> Vec<Value> {
    if !guarded.running.has_ended() {
        assert_eq!(guarded.running.terminate().code(), Some(0));
    }
    written(guarded)
}

fn written(guarded: &Guarded) -> Vec<Value> {
    let text = std::fs::read_to_string(guarded.serve.path("audit.jsonl")).unwrap();
    let entries = text.lines().map(|line| serde_json::from_str(line).unwrap());
    entries.collect()
}

const CONFINED: (&str, &[&str]) = (
    "confined",
    &["--role", "call", "--role", "admin", "--locks", "lock:own*"],
);

#[test]
fn a_denial_is_recorded_even_if_the_request_is_invalid() {
    let guarded = Guarded::with(&["--audit-log", "audit.jsonl"], &[CONFINED]);
    let lock = forrst_testkit::Lock::global("others");
    let mut call = lock.locked_call("me", Duration::from_secs(60), true);
    let wrong =
        json!({"urn": "urn:forrst:ext:deadline", "options": {"value": -1, "unit": "second"}});
    call["extensions"].as_array_mut().unwrap().insert(0, wrong);
    Transport::Http.ask(&guarded.address(), Some(&guarded.keys[0]), &call);
    let force = crate::access::client::lock("force-release", json!({"key": "lock:others"}));
    Transport::Http.ask(&guarded.address(), Some(&guarded.keys[0]), &force);
    let audit = audit_of(&guarded);
    assert_eq!(audit.len(), 2, "{audit:#?}");
    for entry in &audit {
        for (member, expected) in [
            ("who", "confined"),
            ("from", "127.0.0.1"),
            ("act", "denied"),
            ("result", "FORBIDDEN"),
            ("lock", "lock:others"),
        ] {
            assert_eq!(entry[member], expected, "{entry}");
        }
    }
    // The log, which more people can read, does not name the lock.
    assert!(!guarded.running.errors().contains("lock:others"));
}

#[test]
fn requests_that_are_refused_before_any_function_are_recorded() {
    let guarded = Guarded::with(&["--audit-log", "audit.jsonl"], &ROLES);
    let address = guarded.address();
    get(&address, "/metrics", Some(&guarded.keys[0]));
    let discover = json!({"jsonrpc": "2.0", "id": 1, "method": "rpc.discover"});
    post(&address, "/rpc", &[], &discover);
    let notification = json!({"jsonrpc": "2.0", "method": "rpc.discover"});
    let refused = post(&address, "/rpc", &[], &notification);
    assert_eq!(refused.status, 401, "{refused:?}");
    exchange(
        connect(&address),
        "GET /health HTTP/1.1\r\nhost: evil.example\r\nconnection: close\r\n\r\n",
    );
    let upgrade = format!(
        "GET /rpc HTTP/1.1\r\nhost: {address}\r\norigin: http://evil.example\r\nconnection: upgrade\r\n\
         upgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    let mut socket = connect(&address);
    socket.write_all(upgrade.as_bytes()).unwrap();
    socket.read_exact(&mut [0; 12]).unwrap();
    let audit = audit_of(&guarded);
    let entries = audit.iter().map(|entry| {
        ["who", "function", "result", "from"].map(|member| entry[member].as_str().unwrap_or("-"))
    });
    let expected = [
        ["caller", "GET /metrics", "FORBIDDEN", "127.0.0.1"],
        ["-", "rpc.discover", "UNAUTHORIZED", "127.0.0.1"],
        ["-", "GET /health", "FORBIDDEN", "127.0.0.1"],
        ["-", "GET /rpc", "FORBIDDEN", "127.0.0.1"],
    ];
    assert_eq!(entries.collect::<Vec<_>>(), expected);
}

#[test]
fn a_release_by_an_admin_for_another_caller_is_recorded() {
    let guarded = Guarded::with(&["--audit-log", "audit.jsonl"], &ROLES);
    let ask = |key: usize, request: &Value| {
        Transport::Http.ask(&guarded.address(), Some(&guarded.keys[key]), request)
    };
    for (who, lines) in [(0, 0), (2, 1)] {
        let owner = ask(0, &acquire("k"))["result"]["owner"].clone();
        let released = ask(
            who,
            &lock("release", json!({"key": "lock:k", "owner": owner})),
        );
        assert_eq!(code(&released), None);
        assert_eq!(written(&guarded).len(), lines);
    }
    let audit = written(&guarded);
    assert_eq!(
        (&audit[0]["act"], &audit[0]["who"]),
        (&json!("release"), &json!("admin"))
    );
}

#[test]
fn a_force_release_is_recorded_even_if_the_client_disconnects() {
    const LOCKS: usize = 60;
    let serve = Serve::new(FORRST, &["--audit-log", "audit.jsonl"]);
    let running = serve.start();
    let address = running.address();
    let name = |number: usize| format!("k{number}");
    for number in 0..LOCKS {
        assert_eq!(running.ask(&acquire(&name(number))).code(), None);
    }
    let mut last = None;
    for number in 0..LOCKS {
        let force = lock(
            "force-release",
            json!({"key": format!("lock:{}", name(number))}),
        );
        let text = post_text(&address, "/forrst", &[], &force.to_string());
        let mut stream = connect(&address);
        stream.write_all(text.as_bytes()).unwrap();
        std::thread::sleep(Duration::from_micros(30 * number as u64));
        // The previous client disconnects.
        last = Some(stream);
    }
    // Some clients may have disconnected before their request was read. What was done is recorded.
    let written = || {
        let text = std::fs::read_to_string(serve.path("audit.jsonl")).unwrap();
        text.lines().filter(|line| line.contains("\"OK\"")).count()
    };
    until("the last client's request is carried out", || written() > 0);
    drop(last);
    until("every released lock is recorded", || {
        let held = running.ask(&forrst_testkit::list());
        held.listed().len() + written() == LOCKS
    });
}
