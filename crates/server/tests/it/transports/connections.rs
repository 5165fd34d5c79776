//! The limit on open connections, and the answer of a full server.

use forrst_server::Limits;
use serde_json::json;

use crate::transports::host::Host;
use crate::transports::http1::{Http1, post};
use crate::transports::http2::Http2;
use crate::transports::websocket_client::Socket;
use crate::wire::{ask, expect};

async fn with_max_connections(max_connections: usize) -> Host {
    Host::with(Limits {
        max_connections,
        ..Limits::default()
    })
    .await
}

/// Expects that a connection is refused because the server is full.
async fn expect_full(host: &Host) {
    for sends in [post("/forrst", &ask("test.echo").text()), String::new()] {
        let mut client = Http1::connect(host).await;
        client.try_send(&sends).await;
        let answer = client.answer().await;
        assert_eq!(answer.status, 503);
        assert_eq!(answer.header("connection"), Some("close"));
        assert_eq!(answer.header("retry-after"), Some("1"));
        assert_eq!(answer.header("content-type"), Some("application/json"));
        assert_eq!(answer.header("x-forrst-node"), Some("node-test"));
        assert!(answer.header("x-forrst-duration-ms").is_some());
        let expected = json!({
            "protocol": {"name": "forrst", "version": "0.1.0"},
            "id": null,
            "result": null,
            "errors": [{"code": "UNAVAILABLE", "message": "<text>"}],
            "meta": {"node": "node-test"},
        });
        expect(&answer.json(), &expected);
        assert!(client.rest().await.is_empty(), "more than the answer came");
    }
}

/// Waits until a permit is free, and connects.
async fn expect_free(host: &Host) -> Http1 {
    let give_up = tokio::time::Instant::now() + forrst_testkit::PATIENCE;
    loop {
        let mut client = Http1::connect(host).await;
        client
            .try_send("GET /health HTTP/1.1\r\nhost: test\r\n\r\n")
            .await;
        if client.answer().await.status == 200 {
            return client;
        }
        assert!(tokio::time::Instant::now() < give_up, "no permit was freed");
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_connection_beyond_the_limit_is_refused_until_a_permit_is_free() {
    let host = with_max_connections(2).await;
    let mut first = Http1::connect(&host).await;
    first.expect_alive().await;
    let mut second = Http1::connect(&host).await;
    second.expect_alive().await;
    for _ in 0..10 {
        expect_full(&host).await;
    }
    first.expect_alive().await;
    drop(second);
    let mut third = expect_free(&host).await;
    third.expect_alive().await;
    first.expect_alive().await;
    expect_full(&host).await;
}

#[tokio::test]
async fn a_connection_that_fails_during_a_request_frees_its_permit() {
    let host = with_max_connections(1).await;
    for sends in [
        "",
        "POST /forrst HT",
        "POST /forrst HTTP/1.1\r\ncontent-length: 9\r\n\r\n{",
    ] {
        let mut client = expect_free(&host).await;
        client.send(sends).await;
        drop(client);
    }
    expect_free(&host).await;
}

#[tokio::test]
async fn an_http2_connection_takes_one_permit_for_all_its_streams() {
    let host = with_max_connections(1).await;
    let client = Http2::connect(&host).await;
    let calls: Vec<_> = (0..10)
        .map(|_| tokio::spawn(client.ask(&ask("test.gate"))))
        .collect();
    crate::wire::until("all run", || host.seen.started() == 10).await;
    expect_full(&host).await;
    for call in calls {
        host.seen.open_gate();
        assert_eq!(crate::transports::host::soon(call).await.unwrap().0, 200);
    }
    client.disconnect();
    expect_free(&host).await;
}

#[tokio::test]
async fn a_websocket_keeps_its_permit_until_it_is_closed() {
    let host = with_max_connections(1).await;
    let mut socket = Socket::connect(&host).await;
    socket.send(ask("test.echo").rpc(1)).await;
    socket.answer().await;
    expect_full(&host).await;
    drop(socket);
    expect_free(&host).await;
}
