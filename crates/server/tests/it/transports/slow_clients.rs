//! Clients that are silent, slow, or do not read: they are disconnected, and other clients are not affected.

use std::time::Duration;

use forrst_server::Limits;
use forrst_testkit::PATIENCE;
use forrst_testkit::asynchronous::undisturbed;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::sleep;

use crate::transports::host::{Host, LATE, short_timeouts, soon};
use crate::transports::http1::{Http1, post};
use crate::transports::http2::Http2;
use crate::wire::{ask, expect};

/// Expects that a client that sends this and no more is disconnected, while others are served.
async fn check(sends: &[u8], starts_with: &str) {
    undisturbed(LATE, || {
        let (sends, starts_with) = (sends.to_vec(), starts_with.to_owned());
        async move {
            let host = Host::with(short_timeouts()).await;
            let mut slow = Http1::connect(&host).await;
            slow.send(&sends).await;
            let mut other = Http1::connect(&host).await;
            other.expect_alive().await;
            let rest = slow.rest().await;
            let rest = String::from_utf8_lossy(&rest);
            assert!(
                rest.starts_with(starts_with.as_str()),
                "{rest:?} does not start with {starts_with:?}"
            );
            let mut other = Http1::connect(&host).await;
            other.expect_alive().await;
            assert_eq!(host.seen.started(), 0);
        }
    })
    .await;
}

#[tokio::test]
async fn a_client_that_sends_nothing_is_disconnected() {
    check(b"", "").await;
}

#[tokio::test]
async fn a_client_that_sends_half_a_request_line_is_disconnected() {
    check(b"POST /for", "").await;
}

#[tokio::test]
async fn a_client_that_sends_half_an_http2_preface_is_disconnected() {
    check(b"PRI * HTTP/2.0\r\n", "").await;
    check(b"P", "").await;
}

