//! Spans are exported to an OpenTelemetry collector.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;

use forrst_testkit::{Serve, request};
use rustix::process::Signal;
use serde_json::{Value, json};

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

fn bytes(hex: &str) -> Vec<u8> {
    let digits = (0..hex.len()).step_by(2);
    let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    digits.map(byte).collect()
}

/// Calls a server that exports its spans, and returns its answer and the bytes that it exported.
fn exported(call: &Value, headers: &str) -> (Value, Vec<u8>) {
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
    let body = call.to_string();
    let mut stream = TcpStream::connect(running.address()).unwrap();
    write!(
        stream,
        "POST /forrst HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
         {headers}content-length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    running.signal(Signal::TERM);
    assert_eq!(running.wait().code(), Some(0));
    let (_, answer) = answer.split_once("\r\n\r\n").unwrap();
    let exported = bodies.try_iter().flatten().collect();
    (serde_json::from_str(answer).unwrap(), exported)
}

fn has(sent: &[u8], bytes: &[u8]) -> bool {
    sent.windows(bytes.len()).any(|window| window == bytes)
}

#[test]
fn the_span_id_in_the_answer_is_the_exported_one_and_the_caller_is_its_parent() {
    let mut call = request("demo.echo", json!({}));
    let options = json!({"trace_id": TRACE, "span_id": "00f067aa0ba902b7"});
    call["extensions"] = json!([{"urn": "urn:forrst:ext:tracing", "options": options}]);
    let other = "traceparent: 00-11111111111111111111111111111111-2222222222222222-01\r\n";
    for headers in ["", other] {
        let (answer, sent) = exported(&call, headers);
        let data = &answer["extensions"][0]["data"];
        assert_eq!(data["trace_id"], TRACE);
        // The members `trace_id`, `span_id` and `parent_span_id` of a span, as protobuf writes them.
        let mut span = [&[0x0a, 16][..], &bytes(TRACE)].concat();
        span.extend([0x12, 8]);
        span.extend(bytes(data["span_id"].as_str().unwrap()));
        assert!(has(&sent, &span), "the span of the answer is not exported");
        let parent = [&[0x22, 8][..], &bytes("00f067aa0ba902b7")].concat();
        assert!(has(&sent, &parent), "the caller's span is not its parent");
        assert!(!has(&sent, &bytes("2222222222222222")), "two parents");
    }
}

#[test]
fn request_wait_function_and_store_are_spans_of_the_callers_trace() {
    let mut call = request("demo.echo", json!({}));
    let options = json!({"key": "secret-4111", "ttl": {"value": 30, "unit": "second"}});
    call["extensions"] = json!([{"urn": "urn:forrst:ext:atomicLock", "options": options}]);
    let headers = format!("traceparent: 00-{TRACE}-00f067aa0ba902b7-01\r\n");
    let (_, sent) = exported(&call, &headers);
    for name in ["request", "wait", "function", "store", "demo.echo"] {
        assert!(has(&sent, name.as_bytes()), "no {name}");
    }
    assert!(has(&sent, &bytes(TRACE)), "not of the caller's trace");
    assert!(!has(&sent, b"4111"), "a key is in the trace");
}
