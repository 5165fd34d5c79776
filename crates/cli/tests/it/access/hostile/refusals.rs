//! Floods of refused requests: they write much less to the log and the audit log than they send.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::access::client::{connect, post_text};
use crate::access::keys::Guarded;

/// The longest line, whatever is sent.
const MAX_LINE: usize = 2048;

fn guarded() -> Guarded {
    guarded_with(&[])
}

fn guarded_with(arguments: &[&str]) -> Guarded {
    let own = ["--audit-log", "audit.jsonl"];
    Guarded::with(&[&own, arguments].concat(), &[("a", &["--role", "call"])])
}

/// Ends the server, and compares the bytes that it has written with those that it was sent.
fn check(name: &str, guarded: &Guarded, sent: usize) {
    assert_eq!(guarded.running.terminate().code(), Some(0));
    let log = guarded.running.errors();
    let audit = fs::read_to_string(guarded.serve.path("audit.jsonl")).unwrap();
    let written = log.len() + audit.len();
    println!(
        "{name}: {sent} bytes sent, {written} written ({} log, {} audit)",
        log.len(),
        audit.len()
    );
    assert!(written < sent / 10, "{written} bytes written for {sent}");
    let longest = log.lines().chain(audit.lines()).map(str::len).max();
    assert!(longest < Some(MAX_LINE), "{longest:?}");
    for line in audit.lines() {
        let entry: Value = serde_json::from_str(line).unwrap();
        assert_eq!(entry["act"], "denied", "{line}");
        assert_eq!(entry["from"], "127.0.0.1", "{line}");
    }
    assert!(log.contains("more"), "the rest is counted: {log}");
    assert!(audit.is_empty() || audit.contains("more"), "{audit}");
}

/// Sends HTTP/1.1 requests one after another. The server may close the connection at any time.
fn send_all(address: &str, count: usize, text: &str) -> usize {
    let mut sent = 0;
    let mut stream = connect(address);
    for _ in 0..count {
        sent += text.len();
        if !ask(&mut stream, text) {
            stream = connect(address);
        }
    }
    sent
}

/// Whether the connection is open after the answer.
fn ask(stream: &mut TcpStream, text: &str) -> bool {
    if stream.write_all(text.as_bytes()).is_err() {
        return false;
    }
    let (mut answer, mut buffer) = (Vec::new(), [0; 8192]);
    loop {
        match stream.read(&mut buffer) {
            Ok(count @ 1..) => answer.extend_from_slice(&buffer[..count]),
            _ => return false,
        }
        let text = String::from_utf8_lossy(&answer);
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            continue;
        };
        let head = head.to_ascii_lowercase();
        let length = head.split("content-length: ").nth(1);
        let length = length.and_then(|rest| rest.split("\r\n").next()?.parse().ok());
        if body.len() >= length.unwrap_or(0) {
            return true;
        }
    }
}

fn keep_alive(text: &str) -> String {
    text.replace("connection: close\r\n", "")
}

#[test]
fn requests_without_a_key_are_counted_and_not_logged_one_by_one() {
    let guarded = guarded();
    let address = guarded.address();
    let call = forrst_testkit::request("demo.echo", Value::Null).to_string();
    let text = keep_alive(&post_text(&address, "/forrst", &[], &call));
    let sent = send_all(&address, 1_000, &text);
    let metrics = get("/metrics", "localhost");
    let sent = sent + send_all(&address, 100, &metrics);
    check("HTTP/1.1 without a key", &guarded, sent);
}

/// One hundred calls, in about 6 KB.
fn batch() -> String {
    let entry = r#"{"jsonrpc":"2.0","id":1,"method":"forrst.call","params":{}}"#;
    format!("[{}]", [entry; 100].join(","))
}

#[test]
fn batches_without_a_key_are_counted_and_not_logged_one_by_one() {
    let guarded = guarded();
    let address = guarded.address();
    let text = keep_alive(&post_text(&address, "/rpc", &[], &batch()));
    let sent = send_all(&address, 20, &text);
    check("batches of 6 KB without a key", &guarded, sent);
}

#[test]
fn a_batch_without_a_key_is_one_line() {
    let guarded = guarded();
    let address = guarded.address();
    send_all(&address, 1, &post_text(&address, "/rpc", &[], &batch()));
    guarded.running.terminate();
    let log = guarded.running.errors();
    let lines = log.lines().filter(|line| line.contains("UNAUTHORIZED"));
    assert_eq!(lines.count(), 1, "{log}");
    let audit = fs::read_to_string(guarded.serve.path("audit.jsonl")).unwrap();
    assert_eq!(audit.lines().count(), 1, "{audit}");
}

fn get(path: &str, host: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: {host}\r\n\r\n")
}

