//! The limits of callers and connections, and their answers.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::Duration;

use forrst_testkit::{Running, Serve, request, until};
use serde_json::{Value, json};

use tokio_tungstenite::tungstenite::Message;

use crate::access::client::{Transport, acquire, code, connect, exchange, lock, open, post_text};
use crate::access::keys::{FORRST, Guarded};

fn server(arguments: &[&str]) -> (Serve, Running) {
    let own = &["--demo", "--store", "memory:"];
    let serve = Serve::new(FORRST, &[&own[..], arguments].concat());
    let running = serve.start();
    (serve, running)
}

#[test]
fn each_caller_has_a_rate_of_its_own() {
    let call: &[&str] = &["--role", "call"];
    let guarded = Guarded::with(&["--max-rate", "1"], &[("a", call), ("b", call)]);
    let address = guarded.address();
    let echo = request("demo.echo", json!({}));
    for transport in Transport::ALL {
        let mut refused = Value::Null;
        until("there are too many", || {
            refused = transport.ask(&address, Some(&guarded.keys[0]), &echo);
            code(&refused).is_some()
        });
        assert_eq!(code(&refused), Some("RATE_LIMITED"));
        let retry_after = &refused["errors"][0]["details"]["retry_after"];
        assert_eq!(retry_after["unit"], "millisecond");
        assert!(
            retry_after["value"].as_u64().is_some_and(|ms| ms <= 1_000),
            "{retry_after}"
        );
        let other = transport.ask(&address, Some(&guarded.keys[1]), &echo);
        assert_eq!(code(&other), None, "{transport:?}");
        std::thread::sleep(Duration::from_millis(1_100));
        let later = transport.ask(&address, Some(&guarded.keys[0]), &echo);
        assert_eq!(code(&later), None, "{transport:?}");
        std::thread::sleep(Duration::from_millis(1_100));
    }
}

#[test]
fn the_locks_of_each_caller_are_limited() {
    let call: &[&str] = &["--role", "call", "--role", "admin"];
    let guarded = Guarded::with(
        &["--max-locks-per-caller", "3"],
        &[("a", call), ("b", call)],
    );
    let ask = |key: usize, request: &Value| {
        Transport::Http.ask(&guarded.address(), Some(&guarded.keys[key]), request)
    };
    let mut owners = Vec::new();
    for number in 0..3 {
        let answer = ask(0, &acquire(&format!("k{number}")));
        owners.push(answer["result"]["owner"].clone());
    }
    let full = ask(0, &acquire("k3"));
    assert_eq!(code(&full), Some("RATE_LIMITED"));
    assert_eq!(full["errors"][0]["details"]["max_locks_per_caller"], 3);
    assert_eq!(code(&ask(1, &acquire("k3"))), None);
    // A lock that another caller releases, with the token or by force, no longer counts.
    for (number, owner) in owners.iter().enumerate().take(2) {
        let key = json!({"key": format!("lock:k{number}"), "owner": owner});
        assert_eq!(code(&ask(number, &lock("release", key))), None);
        assert_eq!(code(&ask(0, &acquire(&format!("again{number}")))), None);
        assert_eq!(code(&ask(0, &acquire("more"))), Some("RATE_LIMITED"));
    }
    assert_eq!(
        code(&ask(1, &lock("force-release", json!({"key": "lock:k2"})))),
        None
    );
    let mut short = acquire("short");
    short["call"]["arguments"]["ttl"] = json!({"value": 200, "unit": "millisecond"});
    assert_eq!(code(&ask(0, &short)), None);
    assert_eq!(code(&ask(0, &acquire("more"))), Some("RATE_LIMITED"));
    until("a lease that has run out makes room", || {
        code(&ask(0, &short)).is_none()
    });
}