#[tokio::test]
async fn an_http2_client_that_falls_silent_is_disconnected() {
    check(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "").await;
    // Its settings, and then nothing.
    check(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0", "").await;
}

#[tokio::test]
async fn a_client_that_sends_half_a_head_is_disconnected() {
    check(b"POST /forrst HTTP/1.1\r\nhost: test\r\ncontent-ty", "").await;
}

#[tokio::test]
async fn a_client_that_sends_half_a_body_gets_a_408() {
    let whole = post("/forrst", &ask("test.echo").text());
    let half = &whole[..whole.len() - 10];
    check(half.as_bytes(), "HTTP/1.1 408").await;
    check(
        post("/rpc", "{")
            .replace("content-length: 1", "content-length: 9")
            .as_bytes(),
        "HTTP/1.1 408",
    )
    .await;
}

#[tokio::test]
async fn a_client_that_announces_a_body_and_does_not_send_it_gets_a_408() {
    check(
        post("/forrst", "")
            .replace("content-length: 0", "content-length: 10")
            .as_bytes(),
        "HTTP/1.1 408",
    )
    .await;
    let chunked = "POST /forrst HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n5\r\n{\"a";
    check(chunked.as_bytes(), "HTTP/1.1 408").await;
}

/// Sends a byte now and then, but never a complete request.
async fn check_trickle(first: &str, rest: &'static [u8]) {
    let host = Host::with(short_timeouts()).await;
    let mut stream = TcpStream::connect(host.address).await.unwrap();
    stream.write_all(first.as_bytes()).await.unwrap();
    let (mut reader, mut writer) = stream.into_split();
    let trickle = tokio::spawn(async move {
        for byte in rest.iter().cycle() {
            sleep(Duration::from_millis(20)).await;
            if writer.write_all(&[*byte]).await.is_err() {
                return;
            }
        }
    });
    let mut answer = Vec::new();
    let _ = soon(reader.read_to_end(&mut answer)).await;
    drop(reader);
    soon(trickle).await.unwrap();
    assert_eq!(host.seen.started(), 0);
}

#[tokio::test]
async fn a_client_whose_head_never_ends_is_disconnected() {
    check_trickle("POST /forrst HTTP/1.1\r\n", b"x-more: and more\r\n").await;
}

#[tokio::test]
async fn a_client_whose_body_never_ends_is_disconnected() {
    check_trickle("POST /forrst HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ncontent-length: 1000000\r\n\r\n", b" ").await;
}

#[tokio::test]
async fn a_client_that_does_not_use_its_connection_is_disconnected() {
    undisturbed(LATE, || async {
        let host = Host::with(short_timeouts()).await;
        let mut client = Http1::connect(&host).await;
        client.expect_alive().await;
        assert!(client.rest().await.is_empty());
    })
    .await;
}

#[tokio::test]
async fn a_client_that_waits_for_a_long_call_is_not_idle() {
    undisturbed(LATE, || async {
        let host = Host::with(short_timeouts()).await;
        let mut client = Http1::connect(&host).await;
        let slow = ask("test.sleep").arguments(json!({"ms": 1000})).text();
        client
            .check(
                &post("/forrst", &slow),
                200,
                &json!({"result": {"slept": 1000}}),
            )
            .await;
        client.expect_alive().await;
    })
    .await;
}

/// An upload that makes progress is not idle, even if it begins late and takes longer than the idle timeout.
#[tokio::test]
async fn an_upload_may_take_longer_than_the_idle_timeout() {
    let limits = Limits {
        body_timeout: Duration::from_secs(60),
        ..short_timeouts()
    };
    let host = Host::with(limits).await;
    let mut client = Http1::connect(&host).await;
    let whole = post("/forrst", &ask("test.echo").text());
    let (head, body) = whole.split_at(whole.len() - 20);
    client.send(head).await;
    for byte in body.chars() {
        tokio::time::sleep(Duration::from_millis(150)).await;
        client.send(byte.to_string()).await;
    }
    assert_eq!(client.answer().await.status, 200);
}

/// A client that does not read its answer must not keep its connection forever.
#[tokio::test]
async fn a_client_that_does_not_read_its_answer_is_disconnected() {
    let limits = Limits {
        max_connections: 1,
        ..short_timeouts()
    };
    let host = Host::with(limits).await;
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut stream = soon(socket.connect(host.address)).await.unwrap();
    // More than fits into the socket buffers of both ends.
    let big = ask("test.big").arguments(json!({"bytes": 64 << 20})).text();
    stream
        .write_all(post("/forrst", &big).as_bytes())
        .await
        .unwrap();
    let mut first = [0; 12];
    soon(stream.read_exact(&mut first)).await.unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
    let give_up = tokio::time::Instant::now() + PATIENCE;
    loop {
        let mut other = Http1::connect(&host).await;
        other
            .try_send("GET /health HTTP/1.1\r\nhost: test\r\n\r\n")
            .await;
        let answer = other.answer().await;
        if answer.status == 200 {
            break;
        }
        expect(
            &answer.json(),
            &json!({"errors": [{"code": "UNAVAILABLE"}]}),
        );
        let is_over = tokio::time::Instant::now() > give_up;
        assert!(!is_over, "a client that does not read keeps its connection");
        sleep(Duration::from_millis(100)).await;
    }
    drop(stream);
}

/// Hundreds of silent connections at once do not keep other clients from being served.
#[tokio::test]
async fn many_silent_clients_do_not_delay_others() {
    let host = Host::with(Limits {
        idle_timeout: Duration::from_secs(60),
        ..Limits::default()
    })
    .await;
    let mut crowd = Vec::new();
    for number in 0..300 {
        let mut client = Http1::connect(&host).await;
        let says: &[u8] = match number % 4 {
            0 => b"",
            1 => b"PRI * HT",
            2 => b"POST /forrst HTTP/1.1\r\nhost",
            _ => b"POST /forrst HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{",
        };
        client.send(says).await;
        crowd.push(client);
    }
    for _ in 0..20 {
        let mut client = Http1::connect(&host).await;
        client.expect_alive().await;
    }
    drop(crowd);
}

/// Requests that need no key do not keep a connection open.
#[tokio::test]
async fn a_client_that_requests_only_the_health_is_disconnected() {
    undisturbed(LATE, || async {
        let host = Host::with(short_timeouts()).await;
        let mut client = Http1::connect(&host).await;
        let probe = "GET /health HTTP/1.1\r\nhost: test\r\n\r\n";
        soon(async {
            // The connection is closed during one of them.
            while client.try_send(probe).await && client.try_answer().await {}
        })
        .await;
        let mut other = Http1::connect(&host).await;
        other.expect_alive().await;
    })
    .await;
}

/// hyper's client answers pings by itself.
#[tokio::test]
async fn an_http2_client_that_only_answers_pings_is_disconnected() {
    let host = Host::with(short_timeouts()).await;
    let client = Http2::connect(&host).await;
    soon(client.closed()).await;
}

#[tokio::test]
async fn an_http2_client_in_the_middle_of_a_call_is_not_idle() {
    undisturbed(LATE, || async {
        let host = Host::with(short_timeouts()).await;
        let client = Http2::connect(&host).await;
        let slow = ask("test.sleep").arguments(json!({"ms": 1000}));
        assert_eq!(soon(client.ask(&slow)).await.0, 200);
        soon(client.closed()).await;
    })
    .await;
}

#[tokio::test]
async fn an_http2_client_whose_window_stays_closed_is_disconnected() {
    let host = Host::with(short_timeouts()).await;
    let client = Http2::connect_with_window(&host, 0).await;
    let answer = tokio::spawn(client.try_ask(&ask("test.echo")));
    soon(client.closed()).await;
    assert!(soon(answer).await.unwrap().is_none());
}

#[tokio::test]
async fn too_many_headers_are_refused_over_http2_too() {
    let host = Host::start().await;
    let client = Http2::connect(&host).await;
    let headers = (0..101).map(|number| (format!("x-{number}"), "1".to_owned()));
    assert_eq!(soon(client.get("/health", headers.collect())).await, 431);
    assert_eq!(soon(client.get("/health", Vec::new())).await, 200);
}
