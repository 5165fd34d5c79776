//! Hostile input of clients: none of it stops the server or stays in its memory.

mod floods;
mod inputs;
mod refusals;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use forrst_testkit::{Running, Serve, request};
use serde_json::json;

use self::inputs::{Hostile, Through, inputs};
use crate::access::client::{Transport, code};
use crate::access::keys::{FORRST, Guarded};

/// How long to wait for an answer. Many of these inputs get none.
const ANSWER_TIME: Duration = Duration::from_millis(400);

/// Enough for the buffers of all connections at once. A leak of what is sent here would be far more.
const MAX_GROWTH: u64 = 48 * 1024 * 1024;

#[test]
fn there_are_many_inputs_and_each_has_a_name() {
    let inputs = inputs();
    assert!(inputs.len() >= 100, "{}", inputs.len());
    let names: std::collections::BTreeSet<&str> = inputs.iter().map(|input| input.name).collect();
    assert_eq!(names.len(), inputs.len(), "two inputs have the same name");
}

#[test]
fn a_server_without_keys_survives_them() {
    let own = &[
        "--demo",
        "--store",
        "memory:",
        "--unix",
        "socket",
        "--idle-timeout",
        "2s",
    ];
    let serve = Serve::new(FORRST, own);
    let running = serve.start();
    let alive = || {
        let answer = running.call("demo.echo", json!({"x": 1}));
        assert_eq!(answer["result"], json!({"x": 1}));
    };
    check(&running, &serve.path("socket"), None, alive);
}

#[test]
fn a_server_with_keys_survives_them() {
    let arguments = &["--unix", "socket", "--idle-timeout", "2s"];
    let guarded = Guarded::with(arguments, &[("a", &["--role", "call"])]);
    let alive = || {
        let echo = request("demo.echo", json!({"x": 1}));
        let answer = Transport::Http.ask(&guarded.address(), Some(&guarded.keys[0]), &echo);
        assert_eq!(code(&answer), None);
    };
    let key = Some(guarded.keys[0].as_str());
    check(&guarded.running, &guarded.serve.path("socket"), key, alive);
}

fn check(running: &Running, socket: &Path, key: Option<&str>, alive: impl Fn()) {
    let inputs = inputs();
    let address = running.address();
    let round = |check_answers: bool| {
        let next = Mutex::new(inputs.iter());
        std::thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| {
                    loop {
                        let Some(input) = next.lock().unwrap().next() else {
                            break;
                        };
                        let answer = send(input, &address, socket, key);
                        if check_answers {
                            check_status(input, &answer);
                        }
                    }
                });
            }
        });
        assert!(!running.has_ended(), "it ended:\n{}", running.errors());
        alive();
    };
    round(true);
    let before = resident_bytes(running);
    for _ in 0..4 {
        round(false);
    }
    let grown = resident_bytes(running).saturating_sub(before);
    assert!(grown < MAX_GROWTH, "it has grown by {grown} bytes");
    let errors = running.errors();
    assert!(!errors.contains("panicked"), "{errors}");
}

/// Checks that the status reports an error of the client.
fn check_status(input: &Hostile, answer: &[u8]) {
    let Through::Http = input.through else { return };
    let Some(head) = answer.get(..12) else { return };
    let head = String::from_utf8_lossy(head);
    if let Some(status) = head.strip_prefix("HTTP/1.1 ") {
        let is_right = status.starts_with('4') || (status == "200" && input.may_be_200);
        assert!(is_right, "{}: {status}", input.name);
    }
}

fn send(input: &Hostile, address: &str, socket: &Path, key: Option<&str>) -> Vec<u8> {
    match input.through {
        Through::Http => talk(TcpStream::connect(address).unwrap(), &input.bytes),
        Through::Unix => {
            let mut stream = UnixStream::connect(socket).unwrap();
            stream.set_read_timeout(Some(ANSWER_TIME)).unwrap();
            let _ = stream.write_all(&input.bytes);
            let _ = stream.shutdown(Shutdown::Write);
            listen(&mut stream)
        }
        Through::WebSocket => {
            let key = key
                .map(|key| format!("x-api-key: {key}\r\n"))
                .unwrap_or_default();
            let upgrade = format!(
                "GET /rpc HTTP/1.1\r\nhost: {address}\r\nupgrade: websocket\r\nconnection: upgrade\r\n\
                 sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n{key}\r\n"
            );
            let mut stream = TcpStream::connect(address).unwrap();
            stream
                .set_read_timeout(Some(Duration::from_secs(20)))
                .unwrap();
            stream.write_all(upgrade.as_bytes()).unwrap();
            let mut switched = [0; 12];
            stream.read_exact(&mut switched).unwrap();
            assert_eq!(&switched, b"HTTP/1.1 101");
            talk(stream, &input.bytes)
        }
    }
}

fn talk(mut stream: TcpStream, bytes: &[u8]) -> Vec<u8> {
    stream.set_read_timeout(Some(ANSWER_TIME)).unwrap();
    stream
        .set_write_timeout(Some(Duration::from_secs(5)))
        .unwrap();
    // A server that refuses the input does not read the rest.
    let _ = stream.write_all(bytes);
    listen(&mut stream)
}

fn listen(stream: &mut impl Read) -> Vec<u8> {
    let mut answer = Vec::new();
    let _ = stream.take(64 * 1024).read_to_end(&mut answer);
    answer
}

fn resident_bytes(running: &Running) -> u64 {
    let pages = std::fs::read_to_string(format!("/proc/{}/statm", running.id())).unwrap();
    let resident: u64 = pages.split(' ').nth(1).unwrap().parse().unwrap();
    resident * 4096
}
