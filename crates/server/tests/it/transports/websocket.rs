//! JSON-RPC over a WebSocket: many calls at once, pings, and how connections end.

use std::time::Duration;

use forrst_server::Limits;
use forrst_testkit::asynchronous::undisturbed;
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use crate::transports::host::{Host, LATE, short_timeouts, soon};
use crate::transports::http1::Http1;
use crate::transports::websocket_client::{End, Socket};
use crate::wire::{ask, expect, seconds};

#[tokio::test]
async fn many_calls_are_answered_as_they_are_ready() {
    let host = Host::start().await;
    let mut socket = Socket::connect(&host).await;
    socket.send(ask("test.gate").id("slow").rpc("slow")).await;
    for number in 0..200 {
        let request = ask("test.echo").arguments(json!({"number": number}));
        socket.send(request.rpc(number)).await;
    }
    let answers = socket.answers(200).await;
    for number in 0..200 {
        let answer = &answers[&number.to_string()];
        expect(answer, &json!({"result": {"result": {"number": number}}}));
    }
    host.seen.open_gate();
    expect(
        &socket.answer().await,
        &json!({"id": "slow", "result": {"id": "slow"}}),
    );
}

#[tokio::test]
async fn the_slowest_is_answered_last() {
    let host = Host::start().await;
    let mut socket = Socket::connect(&host).await;
    for ms in [400, 200, 0] {
        let request = ask("test.sleep").arguments(json!({"ms": ms}));
        socket.send(request.rpc(ms)).await;
    }
    for ms in [0, 200, 400] {
        expect(&socket.answer().await, &json!({"id": ms}));
    }
}

#[tokio::test]
async fn calls_beyond_the_in_flight_limit_are_answered_too() {
    let limits = Limits {
        max_in_flight: 3,
        ..Limits::default()
    };
    let host = Host::with(limits).await;
    let mut socket = Socket::connect(&host).await;
    for number in 0..30 {
        let request = ask("test.sleep").arguments(json!({"ms": 1}));
        socket.send(request.rpc(number)).await;
    }
    assert_eq!(socket.answers(30).await.len(), 30);
}

/// Each entry of a batch is a request, and one whose answer the client has not taken is still under way.
#[tokio::test]
async fn a_batch_counts_as_its_number_of_requests() {
    let limits = Limits {
        max_in_flight: 3,
        ..Limits::default()
    };
    let host = Host::with(limits).await;
    let mut holder = Socket::connect(&host).await;
    holder
        .send(ask("test.gate").lock(json!({"key": "k"})).rpc(0))
        .await;
    crate::wire::until("the lock is held", || host.seen.started() == 1).await;
    let mut socket = Socket::connect(&host).await;
    let waits = ask("test.gate").lock(json!({"key": "k", "block": seconds(60)}));
    let batch = |count: u64| Value::from((0..count).map(|id| waits.rpc(id)).collect::<Vec<_>>());
    socket.send(batch(2)).await;
    host.until_waiting(2).await;
    socket.send(batch(2)).await;
    socket.0.send(Message::Ping("x".into())).await.unwrap();
    while !matches!(socket.0.next().await, Some(Ok(Message::Pong(_)))) {}
    // It was read, but does not start.
    assert_eq!(host.server.locks().waiting(), 2);
    let mut other = Socket::connect(&host).await;
    other.send(batch(4)).await;
    expect(
        &other.answer().await,
        &json!({"id": null, "error": {"message": "a batch may have at most 3 entries"}}),
    );
}

#[tokio::test]
async fn a_binary_message_is_answered_like_a_text() {
    let host = Host::start().await;
    let mut socket = Socket::connect(&host).await;
    let frame = ask("test.echo").rpc(1).to_string();
    socket.0.send(Message::binary(frame)).await.unwrap();
    expect(
        &socket.answer().await,
        &json!({"id": 1, "result": {"result": {}}}),
    );
    socket
        .0
        .send(Message::binary(vec![0xff, 0xfe]))
        .await
        .unwrap();
    expect(
        &socket.answer().await,
        &json!({"id": null, "error": {"code": -32700}}),
    );
}

#[tokio::test]
async fn a_ping_is_answered_while_calls_are_under_way() {
    let host = Host::start().await;
    let mut socket = Socket::connect(&host).await;
    socket.send(ask("test.gate").rpc(1)).await;
    socket
        .0
        .send(Message::Ping("are you there".into()))
        .await
        .unwrap();
    let answer = soon(socket.0.next()).await.unwrap().unwrap();
    assert_eq!(answer, Message::Pong("are you there".into()));
    host.seen.open_gate();
    expect(&socket.answer().await, &json!({"id": 1}));
}

/// The client answers pings while it waits for messages.
#[tokio::test]
async fn a_client_that_answers_pings_may_stay_silent() {
    undisturbed(LATE, || async {
        let host = Host::with(short_timeouts()).await;
        let mut socket = Socket::connect(&host).await;
        let started = Instant::now();
        while started.elapsed() < Duration::from_millis(1200) {
            let waited = tokio::time::timeout(Duration::from_millis(50), socket.0.next()).await;
            match waited {
                Err(_) | Ok(Some(Ok(Message::Ping(_)))) => {}
                Ok(other) => panic!("{other:?}"),
            }
        }
        socket.send(ask("test.echo").rpc(1)).await;
        expect(&socket.answer().await, &json!({"id": 1}));
    })
    .await;
}

