//! The API key of a client.

use forrst_client::{Client, Error};
use serde_json::json;

use crate::host::soon;
use crate::raw_server::{RawServer, Reply};

#[tokio::test]
async fn the_key_is_sent_with_every_request() {
    let server = RawServer::start(|_| Reply::success(&json!({}))).await;
    let client = server.http().api_key("s3cret").build().unwrap();
    soon(client.ping()).await.unwrap();
    let head = server.received()[0].head.to_lowercase();
    assert!(head.starts_with("post /forrst http/1.1\r\n"), "{head}");
    assert!(
        head.contains("\r\nauthorization: bearer s3cret\r\n"),
        "{head}"
    );
    assert!(
        head.contains("\r\ncontent-type: application/json\r\n"),
        "{head}"
    );
}

#[tokio::test]
async fn the_key_is_sent_when_a_websocket_is_opened() {
    let server = RawServer::start(|_| Reply::Http(401, "")).await;
    let client = Client::builder(format!("ws://{}", server.address)).api_key("s3cret");
    let error = soon(client.build().unwrap().ping()).await.unwrap_err();
    assert!(matches!(error, Error::Unauthorized(None)), "{error}");
    let received = server.received();
    assert_eq!(received.len(), 1, "a wrong key is not retried");
    assert!(received[0].head.starts_with("GET /rpc HTTP/1.1\r\n"));
    assert!(
        received[0]
            .head
            .to_lowercase()
            .contains("\r\nauthorization: bearer s3cret\r\n")
    );
}

#[tokio::test]
async fn neither_debug_output_nor_an_error_shows_the_key() {
    for url in ["http://127.0.0.1:1", "ws://127.0.0.1:1"] {
        let builder = Client::builder(url).api_key("s3cret");
        let client = builder.clone().build().unwrap();
        let error = soon(client.ping()).await.unwrap_err();
        let call = client.call::<_, ()>("a.b", json!({}));
        let shown = format!(
            "{builder:?} {client:?} {error:?} {error} {call:?} {:?}",
            client.locks()
        );
        assert!(!shown.contains("s3cret"), "{shown}");
    }
}