#[test]
fn forbidden_calls_are_counted_and_not_logged_one_by_one() {
    let guarded = guarded();
    let address = guarded.address();
    let key = format!("x-api-key: {}", guarded.keys[0]);
    let mut sent = 0;
    for number in 0..500 {
        // Refusals are counted by kind, which has neither the lock nor the id.
        let name = format!("{number}{}", "x".repeat(200));
        let mut call =
            crate::access::client::lock("force-release", json!({"key": format!("lock:{name}")}));
        call["id"] = name.into();
        let text = post_text(&address, "/forrst", &[&key], &call.to_string());
        sent += send_all(&address, 1, &keep_alive(&text));
    }
    check("forbidden calls", &guarded, sent);
}

#[test]
fn calls_over_the_rate_are_counted_and_not_logged_one_by_one() {
    let guarded = guarded_with(&["--max-rate", "1"]);
    let address = guarded.address();
    let key = format!("x-api-key: {}", guarded.keys[0]);
    let call = forrst_testkit::request("demo.echo", json!({})).to_string();
    let text = keep_alive(&post_text(&address, "/forrst", &[&key], &call));
    let sent = send_all(&address, 1_000, &text);
    check("calls over the rate", &guarded, sent);
}

#[test]
fn long_paths_are_cut() {
    let guarded = guarded();
    let address = guarded.address();
    let mut sent = 0;
    for host in ["evil.example", "localhost"] {
        for number in 0..50 {
            let path = format!("/{number}/{}", "x".repeat(6_000));
            sent += send_all(&address, 1, &get(&path, host));
        }
    }
    check("long paths", &guarded, sent);
}

#[test]
fn http2_requests_for_another_host_are_counted_and_not_logged_one_by_one() {
    let guarded = guarded();
    let mut sent = 0;
    let mut left = 10_000;
    while left > 0 {
        let mut connection = Http2::open(&guarded.address());
        while left > 0 && connection.flood(left.min(50)) {
            left = left.saturating_sub(50);
        }
        assert!(connection.refused > 0, "nothing was answered");
        sent += connection.sent;
    }
    check("HTTP/2 for another host", &guarded, sent);
}

/// A minimal HTTP/2 client: after the first request, a head has four bytes, which refer to the header table.
struct Http2 {
    stream: TcpStream,
    next: u32,
    sent: usize,
    refused: usize,
}

impl Http2 {
    const PATH: usize = 3_900;

    fn open(address: &str) -> Self {
        let mut connection = Self {
            stream: connect(address),
            next: 1,
            sent: 0,
            refused: 0,
        };
        connection.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        connection.frame(4, 0, 0, &[]);
        // Answers are never held up by flow control.
        connection.frame(8, 0, 0, &(0x7fff_ffff_u32 - 65_535).to_be_bytes());
        connection
    }

    fn send(&mut self, bytes: &[u8]) -> bool {
        self.sent += bytes.len();
        self.stream.write_all(bytes).is_ok()
    }

    fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> bool {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let mut frame = length[1..].to_vec();
        frame.extend([kind, flags]);
        frame.extend(stream.to_be_bytes());
        frame.extend(payload);
        self.send(&frame)
    }

    /// Sends `count` requests, and reads their answers. Whether the connection is still open.
    fn flood(&mut self, count: usize) -> bool {
        for _ in 0..count {
            let head = match self.next {
                1 => Self::first_head(),
                // GET, http, and the two that the first head has added to the table.
                _ => vec![0x82, 0x86, 0x80 | 62, 0x80 | 63],
            };
            // END_STREAM and END_HEADERS.
            if !self.frame(1, 0x5, self.next, &head) {
                return false;
            }
            self.next += 2;
        }
        let mut ended = 0;
        while ended < count {
            let mut head = [0; 9];
            if self.stream.read_exact(&mut head).is_err() {
                return false;
            }
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let mut payload = vec![0; length as usize];
            if self.stream.read_exact(&mut payload).is_err() {
                return false;
            }
            match (head[3], head[4]) {
                (0 | 1, flags) if flags & 1 == 1 => {
                    ended += 1;
                    self.refused += 1;
                }
                // RST_STREAM.
                (3, _) => ended += 1,
                // GOAWAY.
                (7, _) => return false,
                (4, 0) => {
                    self.frame(4, 1, 0, &[]);
                }
                _ => {}
            }
        }
        true
    }

    fn first_head() -> Vec<u8> {
        let mut head = vec![0x82, 0x86];
        // :path and :authority, added to the table.
        head.push(0x44);
        let path = format!("/{}", "x".repeat(Self::PATH - 1));
        // A length of 7 bits and the rest in groups of seven.
        head.push(0x7f);
        let mut rest = path.len() - 127;
        while rest >= 128 {
            head.push(u8::try_from(rest % 128).unwrap() | 0x80);
            rest /= 128;
        }
        head.push(u8::try_from(rest).unwrap());
        head.extend(path.as_bytes());
        head.extend([0x41, 12]);
        head.extend(b"evil.example");
        head
    }
}
