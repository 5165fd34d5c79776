//! Clients that disconnect: one that waits leaves the queue, and a function that runs is run to completion.

use forrst_server::Limits;
use serde_json::json;

use crate::transports::host::{Host, soon};
use crate::transports::http1::{Http1, post};
use crate::transports::http2::Http2;
use crate::transports::unix_client::{Frames, UnixHost, frame};
use crate::transports::websocket_client::Socket;
use crate::wire::{Ask, ask, expect, seconds, until};

fn waiting() -> Ask {
    ask("test.gate")
        .lock(json!({"key": "k", "scope": "global", "block": {"value": 4, "unit": "minute"}}))
}

/// Takes the lock, and returns the connection of its holder.
async fn hold(host: &Host) -> Http1 {
    let mut holder = Http1::connect(host).await;
    holder.ask(&waiting()).await;
    until("the lock is held", || host.seen.started() == 1).await;
    holder
}

/// Expects that no call waits any more, the holder is unaffected, and the lock is free after it.
async fn expect_left(host: &Host, mut holder: Http1) {
    host.until_waiting(0).await;
    assert_eq!(host.seen.started(), 1);
    host.seen.open_gate();
    expect(
        &holder.answer().await.json(),
        &json!({"errors": "<absent>"}),
    );
    let next = ask("test.echo").lock(json!({"key": "k", "scope": "global"}));
    holder
        .check(&post("/forrst", &next.text()), 200, &json!({"result": {}}))
        .await;
}

#[tokio::test]
async fn a_waiting_http_1_client_leaves_the_queue_when_it_disconnects() {
    let host = Host::start().await;
    let holder = hold(&host).await;
    for path in ["/forrst", "/rpc"] {
        let mut client = Http1::connect(&host).await;
        let body = match path {
            "/rpc" => waiting().rpc(1).to_string(),
            _ => waiting().text(),
        };
        client.send(post(path, &body)).await;
        host.until_waiting(1).await;
        drop(client);
        host.until_waiting(0).await;
    }
    expect_left(&host, holder).await;
}

/// While hyper has a pipelined request, it does not read: only the socket shows the disconnect.
#[tokio::test]
async fn a_waiting_http_1_client_that_pipelines_leaves_the_queue_when_it_disconnects() {
    let host = Host::start().await;
    let holder = hold(&host).await;
    let mut client = Http1::connect(&host).await;
    let ahead = post("/forrst", &waiting().text()) + &post("/forrst", &ask("test.echo").text());
    client.send(ahead).await;
    host.until_waiting(1).await;
    drop(client);
    expect_left(&host, holder).await;
}

#[tokio::test]
async fn a_waiting_http_2_client_leaves_the_queue_when_it_disconnects() {
    let host = Host::start().await;
    let holder = hold(&host).await;
    let client = Http2::connect(&host).await;
    // One resets its stream, the other closes its connection.
    let resets = tokio::spawn(client.ask(&waiting()));
    host.until_waiting(1).await;
    let closes = tokio::spawn(client.ask(&waiting()));
    host.until_waiting(2).await;
    resets.abort();
    host.until_waiting(1).await;
    closes.abort();
    let _ = closes.await;
    client.disconnect();
    expect_left(&host, holder).await;
}

#[tokio::test]
async fn a_waiting_websocket_client_leaves_the_queue_when_it_disconnects() {
    let host = Host::start().await;
    let holder = hold(&host).await;
    // One sends a close frame, the other only closes its connection.
    let mut closes_properly = Socket::connect(&host).await;
    let mut drops = Socket::connect(&host).await;
    for number in 0..3 {
        closes_properly.send(waiting().rpc(number)).await;
        drops
            .send(json!([waiting().rpc(number), waiting().rpc(number + 10)]))
            .await;
    }
    host.until_waiting(9).await;
    soon(closes_properly.0.close(None)).await.unwrap();
    host.until_waiting(6).await;
    drop(drops);
    expect_left(&host, holder).await;
}

/// The client sends more than the server reads ahead. The server has stopped reading, and must still notice the disconnect.
#[tokio::test]
async fn a_websocket_client_with_a_full_read_ahead_leaves_all_its_queues() {
    let host = Host::with(Limits {
        max_in_flight: 20,
        ..Limits::default()
    })
    .await;
    let holder = hold(&host).await;
    let mut client = Socket::connect(&host).await;
    for number in 0..100 {
        client.send(waiting().rpc(number)).await;
    }
    host.until_waiting(20).await;
    drop(client);
    expect_left(&host, holder).await;
}

