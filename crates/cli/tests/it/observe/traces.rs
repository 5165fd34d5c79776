//! Spans are exported to an OpenTelemetry collector.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;

use forrst_testkit::{Serve, request};
use rustix::process::Signal;
use serde_json::json;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

/// The body of one request to a collector.
fn receive(mut stream: TcpStream) -> Vec<u8> {
    let mut received = Vec::new();
    let mut some = [0; 4096];
    loop {
        let count = stream.read(&mut some).unwrap();
        received.extend_from_slice(&some[..count]);
        let head = received.windows(4).position(|bytes| bytes == b"\r\n\r\n");
        let Some(head) = head else { continue };
        let text = String::from_utf8_lossy(&received[..head]).to_lowercase();
        assert!(text.starts_with("post /v1/traces"), "{text}");
        let length = text.split("content-length: ").nth(1).unwrap();
        let length: usize = length.lines().next().unwrap().trim().parse().unwrap();
        if count == 0 || received.len() >= head + 4 + length {
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
            stream.write_all(answer).unwrap();
            return received.split_off(head + 4);
        }
    }
}

#[test]
fn request_wait_function_and_store_are_spans_of_the_callers_trace() {
    let collector = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", collector.local_addr().unwrap());
    let (sender, bodies) = mpsc::channel();
    thread::spawn(move || {
        for stream in collector.incoming() {
            let _ = sender.send(receive(stream.unwrap()));
        }
    });
    let serve = Serve::new(
        env!("CARGO_BIN_EXE_forrst"),
        &["--demo", "--store", "memory:"],
    );
    let running = serve
        .variable("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint)
        .start();
    let mut call = request("demo.echo", json!({}));
    let options = json!({"key": "secret-4111", "ttl": {"value": 30, "unit": "second"}});
    call["extensions"] = json!([{"urn": "urn:forrst:ext:atomicLock", "options": options}]);
    let body = call.to_string();
    let mut stream = TcpStream::connect(running.address()).unwrap();
    write!(
        stream,
        "POST /forrst HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
         traceparent: 00-{TRACE}-00f067aa0ba902b7-01\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    stream.read_to_end(&mut Vec::new()).unwrap();
    running.signal(Signal::TERM);
    assert_eq!(running.wait().code(), Some(0));

    let sent: Vec<u8> = bodies.try_iter().flatten().collect();
    let has = |bytes: &[u8]| sent.windows(bytes.len()).any(|window| window == bytes);
    for name in ["request", "wait", "function", "store", "demo.echo"] {
        assert!(has(name.as_bytes()), "no {name}");
    }
    let trace: Vec<u8> = (0..TRACE.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&TRACE[at..at + 2], 16).unwrap())
        .collect();
    assert!(has(&trace), "not of the caller's trace");
    assert!(!has(b"4111"), "a key is in the trace");
}