#[test]
fn a_set_counts_once_for_each_key() {
    let (_serve, running) = server(&["--max-locks-per-caller", "3"]);
    let ttl = json!({"value": 1, "unit": "minute"});
    let set = |keys: Value| lock("acquire", json!({"keys": keys, "owner": "me", "ttl": ttl}));
    assert_eq!(running.ask(&set(json!(["a", "b"]))).code(), None);
    let more = running.ask(&set(json!(["c", "d"])));
    assert_eq!(more.code(), Some("RATE_LIMITED"));
    assert_eq!(running.ask(&acquire("c")).code(), None);
    assert_eq!(running.ask(&acquire("d")).code(), Some("RATE_LIMITED"));
    let release = lock("release", json!({"key": "lock:b", "owner": "me"}));
    assert_eq!(running.ask(&release).code(), None);
    assert_eq!(running.ask(&set(json!(["d", "e"]))).code(), None);
}

#[test]
fn a_repeated_attempt_counts_as_one_lock() {
    let (_serve, running) = server(&["--max-locks-per-caller", "1"]);
    let mut attempt = acquire("k");
    attempt["call"]["arguments"]["owner"] = "me".into();
    attempt["call"]["arguments"]["attempt"] = "first".into();
    let first = running.ask(&attempt).granted().unwrap();
    assert_eq!(running.ask(&attempt).granted(), Some(first));
    attempt["call"]["arguments"]["attempt"] = "second".into();
    assert_eq!(running.ask(&attempt).code(), Some("RATE_LIMITED"));
    assert_eq!(running.ask(&acquire("other")).code(), Some("RATE_LIMITED"));
}

#[test]
fn a_lock_of_a_call_counts_until_the_call_has_ended() {
    let (_serve, running) = server(&["--max-locks-per-caller", "1"]);
    let minute = Duration::from_secs(60);
    let own = forrst_testkit::Lock::global("own");
    for _ in 0..5 {
        let echo = request("demo.echo", json!({}));
        assert_eq!(running.ask(&own.around(echo, "me", minute)).code(), None);
    }
    assert_eq!(
        running.ask(&own.locked_call("me", minute, false)).code(),
        None
    );
    let other = forrst_testkit::Lock::global("other");
    assert_eq!(
        running.ask(&other.acquire("me", minute)).code(),
        Some("RATE_LIMITED")
    );
}

#[test]
fn waiters_are_limited() {
    let (_serve, running) = server(&["--max-waiters", "2", "--max-waiters-per-lock", "1"]);
    let minute = Duration::from_secs(60);
    let [one, two, three] = ["one", "two", "three"].map(forrst_testkit::Lock::global);
    for lock in [&one, &two, &three] {
        assert_eq!(running.ask(&lock.acquire("holder", minute)).code(), None);
    }
    // Of three concurrent calls one may wait: the others exceed the limit of the lock, or of the server.
    for lock in [&one, &two] {
        let waiters =
            [0; 3].map(|_| running.start_ask(lock.acquire_within("waiter", minute, minute)));
        until("two are refused", || {
            waiters.iter().filter(|waiter| waiter.is_finished()).count() == 2
        });
        for refused in waiters.into_iter().filter(JoinHandle::is_finished) {
            let answer = refused.join().unwrap().unwrap();
            assert_eq!(answer.code(), Some("RATE_LIMITED"));
            assert!(message(&answer.body).contains("Too many callers wait"));
            assert!(answer.body["errors"][0]["details"]["retry_after"].is_object());
        }
    }
    let answer = running.ask(&three.acquire_within("waiter", minute, minute));
    assert_eq!(answer.code(), Some("RATE_LIMITED"));
    assert!(message(&answer.body).contains("on this server"));
    assert!(counted(&running, "waiters") > 0);
    assert!(counted(&running, "waiters_of_lock") > 0);
}

