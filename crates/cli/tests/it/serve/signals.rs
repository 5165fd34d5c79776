//! The shutdown of a server by signals.

use std::io::{Read, Write};
use std::net::TcpStream;

use forrst_testkit::{request, until};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::serve::command::{demo, serve};
use crate::serve::request::locked;
use crate::serve::unix_socket::Frames;

fn sleep(ms: u64) -> Value {
    request("demo.sleep", json!({"ms": ms}))
}

#[test]
fn an_idle_server_ends_at_once() {
    for signal in [Signal::TERM, Signal::INT] {
        let serve = demo(&["--drain-timeout", "1h"]);
        let running = serve.start();
        assert_eq!(running.call("demo.echo", json!({}))["result"], json!({}));
        running.signal(signal);
        assert_eq!(running.wait().code(), Some(0), "{}", running.errors());
        assert!(TcpStream::connect(running.address()).is_err());
    }
}

#[test]
fn an_idle_connection_does_not_delay_the_shutdown() {
    let serve = demo(&["--drain-timeout", "1h"]);
    let running = serve.start();
    let mut idle = TcpStream::connect(running.address()).unwrap();
    idle.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        .unwrap();
    idle.read_exact(&mut [0; 12]).unwrap();
    running.signal(Signal::TERM);
    assert_eq!(running.wait().code(), Some(0));
}

#[test]
fn at_shutdown_waiters_get_unavailable_and_running_functions_end() {
    let serve = demo(&["--drain-timeout", "1m", "--unix", "socket"]);
    let running = serve.start();
    let holds = running.start_ask(locked(sleep(3_000), "k"));
    running.until_locked("lock:k");
    let mut waits = Frames::connect(&serve.path("socket"));
    for _ in 0..3 {
        waits.send(&locked(sleep(0), "k"));
    }
    // Frames are handled in order: when this one is answered, the others are in progress.
    waits.send(&request("demo.echo", json!({})));
    assert_eq!(waits.answer()["result"], json!({}));
    running.signal(Signal::TERM);
    for _ in 0..3 {
        let answer = waits.answer();
        assert_eq!(answer["errors"][0]["code"], "UNAVAILABLE", "{answer:#}");
        let data = &answer["extensions"][0]["data"];
        assert_eq!(*data, json!({"key": "k", "acquired": false}));
    }
    until("no new connections are taken", || {
        TcpStream::connect(running.address()).is_err()
    });
    let answer = holds.join().unwrap().unwrap();
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.body["result"], json!({"slept_ms": 3_000}));
    assert_eq!(running.wait().code(), Some(0), "{}", running.errors());
}

#[test]
fn a_function_that_outlasts_the_drain_timeout_is_ended_and_its_lock_released() {
    let drain = &[
        "--demo",
        "--drain-timeout",
        "300ms",
        "--store",
        "embedded:locks",
    ];
    let serve = serve(drain);
    let running = serve.start();
    let call = running.start_ask(locked(sleep(600_000), "k"));
    running.until_locked("lock:k");
    running.signal(Signal::INT);
    let answer = call.join().unwrap().unwrap();
    assert_eq!(answer.status, 503, "{answer:?}");
    assert_eq!(answer.code(), Some("UNAVAILABLE"));
    assert!(answer.granted().is_some(), "{answer:?}");
    assert_eq!(running.wait().code(), Some(0), "{}", running.errors());
    // The next server on the same store finds the lock free, an hour before its lease would have ended.
    let running = serve.start();
    let status = "urn:cline:forrst:ext:atomic-lock:fn:status";
    let answer = running.call(status, json!({"key": "lock:k"}));
    assert_eq!(
        answer["result"],
        json!({"key": "lock:k", "locked": false, "waiters": 0})
    );
}

#[test]
fn a_second_signal_ends_the_server_at_once() {
    for (first, second) in [
        (Signal::TERM, Signal::TERM),
        (Signal::INT, Signal::INT),
        (Signal::TERM, Signal::INT),
    ] {
        let serve = demo(&["--drain-timeout", "1h"]);
        let running = serve.start();
        let mut stream = TcpStream::connect(running.address()).unwrap();
        let body = locked(sleep(600_000), "k").to_string();
        let head = "POST /forrst HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json";
        let text = format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        stream.write_all(text.as_bytes()).unwrap();
        running.until_locked("lock:k");
        running.signal(first);
        until("it has begun to end", || {
            running.errors().contains("shutting down")
        });
        assert!(!running.has_ended());
        running.signal(second);
        assert_eq!(running.wait().code(), Some(130), "{}", running.errors());
        // Cut off, without an answer.
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.is_empty(), "{}", String::from_utf8_lossy(&answer));
    }
}

#[test]
fn the_unix_socket_is_removed() {
    for _ in 0..10 {
        let serve = demo(&["--unix", "socket"]);
        let running = serve.start();
        let socket = serve.path("socket");
        until("it listens", || socket.exists());
        running.signal(Signal::TERM);
        assert_eq!(running.wait().code(), Some(0));
        assert!(!socket.exists(), "the socket was left behind");
    }
}