#[tokio::test]
async fn a_client_that_answers_pings_may_wait_long() {
    undisturbed(LATE, || async {
        let host = Host::with(short_timeouts()).await;
        let mut socket = Socket::connect(&host).await;
        let slow = ask("test.sleep").arguments(json!({"ms": 1200}));
        socket.send(slow.rpc(1)).await;
        expect(
            &socket.answer().await,
            &json!({"id": 1, "result": {"result": {"slept": 1200}}}),
        );
    })
    .await;
}

/// A server that reads no more requests must still read pongs.
#[tokio::test]
async fn a_client_with_all_its_calls_under_way_may_wait_long() {
    undisturbed(LATE, || async {
        let limits = Limits {
            max_in_flight: 1,
            ..short_timeouts()
        };
        let host = Host::with(limits).await;
        let mut socket = Socket::connect(&host).await;
        let slow = ask("test.sleep").arguments(json!({"ms": 1200}));
        socket.send(slow.rpc(1)).await;
        let answer = socket
            .next()
            .await
            .expect("ended although the client answers pings");
        expect(
            &answer,
            &json!({"id": 1, "result": {"result": {"slept": 1200}}}),
        );
    })
    .await;
}

#[tokio::test]
async fn a_client_that_answers_no_pings_is_disconnected_and_leaves_the_queue() {
    let host = Host::with(short_timeouts()).await;
    let mut holder = Socket::connect(&host).await;
    holder
        .send(ask("test.gate").lock(json!({"key": "k"})).rpc(1))
        .await;
    let alive = tokio::spawn(async move { holder.answer().await });
    crate::wire::until("the lock is held", || host.seen.started() == 1).await;
    let mut socket = Socket::connect(&host).await;
    let waits = ask("test.gate").lock(json!({"key": "k", "block": seconds(60)}));
    socket.send(waits.rpc(1)).await;
    host.until_waiting(1).await;
    // Pings are answered only while the socket is read.
    host.until_waiting(0).await;
    host.seen.open_gate();
    soon(alive).await.unwrap();
    assert_eq!(host.seen.started(), 1);
}

#[tokio::test]
async fn a_message_that_is_too_large_ends_only_its_own_connection() {
    let limits = Limits {
        max_body: 1000,
        ..Limits::default()
    };
    let host = Host::with(limits).await;
    let mut neighbour = Socket::connect(&host).await;
    let mut socket = Socket::connect(&host).await;
    let fits = ask("test.echo").arguments(json!({"x": "x".repeat(700)}));
    socket.send(fits.rpc(1)).await;
    expect(&socket.answer().await, &json!({"id": 1}));
    socket.send("x".repeat(1001)).await;
    let (answers, end) = socket.rest().await;
    assert!(answers.is_empty(), "{answers:?}");
    let End::Close(Some(frame)) = end else {
        panic!("a close frame should say why: {end:?}");
    };
    assert_eq!(frame.code, CloseCode::Size, "{frame:?}");
    neighbour.send(ask("test.echo").rpc(1)).await;
    expect(&neighbour.answer().await, &json!({"id": 1}));
}

#[tokio::test]
async fn a_close_is_answered_with_a_close() {
    let host = Host::start().await;
    let mut socket = Socket::connect(&host).await;
    socket.send(ask("test.echo").rpc(1)).await;
    socket.answer().await;
    socket.0.send(Message::Close(None)).await.unwrap();
    let (answers, end) = socket.rest().await;
    assert!(answers.is_empty());
    assert!(matches!(end, End::Close(_)), "{end:?}");
}

/// Sends a handshake with additional headers; the status of its answer.
async fn handshake(host: &Host, line: &str, headers: &str) -> u16 {
    let mut client = Http1::connect(host).await;
    let text = format!(
        "{line} HTTP/1.1\r\n{headers}\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n"
    );
    client.send(text).await;
    client.answer().await.status
}

const VERSION: &str = "sec-websocket-version: 13";
const KEY: &str = "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==";

#[tokio::test]
async fn an_invalid_handshake_is_refused() {
    let host = Host::start().await;
    for (line, headers) in [
        (
            "GET /rpc",
            format!("host: test\r\n{KEY}\r\nsec-websocket-version: 8"),
        ),
        ("GET /rpc", format!("host: test\r\n{VERSION}")),
        ("POST /rpc", format!("host: test\r\n{KEY}\r\n{VERSION}")),
        ("GET /forrst", format!("host: test\r\n{KEY}\r\n{VERSION}")),
    ] {
        let status = handshake(&host, line, &headers).await;
        assert!((400..500).contains(&status), "{line} {headers}: {status}");
    }
}

/// A browser sends the origin of a web page, which must not make calls on behalf of its visitor.
#[tokio::test]
async fn a_web_page_of_another_origin_is_refused() {
    let host = Host::start().await;
    for (origin, status) in [
        ("", 101),
        ("\r\norigin: http://test:7420", 101),
        ("\r\norigin: https://TEST:7420", 101),
        ("\r\norigin: http://evil.example", 403),
        ("\r\norigin: http://test:7421", 403),
        ("\r\norigin: http://test:7420.evil.example", 403),
        ("\r\norigin: null", 403),
        ("\r\norigin: ", 403),
    ] {
        let headers = format!("host: test:7420\r\n{KEY}\r\n{VERSION}{origin}");
        let actual = handshake(&host, "GET /rpc", &headers).await;
        assert_eq!(actual, status, "{origin:?}");
    }
}
