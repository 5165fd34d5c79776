//! What each role may do, over each transport.

use forrst_testkit::request;
use serde_json::{Value, json};

use crate::access::client::{Transport, acquire, code, lock, open, post, socket_ask};
use crate::access::keys::Guarded;

/// Every kind of function, and whether `call`, `observe` and `admin` may call it.
fn matrix() -> Vec<(Value, [bool; 3])> {
    let key = || json!({"key": "lock:free"});
    let ttl = json!({"value": 1, "unit": "minute"});
    let core = |name: &str| request(&format!("urn:cline:forrst:fn:{name}"), json!({}));
    vec![
        (core("ping"), [true, true, true]),
        (core("health"), [true, true, true]),
        (core("capabilities"), [true, true, true]),
        (core("describe"), [true, true, true]),
        (request("demo.echo", json!({})), [true, false, false]),
        (request("no.such", json!({})), [true, false, false]),
        (acquire("taken"), [true, false, false]),
        (
            lock("release", json!({"key": "lock:free", "owner": "o"})),
            [true, false, true],
        ),
        (
            lock(
                "extend",
                json!({"key": "lock:free", "owner": "o", "ttl": ttl}),
            ),
            [true, false, true],
        ),
        (
            lock(
                "withdraw",
                json!({"key": "lock:free", "owner": "o", "attempt": "1"}),
            ),
            [true, false, true],
        ),
        (lock("status", key()), [false, true, true]),
        (lock("watch", key()), [false, true, true]),
        (
            lock("watch", json!({"key": "lock:free", "owner": "o"})),
            [true, true, true],
        ),
        (lock("list", json!({})), [false, true, true]),
        (lock("waiters", key()), [false, true, true]),
        (lock("activity", json!({})), [false, true, true]),
        (lock("force-release", key()), [false, false, true]),
    ]
}

/// Otherwise any owner, invented or not, would let a caller observe the locks of others.
#[test]
fn a_caller_that_may_only_call_watches_no_lease_but_its_own() {
    let guarded = Guarded::start(&[
        ("holder", &["--role", "call"]),
        ("other", &["--role", "call"]),
    ]);
    let ask = |key: usize, request: &Value| {
        Transport::ALL[0].ask(&guarded.address(), Some(&guarded.keys[key]), request)
    };
    let taken = ask(0, &acquire("watched"));
    let owner = taken["result"]["owner"].clone();
    let watch = |owner: &Value, since: &Value| {
        let mut arguments = json!({"key": "lock:watched", "owner": owner, "wait": {"value": 100, "unit": "millisecond"}});
        if !since.is_null() {
            arguments["since"] = since.clone();
        }
        lock("watch", arguments)
    };
    let own = &ask(0, &watch(&owner, &Value::Null))["result"];
    assert_eq!(own["owner"], owner, "{own}");
    let hidden = &ask(1, &watch(&json!("invented"), &Value::Null))["result"];
    let revision = &hidden["revision"];
    let expected =
        json!({"key": "lock:watched", "locked": true, "waiters": 0, "revision": revision});
    assert_eq!(*hidden, expected);
    // Nor does it notice the end of that lease.
    let hidden = &ask(1, &watch(&json!("invented"), revision))["result"];
    assert_eq!(*hidden, expected);
}

#[test]
fn each_role_may_call_only_its_functions() {
    let guarded = Guarded::start(&[
        ("caller", &["--role", "call"]),
        ("observer", &["--role", "observe"]),
        ("admin", &["--role", "admin"]),
    ]);
    for transport in Transport::ALL {
        for (request, expected) in matrix() {
            for (key, is_allowed) in guarded.keys.iter().zip(expected) {
                let answer = transport.ask(&guarded.address(), Some(key), &request);
                let is_forbidden = code(&answer) == Some("FORBIDDEN");
                assert_eq!(
                    !is_forbidden, is_allowed,
                    "{transport:?} {request}\n{answer:#}"
                );
                assert_ne!(code(&answer), Some("UNAUTHORIZED"), "{request}");
                assert_eq!(answer["id"], "req_1");
            }
            let unknown = format!("forrst_{}", "0".repeat(64));
            for key in [None, Some(unknown.as_str()), Some("")] {
                let answer = transport.ask(&guarded.address(), key, &request);
                let codes = answer["errors"].as_array().expect("errors").len();
                assert_eq!(codes, 1);
                assert_eq!(
                    code(&answer),
                    Some("UNAUTHORIZED"),
                    "{transport:?} {request}"
                );
                assert_eq!(answer["result"], Value::Null);
            }
        }
    }
}

