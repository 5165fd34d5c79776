//! Graceful shutdown, as clients see it.

use std::time::Duration;

use forrst_server::Limits;
use serde_json::json;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use crate::transports::host::{Host, soon};
use crate::transports::http1::Http1;
use crate::transports::http2::Http2;
use crate::transports::websocket_client::{End, Socket};
use crate::wire::{ask, expect, seconds, until};

fn shut_down(host: &Host, drain: Duration) -> JoinHandle<()> {
    let server = host.server.clone();
    tokio::spawn(async move { server.shut_down(drain).await })
}

const LONG: Duration = Duration::from_secs(60);

#[tokio::test]
async fn waiters_are_refused_and_running_calls_are_drained() {
    let host = Host::start().await;
    let request = |id: &str| {
        ask("test.gate")
            .id(id)
            .lock(json!({"key": "k", "block": seconds(60)}))
    };
    let mut holder = Http1::connect(&host).await;
    holder.ask(&request("holds")).await;
    until("the lock is held", || host.seen.started() == 1).await;
    let mut http1 = Http1::connect(&host).await;
    http1.ask(&request("http1")).await;
    let client = Http2::connect(&host).await;
    let http2 = tokio::spawn(client.ask(&request("http2")));
    let mut socket = Socket::connect(&host).await;
    socket.send(request("websocket").rpc(1)).await;
    host.until_waiting(3).await;
    let mut idle = Http1::connect(&host).await;
    idle.expect_alive().await;
    let mut silent = Http1::connect(&host).await;

    let end = shut_down(&host, LONG);
    let unavailable =
        |id: &str| json!({"id": id, "result": null, "errors": [{"code": "UNAVAILABLE"}]});
    let answer = http1.answer().await;
    assert_eq!(answer.status, 503);
    expect(&answer.json(), &unavailable("http1"));
    let (status, _, body) = soon(http2).await.unwrap();
    assert_eq!(status, 503);
    expect(&body, &unavailable("http2"));
    let (answers, close) = socket.rest().await;
    assert_eq!(answers.len(), 1);
    expect(
        &answers[0],
        &json!({"id": 1, "result": unavailable("websocket")}),
    );
    let End::Close(Some(close)) = close else {
        panic!("a close frame should say why: {close:?}");
    };
    assert_eq!(close.code, CloseCode::Away);
    for connection in [&mut http1, &mut idle, &mut silent] {
        assert!(connection.rest().await.is_empty());
    }
    until("no new connections are taken", || {
        std::net::TcpStream::connect(host.address).is_err()
    })
    .await;
    assert!(!end.is_finished());
    host.seen.open_gate();
    expect(
        &holder.answer().await.json(),
        &json!({"id": "holds", "errors": "<absent>"}),
    );
    assert!(holder.rest().await.is_empty());
    soon(end).await.unwrap();
}

#[tokio::test]
async fn a_call_that_exceeds_the_drain_timeout_is_ended_with_an_answer() {
    let host = Host::start().await;
    let request = ask("test.gate").lock(json!({"key": "k"}));
    let mut client = Http1::connect(&host).await;
    client.ask(&request).await;
    let mut socket = Socket::connect(&host).await;
    socket.send(ask("test.gate").rpc(1)).await;
    until("both run", || host.seen.started() == 2).await;
    let end = shut_down(&host, Duration::from_millis(50));
    let answer = client.answer().await;
    assert_eq!(answer.status, 503);
    let expected =
        json!({"errors": [{"code": "UNAVAILABLE"}], "extensions": [{"data": {"acquired": true}}]});
    expect(&answer.json(), &expected);
    let expected = json!({"result": {"errors": [{"code": "UNAVAILABLE"}]}});
    expect(&socket.answer().await, &expected);
    soon(end).await.unwrap();
    assert_eq!(host.seen.dropped(), 2);
}

/// A client in the middle of a request, or one that does not read, cannot delay the shutdown.
#[tokio::test]
async fn a_client_that_hangs_does_not_delay_the_shutdown() {
    let host = Host::start().await;
    let mut half = Http1::connect(&host).await;
    half.send("POST /forrst HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ncontent-length: 10\r\n\r\n{").await;
    let mut socket = Socket::connect(&host).await;
    socket.send(ask("test.echo").rpc(1)).await;
    socket.answer().await;
    let silent = TcpStream::connect(host.address).await.unwrap();
    soon(shut_down(&host, Duration::from_millis(50)))
        .await
        .unwrap();
    drop((half, socket, silent));
}

/// No call is under way on the connection.
#[tokio::test]
async fn an_incomplete_head_does_not_use_up_the_drain_timeout() {
    let limits = Limits {
        idle_timeout: 10 * LONG,
        ..Limits::default()
    };
    let host = Host::with(limits).await;
    let mut half = Http1::connect(&host).await;
    half.send("POST /forrst HTTP/1.1\r\nhost: te").await;
    let mut alive = Http1::connect(&host).await;
    // By then, the incomplete head has arrived, too.
    alive.expect_alive().await;
    soon(shut_down(&host, 10 * LONG)).await.unwrap();
    assert!(half.rest().await.is_empty());
}