#[tokio::test]
async fn a_unix_client_with_a_full_read_ahead_leaves_all_its_queues() {
    let host = Host::with(Limits {
        max_in_flight: 20,
        ..Limits::default()
    });
    let unix = UnixHost::start(host.await).await;
    let holder = hold(&unix.host).await;
    let mut client = Frames::connect(&unix.socket).await;
    client.send(frame(&waiting().text()).repeat(100)).await;
    unix.host.until_waiting(20).await;
    drop(client);
    expect_left(&unix.host, holder).await;
}

#[tokio::test]
async fn a_waiting_unix_client_leaves_the_queue_when_it_disconnects() {
    let unix = UnixHost::start(Host::start().await).await;
    let holder = hold(&unix.host).await;
    let mut client = Frames::connect(&unix.socket).await;
    client.send(frame(&waiting().text()).repeat(3)).await;
    unix.host.until_waiting(3).await;
    drop(client);
    expect_left(&unix.host, holder).await;
}

/// Nothing is read after such a frame, but a disconnect must still be noticed.
#[tokio::test]
async fn a_unix_client_whose_last_frame_was_too_large_leaves_the_queue_when_it_disconnects() {
    let unix = UnixHost::start(Host::start().await).await;
    let holder = hold(&unix.host).await;
    let mut client = Frames::connect(&unix.socket).await;
    client.send(frame(&waiting().text())).await;
    unix.host.until_waiting(1).await;
    client.send(u32::MAX.to_be_bytes()).await;
    drop(client);
    expect_left(&unix.host, holder).await;
}

fn one_in_flight() -> Limits {
    Limits {
        max_in_flight: 1,
        ..Limits::default()
    }
}

/// A server that reads no more requests from a client must still notice its disconnect.
#[tokio::test]
async fn a_websocket_client_at_its_in_flight_limit_leaves_the_queue_when_it_disconnects() {
    let host = Host::with(one_in_flight()).await;
    let holder = hold(&host).await;
    let mut client = Socket::connect(&host).await;
    client.send(waiting().rpc(1)).await;
    host.until_waiting(1).await;
    drop(client);
    expect_left(&host, holder).await;
}

#[tokio::test]
async fn a_unix_client_at_its_in_flight_limit_leaves_the_queue_when_it_disconnects() {
    let unix = UnixHost::start(Host::with(one_in_flight()).await).await;
    let holder = hold(&unix.host).await;
    let mut client = Frames::connect(&unix.socket).await;
    client.send(frame(&waiting().text())).await;
    unix.host.until_waiting(1).await;
    drop(client);
    expect_left(&unix.host, holder).await;
}

#[tokio::test]
async fn a_function_runs_to_completion_when_its_client_disconnects() {
    let unix = UnixHost::start(Host::start().await).await;
    let host = &unix.host;
    let locked = ask("test.gate").lock(json!({"key": "k", "scope": "global"}));
    for (turn, transport) in ["http1", "http2", "websocket", "unix"]
        .into_iter()
        .enumerate()
    {
        let runs = || host.seen.started() == turn + 1;
        match transport {
            "http1" => {
                let mut client = Http1::connect(host).await;
                client.ask(&locked).await;
                until("the function runs", runs).await;
            }
            "http2" => {
                let client = Http2::connect(host).await;
                let call = tokio::spawn(client.ask(&locked));
                until("the function runs", runs).await;
                call.abort();
                client.disconnect();
            }
            "websocket" => {
                let mut client = Socket::connect(host).await;
                client.send(locked.rpc(1)).await;
                until("the function runs", runs).await;
            }
            _ => {
                let mut client = Frames::connect(&unix.socket).await;
                client.send(frame(&locked.text())).await;
                until("the function runs", runs).await;
            }
        }
        // The client has disconnected. The next caller waits until the function has ended.
        let next =
            ask("test.context").lock(json!({"key": "k", "scope": "global", "block": seconds(20)}));
        let mut client = Http1::connect(host).await;
        client.ask(&next).await;
        host.until_waiting(1).await;
        assert_eq!(host.seen.returned(), turn, "{transport}");
        host.seen.open_gate();
        expect(
            &client.answer().await.json(),
            &json!({"errors": "<absent>"}),
        );
        assert_eq!(
            (host.seen.returned(), host.seen.dropped()),
            (turn + 1, 0),
            "{transport}"
        );
    }
}