#[test]
fn a_key_may_have_several_roles() {
    let guarded = Guarded::start(&[("both", &["--role", "call", "--role", "observe"])]);
    for (request, [call, observe, _]) in matrix() {
        let answer = Transport::Http.ask(&guarded.address(), Some(&guarded.keys[0]), &request);
        let is_forbidden = code(&answer) == Some("FORBIDDEN");
        assert_eq!(!is_forbidden, call || observe, "{request}");
    }
}

#[test]
fn an_unknown_version_is_reported_only_to_callers_of_the_function() {
    let guarded = Guarded::start(&[("observer", &["--role", "observe"])]);
    for (function, expected) in [
        ("urn:cline:forrst:fn:ping", "VERSION_NOT_FOUND"),
        ("demo.echo", "FORBIDDEN"),
    ] {
        let mut request = request(function, json!({}));
        request["call"]["version"] = "9.9.9".into();
        let answer = Transport::Http.ask(&guarded.address(), Some(&guarded.keys[0]), &request);
        assert_eq!(code(&answer), Some(expected));
    }
}

#[test]
fn functions_can_be_confined_by_patterns() {
    let billing: &[&str] = &[
        "--role",
        "call",
        "--functions",
        "billing.*",
        "--functions",
        "demo.echo",
    ];
    let guarded = Guarded::start(&[("billing", billing)]);
    for (function, expected) in [
        ("billing.generateReport", Some("INVALID_ARGUMENTS")),
        ("billing.nothing", Some("FUNCTION_NOT_FOUND")),
        ("demo.echo", None),
        ("demo.sleep", Some("FORBIDDEN")),
        ("demo.echoes", Some("FORBIDDEN")),
        ("payments.charge", Some("FORBIDDEN")),
        // Whether a function exists is not shown to callers that may not call it.
        ("payments.nothing", Some("FORBIDDEN")),
        ("urn:cline:forrst:fn:ping", None),
    ] {
        for transport in Transport::ALL {
            let request = request(function, json!({}));
            let answer = transport.ask(&guarded.address(), Some(&guarded.keys[0]), &request);
            assert_eq!(code(&answer), expected, "{transport:?} {function}");
        }
    }
}

#[test]
fn unauthorized_and_forbidden_have_the_status_and_headers_of_the_contract() {
    let guarded = Guarded::start(&[("observer", &["--role", "observe"])]);
    let address = guarded.address();
    let echo = request("demo.echo", json!({}));
    let unauthorized = post(&address, "/forrst", &[], &echo);
    assert_eq!(
        (unauthorized.status, unauthorized.code()),
        (401, Some("UNAUTHORIZED"))
    );
    assert!(
        unauthorized.head.contains("www-authenticate: bearer"),
        "{unauthorized:?}"
    );
    assert!(
        unauthorized.head.contains("x-forrst-request-id: req_1"),
        "{unauthorized:?}"
    );
    let key = format!("x-api-key: {}", guarded.keys[0]);
    let forbidden = post(&address, "/forrst", &[&key], &echo);
    assert_eq!(
        (forbidden.status, forbidden.code()),
        (403, Some("FORBIDDEN"))
    );
    assert!(
        !forbidden.head.contains("www-authenticate"),
        "{forbidden:?}"
    );
    let frame = json!({"jsonrpc": "2.0", "id": 7, "method": "forrst.call", "params": echo});
    let unauthorized = post(&address, "/rpc", &[], &frame);
    assert_eq!(unauthorized.status, 401);
    assert!(
        unauthorized.head.contains("www-authenticate: bearer"),
        "{unauthorized:?}"
    );
    assert_eq!(unauthorized.body["id"], 7);
    assert_eq!(code(&unauthorized.body["result"]), Some("UNAUTHORIZED"));
    let forbidden = post(&address, "/rpc", &[&key], &frame);
    assert_eq!(forbidden.status, 200);
    assert_eq!(code(&forbidden.body["result"]), Some("FORBIDDEN"));
    let refused = open(&address, None).expect_err("no key");
    assert_eq!(
        (refused.status, refused.code()),
        (401, Some("UNAUTHORIZED"))
    );
    assert!(
        refused.head.contains("www-authenticate: bearer"),
        "{refused:?}"
    );
}

#[test]
fn an_invalid_request_without_a_key_is_only_unauthorized() {
    let guarded = Guarded::start(&[("caller", &["--role", "call"])]);
    for (body, id) in [
        (json!({"id": "mine"}), json!("mine")),
        (json!([]), Value::Null),
        (json!({"id": 5}), Value::Null),
    ] {
        let reply = post(&guarded.address(), "/forrst", &[], &body);
        assert_eq!((reply.status, reply.code()), (401, Some("UNAUTHORIZED")));
        assert_eq!(reply.body["errors"].as_array().map(Vec::len), Some(1));
        assert_eq!(reply.body["id"], id);
    }
}

