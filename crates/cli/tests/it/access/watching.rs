//! Metrics, the page, who waits and the audit log are for those who may see them.

use std::io::{Read, Write};
use std::thread;
use std::time::Duration;

use forrst_testkit::{Serve, until};
use serde_json::{Value, json};

use crate::access::client::{Reply, Way, acquire, code, connect, exchange, lock, post, post_text};
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
fn metrics_need_a_key_that_may_observe_and_the_page_needs_none() {
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
fn those_who_wait_are_masked_as_those_who_hold() {
    let guarded = Guarded::start(&ROLES);
    let (address, keys) = (guarded.address(), guarded.keys.clone());
    let ask = |key: usize, request: &Value| Way::Http.ask(&address, Some(&keys[key]), request);
    assert_eq!(code(&ask(0, &acquire("k"))), None);
    let mut waiting = acquire("k");
    waiting["call"]["arguments"]["owner"] = "the-token".into();
    waiting["call"]["arguments"]["block"] = json!({"value": 20, "unit": "second"});
    let waiting = thread::spawn({
        let (address, key) = (address.clone(), keys[0].clone());
        move || Way::Http.ask(&address, Some(&key), &waiting)
    });
    let waiters = lock("waiters", json!({"key": "lock:k"}));
    until("somebody waits", || {
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
fn the_audit_log_says_who_was_denied_and_who_used_force() {
    let guarded = Guarded::with(&["--audit-log", "audit.jsonl"], &ROLES);
    let force = lock("force-release", json!({"key": "lock:k"}));
    for key in [None, Some(0), Some(2)] {
        let key = key.map(|key: usize| guarded.keys[key].as_str());
        Way::Http.ask(&guarded.address(), key, &force);
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

/// What is in the audit log of a server, which it ends: then everything is written.
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
fn a_denial_is_written_down_whatever_else_is_wrong() {
    let guarded = Guarded::with(&["--audit-log", "audit.jsonl"], &[CONFINED]);
    let lock = forrst_testkit::Lock::global("others");
    let mut call = lock.locked_call("me", Duration::from_secs(60), true);
    let wrong =
        json!({"urn": "urn:forrst:ext:deadline", "options": {"value": -1, "unit": "second"}});
    call["extensions"].as_array_mut().unwrap().insert(0, wrong);
    Way::Http.ask(&guarded.address(), Some(&guarded.keys[0]), &call);
    let force = crate::access::client::lock("force-release", json!({"key": "lock:others"}));
    Way::Http.ask(&guarded.address(), Some(&guarded.keys[0]), &force);
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
fn those_who_are_turned_away_at_the_door_are_written_down() {
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
fn an_admin_who_acts_for_an_owner_leaves_a_line() {
    let guarded = Guarded::with(&["--audit-log", "audit.jsonl"], &ROLES);
    let ask = |key: usize, request: &Value| {
        Way::Http.ask(&guarded.address(), Some(&guarded.keys[key]), request)
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
fn who_uses_force_and_hangs_up_is_written_down() {
    const LOCKS: usize = 60;
    let serve = Serve::new(FORRST, &["--audit-log", "audit.jsonl"]);
    let running = serve.start();
    let address = running.address();
    let name = |number: usize| format!("k{number}");
    for number in 0..LOCKS {
        assert_eq!(running.ask(&acquire(&name(number))).code(), None);
    }
    for number in 0..LOCKS {
        let force = lock(
            "force-release",
            json!({"key": format!("lock:{}", name(number))}),
        );
        let text = post_text(&address, "/forrst", &[], &force.to_string());
        let mut stream = connect(&address);
        stream.write_all(text.as_bytes()).unwrap();
        std::thread::sleep(Duration::from_micros(30 * number as u64));
    }
    // Some may have hung up before they were heard. What was done is written down.
    let written = || {
        let text = std::fs::read_to_string(serve.path("audit.jsonl")).unwrap();
        text.lines().filter(|line| line.contains("\"OK\"")).count()
    };
    until("as many are written down as are free", || {
        let held = running.ask(&forrst_testkit::list());
        held.listed().len() + written() == LOCKS
    });
    assert!(written() > 0);
}
