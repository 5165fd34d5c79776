//! The limits on bodies, frames and messages: their size, the budget of bytes, and the time in which they must arrive.

use std::time::Duration;

use forrst_server::Limits;
use serde_json::json;
use tokio::io::AsyncWriteExt;

use crate::transports::host::{Host, soon};
use crate::transports::http1::{Http1, post};
use crate::transports::http2::Http2;
use crate::transports::unix_client::{Frames, UnixHost, frame};
use crate::transports::websocket_client::{End, Socket};
use crate::wire::{Ask, ask, expect};

fn small() -> Limits {
    Limits {
        max_body: 1000,
        ..Limits::default()
    }
}

/// A request of exactly this many bytes.
fn sized(bytes: usize) -> String {
    let text = |filling: usize| {
        ask("test.echo")
            .arguments(json!({"x": "x".repeat(filling)}))
            .text()
    };
    let body = text(bytes - text(0).len());
    assert_eq!(body.len(), bytes);
    body
}

#[tokio::test]
async fn a_body_may_be_as_large_as_the_limit_and_no_larger() {
    let host = Host::with(small()).await;
    let mut client = Http1::connect(&host).await;
    client
        .check(&post("/forrst", &sized(1000)), 200, &json!({"id": "req_1"}))
        .await;
    let refused = json!({"id": null, "result": null, "errors": [{"code": "INVALID_REQUEST", "message": "<text>"}]});
    client
        .check(&post("/forrst", &sized(1001)), 413, &refused)
        .await;
    // With a `Content-Length`, it is refused before it is sent.
    for path in ["/forrst", "/rpc"] {
        let mut client = Http1::connect(&host).await;
        client.send(format!("POST {path} HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ncontent-length: 1001\r\n\r\n")).await;
        assert_eq!(client.answer().await.status, 413);
    }
    assert_eq!(host.seen.started(), 1);
}

#[tokio::test]
async fn a_body_in_chunks_is_refused_when_it_grows_too_large() {
    let host = Host::with(small()).await;
    for path in ["/forrst", "/rpc"] {
        let mut client = Http1::connect(&host).await;
        client.send(format!("POST {path} HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")).await;
        for _ in 0..3 {
            client
                .try_send(format!("190\r\n{}\r\n", "x".repeat(400)))
                .await;
        }
        // There is no last chunk: it must be refused for what has arrived.
        assert_eq!(client.answer().await.status, 413, "{path}");
    }
    let mut client = Http1::connect(&host).await;
    let body = sized(1000);
    let (first, second) = body.split_at(500);
    let chunked = format!("1f4\r\n{first}\r\n1f4\r\n{second}\r\n0\r\n\r\n");
    client.check(
        &format!("POST /forrst HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n{chunked}"),
        200,
        &json!({"id": "req_1"}),
    ).await;
    client.expect_alive().await;
}

/// A client that sends megabytes before it reads the answer still gets it.
#[tokio::test]
async fn a_large_body_is_refused_with_an_answer_that_arrives() {
    let host = Host::with(small()).await;
    for _ in 0..5 {
        let mut client = Http1::connect(&host).await;
        let body = "x".repeat(3_000_000);
        client.try_send(post("/forrst", &body)).await;
        assert_eq!(client.answer().await.status, 413);
    }
    assert_eq!(host.seen.started(), 0);
}

#[tokio::test]
async fn a_client_that_expects_continue_is_answered_before_it_sends() {
    let host = Host::with(small()).await;
    let head = |length: usize| {
        format!(
            "POST /forrst HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\nexpect: 100-continue\r\ncontent-length: {length}\r\n\r\n"
        )
    };
    let body = sized(1000);
    let mut client = Http1::connect(&host).await;
    client.send(head(body.len())).await;
    assert_eq!(client.answer().await.status, 100);
    client.check(&body, 200, &json!({})).await;
    let mut client = Http1::connect(&host).await;
    client.send(head(1001)).await;
    assert_eq!(client.answer().await.status, 413);
}

/// Calls that wait for a lock, each with a large body.
fn large_call(number: u32) -> Ask {
    ask("test.gate")
        .id(number.to_string())
        .arguments(json!({"padding": "x".repeat(90_000)}))
        .lock(json!({"key": "k", "scope": "global", "block": {"value": 4, "unit": "minute"}}))
}

fn small_budget() -> Limits {
    Limits {
        max_body: 100_000,
        max_bytes_per_connection: 400_000,
        ..Limits::default()
    }
}

const OVER_BUDGET: &str = "Too many bytes are under way on this connection";

