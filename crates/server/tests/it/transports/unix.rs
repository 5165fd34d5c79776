//! Frames over a unix socket.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use forrst_server::Limits;
use serde_json::{Value, json};

use crate::transports::host::{Host, soon};
use crate::transports::unix_client::{Frames, SocketPath, UnixHost, frame};
use crate::wire::{ask, expect, seconds, until};

async fn start() -> UnixHost {
    UnixHost::start(Host::start().await).await
}

async fn with_small_frames() -> UnixHost {
    let limits = Limits {
        max_body: 1000,
        ..Limits::default()
    };
    UnixHost::start(Host::with(limits).await).await
}

/// Sends one frame on a connection of its own.
async fn check(unix: &UnixHost, text: &str, expected: &Value) {
    let mut client = Frames::connect(&unix.socket).await;
    client.send(frame(text)).await;
    expect(&client.answer().await, expected);
}

#[tokio::test]
async fn a_frame_is_answered_with_a_frame() {
    let unix = start().await;
    let request = ask("test.echo")
        .arguments(json!({"x": "\u{e9}"}))
        .lock(json!({"key": "k"}));
    let expected = json!({
        "protocol": {"name": "forrst", "version": "0.1.0"},
        "id": "req_1",
        "result": {"x": "\u{e9}"},
        "extensions": [{"data": {"acquired": true}}],
        "meta": {"node": "node-test"},
    });
    check(&unix, &request.text(), &expected).await;
    let failed = |code: &str| json!({"result": null, "errors": [{"code": code}]});
    check(
        &unix,
        &ask("test.nothing").text(),
        &failed("FUNCTION_NOT_FOUND"),
    )
    .await;
    check(&unix, &ask("test.panic").text(), &failed("INTERNAL_ERROR")).await;
    check(&unix, "nonsense", &failed("PARSE_ERROR")).await;
    check(&unix, "", &failed("PARSE_ERROR")).await;
}

#[tokio::test]
async fn many_frames_in_one_write_are_answered_by_id() {
    let unix = start().await;
    let mut client = Frames::connect(&unix.socket).await;
    let mut many = frame(&ask("test.gate").id("slow").text());
    for number in 0..500 {
        let request = ask("test.echo")
            .id(format!("{number}"))
            .arguments(json!({"number": number}));
        many.extend(frame(&request.text()));
    }
    client.send(many).await;
    let mut answers = BTreeMap::new();
    for _ in 0..500 {
        let answer = client.answer().await;
        answers.insert(answer["id"].as_str().unwrap().to_owned(), answer);
    }
    for number in 0..500 {
        expect(
            &answers[&number.to_string()],
            &json!({"result": {"number": number}}),
        );
    }
    unix.host.seen.open_gate();
    expect(
        &client.answer().await,
        &json!({"id": "slow", "errors": "<absent>"}),
    );
}

#[tokio::test]
async fn a_frame_may_arrive_byte_by_byte() {
    let unix = start().await;
    let mut client = Frames::connect(&unix.socket).await;
    for byte in frame(&ask("test.echo").text()) {
        client.send([byte]).await;
        tokio::task::yield_now().await;
    }
    expect(
        &client.answer().await,
        &json!({"id": "req_1", "result": {}}),
    );
}

#[tokio::test]
async fn requests_beyond_the_in_flight_limit_are_answered_too() {
    let limits = Limits {
        max_in_flight: 2,
        ..Limits::default()
    };
    let unix = UnixHost::start(Host::with(limits).await).await;
    let mut client = Frames::connect(&unix.socket).await;
    let request = ask("test.sleep").arguments(json!({"ms": 1}));
    let one = frame(&request.text());
    client.send(one.repeat(50)).await;
    for _ in 0..50 {
        expect(&client.answer().await, &json!({"result": {"slept": 1}}));
    }
}