#[test]
fn a_set_waits_in_no_queue_when_one_of_them_is_full() {
    let (_serve, running) = server(&["--max-waiters-per-lock", "1"]);
    let minute = Duration::from_secs(60);
    let [one, two] = ["one", "two"].map(forrst_testkit::Lock::global);
    for lock in [&one, &two] {
        assert_eq!(running.ask(&lock.acquire("holder", minute)).code(), None);
    }
    let waiting = running.start_ask(one.acquire_within("waiter", minute, minute));
    until("it waits", || {
        running.ask(&one.status()).body["result"]["waiters"] == 1
    });
    let ttl = json!({"value": 1, "unit": "minute"});
    let set = json!({"keys": ["two", "one"], "ttl": ttl, "block": ttl});
    let refused = running.ask(&lock("acquire", set));
    assert_eq!(refused.code(), Some("RATE_LIMITED"));
    let details = &refused.body["errors"][0]["details"];
    assert_eq!(details["full_keys"], json!(["lock:two", "lock:one"]));
    assert!(details["retry_after"].is_object());
    assert_eq!(running.ask(&two.status()).body["result"]["waiters"], 0);
    running.ask(&one.force_release());
    assert_eq!(waiting.join().unwrap().unwrap().code(), None);
}

fn message(answer: &Value) -> &str {
    answer["errors"][0]["message"].as_str().unwrap()
}

