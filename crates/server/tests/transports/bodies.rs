//! How large a body may be, and how it may come.

use forrst_server::Limits;
use serde_json::json;

use crate::host::Host;
use crate::http1::{Http1, post};
use crate::wire::ask;

fn small() -> Limits {
    Limits {
        max_body: 1000,
        ..Limits::default()
    }
}

/// A request of exactly that many bytes.
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
    // Announced, it is refused before it is sent.
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
        // No last chunk: it has to be refused for what came.
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

/// A client that sends megabytes before it looks at the answer still gets it.
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
async fn a_client_that_asks_first_hears_whether_to_send() {
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