/// Three quarters of the connection's bytes are for large requests.
const FIT: usize = 3;

#[tokio::test]
async fn large_requests_that_wait_stay_within_the_budget_over_http2() {
    let host = Host::with(small_budget()).await;
    let client = Http2::connect(&host).await;
    let mut calls = tokio::task::JoinSet::new();
    for number in 0..20 {
        calls.spawn(client.ask(&large_call(number)));
    }
    for _ in FIT..20 {
        let (status, _, body) = soon(calls.join_next()).await.unwrap().unwrap();
        assert_eq!(status, 429);
        let expected = json!({"errors": [{"code": "RATE_LIMITED", "message": OVER_BUDGET, "details": {"retry_after": {}}}]});
        expect(&body, &expected);
    }
    // One holds the lock, the others wait for it; a small request still gets through.
    host.until_waiting(FIT - 1).await;
    assert_eq!(soon(client.ask(&ask("test.echo"))).await.0, 200);
    for _ in 0..FIT {
        host.seen.open_gate();
        assert_eq!(soon(calls.join_next()).await.unwrap().unwrap().0, 200);
    }
    // All bytes have been given back.
    host.seen.open_gate();
    assert_eq!(soon(client.ask(&large_call(99))).await.0, 200);
}

#[tokio::test]
async fn large_requests_that_wait_stay_within_the_budget_over_a_websocket() {
    check_websocket(small_budget(), OVER_BUDGET).await;
    let limits = Limits {
        max_body: 100_000,
        max_bytes_per_caller: 400_000,
        ..Limits::default()
    };
    check_websocket(limits, "Too many bytes of this caller are under way").await;
}

/// A request that does not fit is refused by an answer, and the connection stays open.
async fn check_websocket(limits: Limits, why: &str) {
    let host = Host::with(limits).await;
    let mut socket = Socket::connect(&host).await;
    for number in 0..20 {
        socket.send(large_call(number).rpc(number)).await;
    }
    for _ in FIT..20 {
        let answer = socket.answer().await;
        let refused = json!({"result": {"errors": [{"code": "RATE_LIMITED", "message": why}]}});
        expect(&answer, &refused);
        // The refusal has the id of its request.
        assert_eq!(answer["result"]["id"], answer["id"].to_string());
    }
    host.until_waiting(FIT - 1).await;
    for _ in 0..FIT {
        host.seen.open_gate();
        expect(
            &socket.answer().await,
            &json!({"result": {"errors": "<absent>"}}),
        );
    }
    host.seen.open_gate();
    socket.send(large_call(99).rpc(99)).await;
    expect(
        &socket.answer().await,
        &json!({"result": {"errors": "<absent>"}}),
    );
}

/// A request that is refused for its size must not be kept until its turn.
#[tokio::test]
async fn a_request_beyond_the_budget_is_refused_at_once() {
    let host = Host::with(Limits {
        max_in_flight: 1,
        ..small_budget()
    })
    .await;
    let mut socket = Socket::connect(&host).await;
    // One is under way, and as many as fit wait for it.
    for number in (0..).take(FIT + 1) {
        socket.send(large_call(number).rpc(number)).await;
    }
    let refused = json!({"id": FIT, "result": {"errors": [{"message": OVER_BUDGET}]}});
    expect(&socket.answer().await, &refused);
    for number in 0..FIT {
        host.seen.open_gate();
        expect(&socket.answer().await, &json!({"id": number}));
    }
}

/// A body without a `Content-Length` takes its bytes as it arrives.
#[tokio::test]
async fn a_chunked_body_takes_bytes_as_it_grows() {
    let host = Host::with(small_budget()).await;
    let body = ask("test.echo")
        .arguments(json!({"padding": "x".repeat(60_000)}))
        .text();
    let mut client = Http1::connect(&host).await;
    let head = "POST /forrst HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
    let (first, rest) = body.split_at(20_000);
    let chunk = |part: &str| format!("{:x}\r\n{part}\r\n", part.len());
    client
        .send(format!("{head}{}{}0\r\n\r\n", chunk(first), chunk(rest)))
        .await;
    let answer = client.answer().await;
    assert_eq!(answer.status, 200);
}

/// One frame of more than 16 KiB may arrive at a time.
fn tiny_budget() -> Limits {
    Limits {
        max_body: 100_000,
        max_bytes: 200_000,
        ..Limits::default()
    }
}

