//! Metrics, the page, who waits and the audit log are for those who may see them.

use std::thread;

use forrst_testkit::until;
use serde_json::{Value, json};

use crate::client::{Reply, Way, acquire, code, connect, exchange, lock};
use crate::keys::Guarded;

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
    let audit = std::fs::read_to_string(guarded.serve.path("audit.jsonl")).unwrap();
    assert_eq!(audit.lines().count(), 2, "{audit}");
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
        first["owner"].as_str().unwrap().starts_with("sha256:"),
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
    let audit = std::fs::read_to_string(guarded.serve.path("audit.jsonl")).unwrap();
    let entries = audit.lines().map(|line| {
        let entry: Value = serde_json::from_str(line).unwrap();
        ["who", "act", "result"].map(|member| entry[member].as_str().unwrap_or("-").to_owned())
    });
    let expected = [
        ["-", "denied", "UNAUTHORIZED"],
        ["caller", "denied", "FORBIDDEN"],
        ["admin", "force-release", "LOCK_NOT_FOUND"],
    ];
    assert_eq!(entries.collect::<Vec<_>>(), expected);
    for key in &guarded.keys {
        assert!(!audit.contains(key.as_str()));
    }
}