#[tokio::test]
async fn a_frame_that_is_too_large_is_refused_and_ends_the_connection() {
    let refused = json!({"id": null, "result": null, "errors": [{"code": "INVALID_REQUEST", "message": "<text>"}]});
    let unix = with_small_frames().await;
    for _ in 0..20 {
        let mut client = Frames::connect(&unix.socket).await;
        let fits = ask("test.echo")
            .arguments(json!({"x": "x".repeat(800)}))
            .text();
        client.send(frame(&fits)).await;
        expect(&client.answer().await, &json!({"id": "req_1"}));
        // The length alone shows that.
        client.send(1001_u32.to_be_bytes()).await;
        let answer = client.next().await.expect("ended without an answer");
        expect(&answer, &refused);
        assert_eq!(client.next().await, None);
    }
    let mut client = Frames::connect(&unix.socket).await;
    client.send([0xff; 4]).await;
    expect(
        &client.next().await.expect("ended without an answer"),
        &refused,
    );
    check(&unix, &ask("test.echo").text(), &json!({"result": {}})).await;
}

/// Requests before the frame that is too large are still answered.
#[tokio::test]
async fn calls_under_way_are_answered_after_a_frame_that_is_too_large() {
    let unix = with_small_frames().await;
    let mut client = Frames::connect(&unix.socket).await;
    let call = ask("test.gate").id("before").text();
    client.send(frame(&call)).await;
    until("the function runs", || unix.host.seen.started() == 1).await;
    client.send(1001_u32.to_be_bytes()).await;
    unix.host.seen.open_gate();
    let mut answers = [client.answer().await, client.answer().await];
    assert_eq!(client.next().await, None);
    // In any order.
    answers.sort_by_key(|answer| answer["id"].is_null());
    expect(&answers[0], &json!({"id": "before", "errors": "<absent>"}));
    let refused = json!({"id": null, "errors": [{"code": "INVALID_REQUEST"}]});
    expect(&answers[1], &refused);
}

#[tokio::test]
async fn only_the_user_of_the_server_may_connect() {
    let unix = start().await;
    let metadata = std::fs::metadata(unix.socket.path()).unwrap();
    assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
}

#[tokio::test]
async fn a_socket_file_without_a_listener_is_replaced() {
    let host = Host::start().await;
    let socket = SocketPath::new();
    drop(std::os::unix::net::UnixListener::bind(socket.path()).unwrap());
    assert!(socket.path().exists());
    let serving = socket.serve(&host.server).await;
    let mut client = Frames::connect(&socket).await;
    client.send(frame(&ask("test.echo").text())).await;
    expect(&client.answer().await, &json!({"result": {}}));
    serving.abort();
}

#[tokio::test]
async fn a_socket_that_another_server_listens_on_is_not_replaced() {
    let unix = start().await;
    let other = Host::start().await;
    let refused = soon(other.server.serve_unix(unix.socket.path())).await;
    let error = refused.expect_err("two servers on one socket");
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
    assert!(
        error
            .to_string()
            .contains(unix.socket.path().to_str().unwrap()),
        "{error}"
    );
    check(&unix, &ask("test.echo").text(), &json!({"result": {}})).await;
}

#[tokio::test]
async fn a_file_that_is_not_a_socket_is_not_replaced() {
    let host = Host::start().await;
    let socket = SocketPath::new();
    std::fs::write(socket.path(), "precious").unwrap();
    let error = soon(host.server.serve_unix(socket.path()))
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains(socket.path().to_str().unwrap()),
        "{error}"
    );
    assert_eq!(std::fs::read_to_string(socket.path()).unwrap(), "precious");
}

#[tokio::test]
async fn a_shutdown_answers_calls_under_way_and_removes_the_socket() {
    let unix = start().await;
    let mut client = Frames::connect(&unix.socket).await;
    let hold = ask("test.gate").id("holds").lock(json!({"key": "k"}));
    let wait = ask("test.gate")
        .id("waits")
        .lock(json!({"key": "k", "block": seconds(60)}));
    client.send(frame(&hold.text())).await;
    until("the lock is held", || unix.host.seen.started() == 1).await;
    client.send(frame(&wait.text())).await;
    unix.host.until_waiting(1).await;
    let end = tokio::spawn({
        let server = unix.host.server.clone();
        async move { server.shut_down(Duration::from_secs(20)).await }
    });
    expect(
        &client.answer().await,
        &json!({"id": "waits", "errors": [{"code": "UNAVAILABLE"}]}),
    );
    unix.host.seen.open_gate();
    expect(
        &client.answer().await,
        &json!({"id": "holds", "errors": "<absent>"}),
    );
    assert_eq!(client.next().await, None);
    soon(end).await.unwrap();
    until("the socket is gone", || !unix.socket.path().exists()).await;
}