/// Waits until a frame is refused more bytes.
async fn until_no_room(host: &Host) {
    let mut client = Http1::connect(host).await;
    soon(async {
        loop {
            client
                .send("GET /metrics HTTP/1.1\r\nhost: test\r\n\r\n")
                .await;
            let metrics = client.answer().await.body;
            let metrics = String::from_utf8(metrics).unwrap();
            if metrics.contains("forrst_limits_hit_total{limit=\"bytes\"} 1\n") {
                return;
            }
        }
    })
    .await;
}

/// A frame of a WebSocket as clients send it, masked with zeros.
fn websocket_frame(first: u8, payload: &str) -> Vec<u8> {
    let mut frame = vec![first, 0x80 | 127];
    frame.extend((payload.len() as u64).to_be_bytes());
    frame.extend([0; 4]);
    frame.extend(payload.as_bytes());
    frame
}

const TEXT: u8 = 0x01;
const LAST: u8 = 0x80;
const PING: [u8; 6] = [0x89, 0x80, 0, 0, 0, 0];

#[tokio::test]
async fn unfinished_messages_are_read_only_while_there_is_room() {
    let message = ask("test.echo").arguments(json!({"x": "x".repeat(90_000)}));
    let message = message.rpc(1).to_string();
    let whole = websocket_frame(LAST | TEXT, &message);
    // In fragments, with a ping between them.
    let (first, last) = message.split_at(80_000);
    let mut fragments = websocket_frame(TEXT, first);
    fragments.extend(PING);
    fragments.extend(websocket_frame(LAST, last));
    for message in [whole, fragments] {
        let host = Host::with(tiny_budget()).await;
        let (start, end) = message.split_at(message.len() - 10);
        let (mut one, mut other) = (Socket::connect(&host).await, Socket::connect(&host).await);
        for socket in [&mut one, &mut other] {
            soon(socket.0.get_mut().write_all(start)).await.unwrap();
        }
        until_no_room(&host).await;
        // Neither is lost. The end of one makes room for the other.
        drop(one);
        soon(other.0.get_mut().write_all(end)).await.unwrap();
        expect(&other.answer().await, &json!({"result": {"id": "req_1"}}));
    }
}

#[tokio::test]
async fn unfinished_frames_are_read_only_while_there_is_room() {
    let unix = UnixHost::start(Host::with(tiny_budget()).await).await;
    let (mut one, mut other) = (
        Frames::connect(&unix.socket).await,
        Frames::connect(&unix.socket).await,
    );
    let frame = frame(&sized(90_000));
    let (start, end) = frame.split_at(frame.len() - 10);
    for client in [&mut one, &mut other] {
        client.send(start).await;
    }
    until_no_room(&unix.host).await;
    drop(one);
    other.send(end).await;
    expect(
        &other.answer().await,
        &json!({"id": "req_1", "errors": "<absent>"}),
    );
}

fn short_body_timeout() -> Limits {
    Limits {
        body_timeout: Duration::from_millis(300),
        ..tiny_budget()
    }
}

/// Pings between the fragments of a message do not extend its deadline.
#[tokio::test]
async fn a_message_that_does_not_arrive_in_time_ends_its_connection() {
    let host = Host::with(short_body_timeout()).await;
    let mut socket = Socket::connect(&host).await;
    let start = websocket_frame(TEXT, &"x".repeat(80_000));
    soon(socket.0.get_mut().write_all(&start)).await.unwrap();
    let end = soon(async {
        loop {
            // It may be closed by now.
            let _ = socket.0.get_mut().write_all(&PING).await;
            let next = tokio::time::timeout(Duration::from_millis(20), socket.next());
            if let Ok(next) = next.await {
                return next.unwrap_err();
            }
        }
    })
    .await;
    // Unread pings may make the kernel reset the connection, and the close frame is lost then.
    if let End::Close(Some(frame)) = end {
        assert_eq!(frame.reason.as_str(), "the message did not arrive in time");
    }
    // Its bytes are free for others.
    let mut other = Socket::connect(&host).await;
    let whole = ask("test.echo").arguments(json!({"x": "x".repeat(90_000)}));
    other.send(whole.rpc(1)).await;
    expect(&other.answer().await, &json!({"result": {"id": "req_1"}}));
}

#[tokio::test]
async fn a_frame_that_does_not_arrive_in_time_ends_its_connection() {
    let unix = UnixHost::start(Host::with(short_body_timeout()).await).await;
    let mut client = Frames::connect(&unix.socket).await;
    let frame = frame(&sized(90_000));
    client.send(&frame[..80_000]).await;
    let message = "The frame did not arrive in time";
    let refused = json!({"id": null, "errors": [{"code": "INVALID_REQUEST", "message": message}]});
    expect(&client.answer().await, &refused);
    assert_eq!(client.next().await, None);
}