#[test]
fn a_key_can_be_sent_in_two_headers_but_two_keys_cannot() {
    let guarded = Guarded::start(&[("one", &["--role", "call"]), ("two", &["--role", "call"])]);
    let (one, two) = (&guarded.keys[0], &guarded.keys[1]);
    let echo = request("demo.echo", json!({}));
    for (headers, status) in [
        (vec![format!("Authorization: Bearer {one}")], 200),
        (vec![format!("authorization: bearer   {one}  ")], 200),
        (vec![format!("X-API-Key: {one}")], 200),
        (
            vec![
                format!("authorization: Bearer {one}"),
                format!("x-api-key: {one}"),
            ],
            200,
        ),
        (
            vec![
                format!("authorization: Bearer {one}"),
                format!("x-api-key: {two}"),
            ],
            401,
        ),
        (
            vec![format!("x-api-key: {one}"), format!("x-api-key: {two}")],
            401,
        ),
        (vec![format!("x-api-key: {one},{two}")], 401),
        (vec![format!("authorization: Basic {one}")], 401),
        (vec![format!("authorization: {one}")], 401),
        (
            vec![format!("authorization: Bearer {}", one.to_uppercase())],
            401,
        ),
        (vec![format!("authorization: Bearer {}", &one[..70])], 401),
        (vec![format!("authorization: Bearer {one}0")], 401),
        (vec!["authorization: Bearer".to_owned()], 401),
        (
            vec!["authorization:".to_owned(), format!("x-api-key: {one}")],
            401,
        ),
        (vec![format!("cookie: x-api-key={one}")], 401),
    ] {
        let shown: Vec<&str> = headers.iter().map(String::as_str).collect();
        let reply = post(&guarded.address(), "/forrst", &shown, &echo);
        assert_eq!(reply.status, status, "{headers:?}");
    }
}

#[test]
fn each_entry_of_a_batch_is_authorized_by_itself() {
    let guarded = Guarded::start(&[("observer", &["--role", "observe"])]);
    let entry = |id: u32, request: Value| json!({"jsonrpc": "2.0", "id": id, "method": "forrst.call", "params": request});
    let batch = json!([
        entry(1, request("demo.echo", json!({}))),
        entry(2, lock("list", json!({}))),
        {"jsonrpc": "2.0", "id": 3, "method": "rpc.discover"},
    ]);
    let key = format!("x-api-key: {}", guarded.keys[0]);
    let reply = post(&guarded.address(), "/rpc", &[&key], &batch);
    assert_eq!(code(&reply.body[0]["result"]), Some("FORBIDDEN"));
    assert_eq!(code(&reply.body[1]["result"]), None);
    assert_eq!(reply.body[2]["result"]["openrpc"], "1.3.2");
    let reply = post(&guarded.address(), "/rpc", &[], &batch);
    assert_eq!(reply.status, 401);
    assert_eq!(code(&reply.body[0]["result"]), Some("UNAUTHORIZED"));
    assert_eq!(code(&reply.body[1]["result"]), Some("UNAUTHORIZED"));
    assert_eq!(reply.body[2]["error"]["data"]["code"], "UNAUTHORIZED");
}

#[test]
fn a_websocket_has_the_rights_of_the_key_that_opened_it() {
    let guarded = Guarded::start(&[("observer", &["--role", "observe"])]);
    let mut socket = open(&guarded.address(), Some(&guarded.keys[0])).unwrap();
    for (request, expected) in [
        (lock("list", json!({})), None),
        (request("demo.echo", json!({})), Some("FORBIDDEN")),
        (lock("list", json!({})), None),
    ] {
        let frame = json!({"jsonrpc": "2.0", "id": 1, "method": "forrst.call", "params": request});
        let answer = socket_ask(&mut socket, &frame);
        assert_eq!(code(&answer["result"]), expected);
    }
}

#[test]
fn probes_need_no_key_and_logs_show_no_key() {
    let guarded = Guarded::start(&[("caller", &["--role", "call"])]);
    let address = guarded.address();
    for path in ["/health", "/ready"] {
        let text = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
        let reply =
            crate::access::client::exchange(crate::access::client::connect(&address), &text);
        assert_eq!(reply.status, 200, "{path}");
    }
    let wrong = "forrst_this_is_somebody_elses";
    for key in [guarded.keys[0].as_str(), wrong] {
        Transport::Http.ask(&address, Some(key), &lock("list", json!({})));
        let errors = guarded.running.errors();
        assert!(!errors.contains(key), "{errors}");
    }
    assert!(!guarded.running.output().contains(&guarded.keys[0]));
}