/// How often a limit was hit.
fn counted(running: &Running, limit: &str) -> u64 {
    let address = running.address();
    let mut stream = connect(&address);
    let get = format!("GET /metrics HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    stream.write_all(get.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let name = format!("forrst_limits_hit_total{{limit=\"{limit}\"}} ");
    let count = text.lines().find_map(|line| line.strip_prefix(&name));
    count
        .unwrap_or_else(|| panic!("no {name}"))
        .parse()
        .unwrap()
}

#[test]
fn every_limit_that_a_connection_hits_is_counted() {
    let (serve, running) = server(&[
        "--max-head",
        "16KiB",
        "--max-body",
        "10KiB",
        "--idle-timeout",
        "300ms",
        "--max-in-flight",
        "2",
        "--unix",
        "socket",
    ]);
    let address = running.address();
    let hit = |limit: &str, act: &dyn Fn()| {
        let before = counted(&running, limit);
        act();
        until(limit, || counted(&running, limit) > before);
    };
    let post = |path: &str, body: &str| {
        exchange(connect(&address), &post_text(&address, path, &[], body));
    };
    let large = "x".repeat(20_000);
    hit("head", &|| {
        let head = format!("x-padding: {large}");
        exchange(
            connect(&address),
            &post_text(&address, "/forrst", &[&head], ""),
        );
    });
    hit("body", &|| post("/forrst", &large));
    hit("body", &|| {
        let mut socket = open(&address, None).unwrap();
        let _ = socket.send(Message::text(large.clone()));
        while socket.read().is_ok() {}
    });
    hit("body", &|| {
        let mut stream = UnixStream::connect(serve.path("socket")).unwrap();
        stream.write_all(&20_000_u32.to_be_bytes()).unwrap();
        stream.read_to_end(&mut Vec::new()).unwrap();
    });
    hit("nesting", &|| {
        let nested = format!("{{\"id\":{}{}}}", "[".repeat(80), "]".repeat(80));
        post("/forrst", &nested);
    });
    hit("batch", &|| post("/rpc", "[1,2,3]"));
    for start in ["", "GET /hea"] {
        hit("idle", &|| {
            let mut stream = connect(&address);
            stream.write_all(start.as_bytes()).unwrap();
            stream.read_to_end(&mut Vec::new()).unwrap();
        });
    }
    hit("idle", &|| {
        let mut stream = connect(&address);
        let get = format!("GET /health HTTP/1.1\r\nhost: {address}\r\n\r\n");
        stream.write_all(get.as_bytes()).unwrap();
        stream.read_to_end(&mut Vec::new()).unwrap();
    });
    hit("in_flight", &|| {
        let mut socket = open(&address, None).unwrap();
        let sleep = request("demo.sleep", json!({"ms": 200}));
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": "forrst.call", "params": sleep});
        for _ in 0..4 {
            socket.send(Message::text(call.to_string())).unwrap();
        }
        for _ in 0..4 {
            while !matches!(socket.read().unwrap(), Message::Text(_)) {}
        }
    });
}

#[test]
fn a_head_that_is_too_large_is_refused() {
    let (_serve, running) = server(&["--max-head", "16KiB"]);
    let address = running.address();
    for (size, status) in [(1_000, 200), (10_000, 200), (20_000, 431), (1_000_000, 431)] {
        let padding = "x".repeat(size);
        let text = format!(
            "GET /health HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\nx-padding: {padding}\r\n\r\n"
        );
        assert_eq!(exchange(connect(&address), &text).status, status, "{size}");
    }
    let many: String = (0..200)
        .map(|number| format!("x-{number}: 1\r\n"))
        .collect();
    let text = format!("GET /health HTTP/1.1\r\nhost: {address}\r\n{many}\r\n");
    assert_eq!(exchange(connect(&address), &text).status, 431);
}

/// Otherwise a client without a key could make the server keep as much as a caller with one.
#[test]
fn a_client_without_a_key_is_refused_before_its_body_is_read() {
    let guarded = Guarded::start(&[("a", &["--role", "call"])]);
    let address = guarded.address();
    for path in ["/forrst", "/rpc"] {
        for length in ["content-length: 1000000", "transfer-encoding: chunked"] {
            let mut stream = connect(&address);
            let head = format!(
                "POST {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n{length}\r\n\r\n"
            );
            stream.write_all(head.as_bytes()).unwrap();
            if length.ends_with("chunked") {
                let chunk = "x".repeat(0x4000);
                let chunk = format!("{:x}\r\n{chunk}\r\n", chunk.len());
                stream.write_all(chunk.as_bytes()).unwrap();
            }
            let mut status = [0; 12];
            stream.read_exact(&mut status).unwrap();
            assert_eq!(&status, b"HTTP/1.1 401", "{path} {length}");
        }
    }
    // Only as much is read as the id of the request takes.
    let refused = Transport::Http.ask(&address, None, &request("demo.echo", json!({})));
    assert_eq!(refused["id"], "req_1");
}

#[test]
fn connections_of_all_transports_are_counted_together() {
    let (serve, running) = server(&["--max-connections", "2", "--unix", "socket"]);
    let address = running.address();
    let path = serve.path("socket");
    let mut over_tcp = connect(&address);
    over_tcp
        .write_all(format!("GET /health HTTP/1.1\r\nhost: {address}\r\n\r\n").as_bytes())
        .unwrap();
    over_tcp.read_exact(&mut [0; 12]).unwrap();
    let over_unix = UnixStream::connect(&path).unwrap();
    until("both are counted", || {
        let mut third = UnixStream::connect(&path).unwrap();
        third
            .set_read_timeout(Some(Duration::from_millis(300)))
            .unwrap();
        let mut length = [0; 4];
        if third.read_exact(&mut length).is_err() {
            return false;
        }
        let mut answer = vec![0; u32::from_be_bytes(length) as usize];
        third.read_exact(&mut answer).unwrap();
        let answer: Value = serde_json::from_slice(&answer).unwrap();
        assert_eq!(code(&answer), Some("UNAVAILABLE"));
        assert_eq!(
            third.read(&mut [0]).unwrap(),
            0,
            "the connection is still open"
        );
        true
    });
    let get = |path: &str| {
        let text = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
        exchange(connect(&address), &text).status
    };
    // A full server is healthy, and must not be restarted.
    assert_eq!((get("/ready"), get("/health")), (503, 200));
    drop(over_unix);
    until("there is room", || get("/ready") == 200);
}

#[test]
fn a_client_that_sends_no_complete_head_is_disconnected() {
    let (_serve, running) = server(&["--idle-timeout", "300ms"]);
    let address = running.address();
    for start in [
        "",
        "GET /hea",
        "GET /health HTTP/1.1\r\nhost: local",
        "PRI * HTTP/2.0\r\n",
    ] {
        let mut stream = connect(&address);
        stream.write_all(start.as_bytes()).unwrap();
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        assert!(!rest.starts_with(b"HTTP/1.1 200"), "{start}");
    }
    // Sending one header after another does not extend the time.
    let mut stream = TcpStream::connect(&address).unwrap();
    stream.write_all(b"GET /health HTTP/1.1\r\n").unwrap();
    until("it is disconnected", || {
        std::thread::sleep(Duration::from_millis(50));
        stream.write_all(b"x: y\r\n").is_err()
    });
}
