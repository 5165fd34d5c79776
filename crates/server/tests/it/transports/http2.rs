//! HTTP/2 with prior knowledge.

use bytes::Bytes;
use forrst_server::Limits;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper::header::CONTENT_TYPE;
use hyper::{HeaderMap, Request};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::task::{JoinHandle, JoinSet};

use crate::transports::host::{Host, soon};
use crate::wire::{Ask, ask, expect, seconds};

/// One connection, for many requests at once.
pub(crate) struct Http2 {
    sender: SendRequest<Full<Bytes>>,
    connection: JoinHandle<()>,
}

impl Http2 {
    pub(crate) async fn connect(host: &Host) -> Self {
        Self::connect_with_window(host, 65_535).await
    }

    /// A client with this flow-control window.
    pub(crate) async fn connect_with_window(host: &Host, window: u32) -> Self {
        let stream = soon(TcpStream::connect(host.address)).await.unwrap();
        let mut builder = Builder::new(TokioExecutor::new());
        builder.initial_stream_window_size(window);
        let shake = builder.handshake(TokioIo::new(stream));
        let (sender, connection) = soon(shake).await.unwrap();
        let connection = tokio::spawn(async move {
            let _ = connection.await;
        });
        Self { sender, connection }
    }

    /// Sends a request; the future waits for its answer, and resets its stream when it is dropped.
    pub(crate) fn post(
        &self,
        path: &str,
        body: String,
    ) -> impl Future<Output = (u16, HeaderMap, Value)> + use<> {
        let request = Request::post(format!("http://test{path}"))
            .header(CONTENT_TYPE, "application/json")
            .body(Full::from(body))
            .unwrap();
        let mut sender = self.sender.clone();
        async move {
            let response = sender.send_request(request).await.unwrap();
            let (parts, body) = response.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            let body = serde_json::from_slice(&body).unwrap_or_default();
            (parts.status.as_u16(), parts.headers, body)
        }
    }

    pub(crate) fn ask(
        &self,
        request: &Ask,
    ) -> impl Future<Output = (u16, HeaderMap, Value)> + use<> {
        self.post("/forrst", request.text())
    }

    /// As [`ask`](Self::ask); `None` if the connection ends before the answer is complete.
    pub(crate) fn try_ask(&self, request: &Ask) -> impl Future<Output = Option<Bytes>> + use<> {
        let request = Request::post("http://test/forrst")
            .header(CONTENT_TYPE, "application/json")
            .body(Full::from(request.text()))
            .unwrap();
        let mut sender = self.sender.clone();
        async move {
            let response = sender.send_request(request).await.ok()?;
            Some(response.into_body().collect().await.ok()?.to_bytes())
        }
    }

    pub(crate) fn get(
        &self,
        path: &str,
        headers: Vec<(String, String)>,
    ) -> impl Future<Output = u16> + use<> {
        let mut request = Request::get(format!("http://test{path}"));
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let mut sender = self.sender.clone();
        let request = request.body(Full::default()).unwrap();
        async move {
            sender
                .send_request(request)
                .await
                .unwrap()
                .status()
                .as_u16()
        }
    }

    /// Returns when the server has closed the connection.
    pub(crate) async fn closed(&self) {
        while !self.connection.is_finished() {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    }

    /// Closes the connection and all of its streams.
    pub(crate) fn disconnect(self) {
        self.connection.abort();
    }
}

impl Drop for Http2 {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

async fn check(client: &Http2, request: &Ask, status: u16, expected: &Value) -> HeaderMap {
    let (actual, headers, body) = soon(client.ask(request)).await;
    assert_eq!(actual, status, "{body:#}");
    expect(&body, expected);
    headers
}

#[tokio::test]
async fn requests_are_served_as_over_http_1() {
    let host = Host::start().await;
    let client = Http2::connect(&host).await;
    let request = ask("test.echo").lock(json!({"key": "k"}));
    let headers = check(
        &client,
        &request,
        200,
        &json!({"id": "req_1", "result": {}}),
    )
    .await;
    assert_eq!(headers["x-forrst-request-id"], "req_1");
    assert_eq!(headers["x-forrst-node"], "node-test");
    let nothing = json!({"errors": [{"code": "FUNCTION_NOT_FOUND"}]});
    check(&client, &ask("test.nothing"), 404, &nothing).await;
    let (status, _, body) = soon(client.post("/rpc", ask("test.echo").rpc(5).to_string())).await;
    assert_eq!(status, 200);
    expect(
        &body,
        &json!({"jsonrpc": "2.0", "id": 5, "result": {"id": "req_1", "result": {}}}),
    );
    assert_eq!(soon(client.post("/nowhere", String::new())).await.0, 404);
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused() {
    let host = Host::with(Limits {
        max_body: 1000,
        ..Limits::default()
    })
    .await;
    let client = Http2::connect(&host).await;
    let (status, ..) = soon(client.post("/forrst", "x".repeat(1001))).await;
    assert_eq!(status, 413);
    check(&client, &ask("test.echo"), 200, &json!({"result": {}})).await;
}

#[tokio::test]
async fn many_requests_at_once_are_answered_as_they_are_ready() {
    let host = Host::start().await;
    let client = Http2::connect(&host).await;
    let slow = tokio::spawn(client.ask(&ask("test.gate").id("slow")));
    let mut others = JoinSet::new();
    for number in 0..50 {
        let request = ask("test.echo").id(number.to_string());
        others.spawn(client.ask(&request.lock(json!({"key": "k", "block": seconds(20)}))));
    }
    let answers = soon(others.join_all()).await;
    assert_eq!(
        answers.iter().filter(|(status, ..)| *status == 200).count(),
        50
    );
    assert!(!slow.is_finished());
    host.seen.open_gate();
    expect(
        &soon(slow).await.unwrap().2,
        &json!({"id": "slow", "errors": "<absent>"}),
    );
}

/// Over HTTP/2, a body after HEAD is a protocol error, and hyper does not remove it.
#[tokio::test]
async fn a_head_request_is_answered_without_a_body() {
    let host = Host::start().await;
    let client = Http2::connect(&host).await;
    for (path, status) in [
        ("/health", 200),
        ("/ready", 200),
        ("/metrics", 200),
        ("/forrst", 405),
        ("/", 200),
        ("/elsewhere", 404),
    ] {
        let request = Request::head(format!("http://test{path}"));
        let request = request.body(Full::default()).unwrap();
        let answer = soon(client.sender.clone().send_request(request))
            .await
            .unwrap();
        assert_eq!(answer.status(), status, "{path}");
        let body = answer.into_body().collect().await;
        assert!(body.expect(path).to_bytes().is_empty(), "{path}");
    }
}
