//! `forrst.watch`: a subscription to a lock over a WebSocket, as clients of jsonrpsee expect it.

use std::time::Duration;

use forrst_lock::{LockName, Revision};
use forrst_server::Limits;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::time::Instant;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use crate::observe::scrape::Scrape;
use crate::transports::guarded::Guarded;
use crate::transports::host::{Host, soon};
use crate::transports::http1::{Http1, post};
use crate::transports::websocket_client::{End, Socket};
use crate::wire::{ask, expect, seconds, until};

const SYSTEM: &str = "urn:cline:forrst:ext:atomic-lock:fn:";

fn request(id: impl Into<Value>, method: &str, params: impl Into<Value>) -> Value {
    json!({"jsonrpc": "2.0", "id": id.into(), "method": method, "params": params.into()})
}

fn watch(params: Value) -> Value {
    request("watch", "forrst.watch", params)
}

/// Subscribes, and returns the id of the subscription.
async fn subscribed(socket: &mut Socket, params: Value) -> Value {
    socket.send(watch(params)).await;
    let answer = socket.answer().await;
    expect(
        &answer,
        &json!({"jsonrpc": "2.0", "id": "watch", "error": "<absent>"}),
    );
    assert!(answer["result"].is_u64(), "{answer}");
    answer["result"].clone()
}

/// The result of the next message, which has to be a notification of this subscription.
async fn notified(socket: &mut Socket, subscription: &Value) -> Value {
    let message = socket.answer().await;
    let members = message.as_object().unwrap().keys();
    assert_eq!(members.collect::<Vec<_>>(), ["jsonrpc", "method", "params"]);
    expect(
        &message,
        &json!({"jsonrpc": "2.0", "method": "forrst.watch"}),
    );
    assert_eq!(
        &message["params"]["subscription"], subscription,
        "{message}"
    );
    message["params"]["result"].clone()
}

/// Calls a system function of locks, and returns its result.
async fn call(socket: &mut Socket, function: &str, arguments: Value) -> Value {
    let request = ask(&format!("{SYSTEM}{function}")).arguments(arguments);
    socket.send(request.rpc("call")).await;
    let answer = socket.answer().await;
    assert_eq!(answer["id"], "call", "{answer}");
    answer["result"]["result"].clone()
}

async fn acquire(socket: &mut Socket, owner: &str) {
    let arguments = json!({"key": "k", "ttl": seconds(3600), "owner": owner});
    let held = call(socket, "acquire", arguments).await;
    assert_eq!(held["acquired"], true);
}

async fn release(socket: &mut Socket, owner: &str) {
    let released = call(socket, "release", json!({"key": "lock:k", "owner": owner})).await;
    assert_eq!(released["released"], true);
}

async fn until_watched(host: &Host, count: usize) {
    let locks = host.server.locks().clone();
    until(&format!("{count} keys are watched"), || {
        locks.watched_keys() == count
    })
    .await;
}

#[tokio::test]
async fn a_subscription_has_the_results_of_the_function_watch() {
    let host = Host::start().await;
    let [mut socket, mut other] = [Socket::connect(&host).await, Socket::connect(&host).await];
    let watched = json!({"key": "lock:k"});
    let by_name = subscribed(&mut socket, watched.clone()).await;
    let free = notified(&mut socket, &by_name).await;
    assert_eq!(free, call(&mut other, "watch", watched.clone()).await);
    expect(&free, &json!({"key": "lock:k", "locked": false}));

    let by_position = subscribed(&mut socket, json!([watched])).await;
    assert_eq!(notified(&mut socket, &by_position).await, free);
    assert_ne!(by_name, by_position);

    acquire(&mut other, "me").await;
    for _ in 0..2 {
        let message = socket.answer().await;
        let result = &message["params"]["result"];
        expect(
            result,
            &json!({"locked": true, "owner": "me", "revision": "<text>"}),
        );
        assert_ne!(result["revision"], free["revision"]);
    }
    let [by_name, by_position] = [by_name, by_position].map(|id| json!([id]));
    socket
        .send(request(1, "forrst.unwatch", by_name.clone()))
        .await;
    expect(&socket.answer().await, &json!({"id": 1, "result": true}));
    socket.send(request(2, "forrst.unwatch", by_name)).await;
    expect(&socket.answer().await, &json!({"id": 2, "result": false}));
    // Of this connection only.
    other
        .send(request(3, "forrst.unwatch", by_position.clone()))
        .await;
    expect(&other.answer().await, &json!({"id": 3, "result": false}));

    release(&mut other, "me").await;
    assert_eq!(notified(&mut socket, &by_position[0]).await, free);
    socket.send(request(4, "forrst.unwatch", by_position)).await;
    expect(&socket.answer().await, &json!({"id": 4, "result": true}));
    until_watched(&host, 0).await;
}

#[tokio::test]
async fn the_end_of_a_subscription_needs_its_id() {
    let host = Host::start().await;
    let mut socket = Socket::connect(&host).await;
    for params in [
        json!([]),
        json!([1, 2]),
        json!([-1]),
        json!([null]),
        json!({"id": 1}),
    ] {
        socket
            .send(request(1, "forrst.unwatch", params.clone()))
            .await;
        let refused = json!({"id": 1, "error": {"code": -32602, "message": "<text>"}});
        expect(&socket.answer().await, &refused);
    }
}

#[tokio::test]
async fn a_state_that_the_client_knows_is_not_repeated() {
    let host = Host::start().await;
    let [mut socket, mut other] = [Socket::connect(&host).await, Socket::connect(&host).await];
    let free = call(&mut other, "watch", json!({"key": "lock:k"})).await;
    let watched = json!({"key": "lock:k", "since": free["revision"]});
    let id = subscribed(&mut socket, watched.clone()).await;
    acquire(&mut other, "me").await;
    expect(&notified(&mut socket, &id).await, &json!({"owner": "me"}));
    // No longer what it is.
    let id = subscribed(&mut socket, watched).await;
    expect(&notified(&mut socket, &id).await, &json!({"owner": "me"}));
}

#[tokio::test]
async fn invalid_parameters_are_refused_by_name() {
    let host = Host::start().await;
    let mut socket = Socket::connect(&host).await;
    for (params, named) in [
        (json!({}), "key"),
        (json!([]), "only element"),
        (json!(["lock:k"]), "string"),
        (json!({"key": "k"}), "/call/arguments/key"),
        (json!({"key": 1}), "/call/arguments/key"),
        (
            json!({"key": "lock:k", "owner": ""}),
            "/call/arguments/owner",
        ),
        (json!({"key": "lock:k", "since": "yesterday"}), "since"),
        (json!({"key": "lock:k", "wait": seconds(1)}), "wait"),
    ] {
        socket.send(watch(params.clone())).await;
        let answer = socket.answer().await;
        expect(
            &answer,
            &json!({"id": "watch", "error": {"code": -32602, "message": "<text>"}}),
        );
        assert!(answer.to_string().contains(named), "{params}: {answer}");
    }
    assert_eq!(host.server.locks().watched_keys(), 0);
}

#[tokio::test]
async fn a_subscription_needs_a_websocket_and_no_batch() {
    let host = Host::start().await;
    let mut http = Http1::connect(&host).await;
    let mut socket = Socket::connect(&host).await;
    let refused = json!({"id": "watch", "error": {"code": -32600, "message": "<text>"}});
    for method in ["forrst.watch", "forrst.unwatch"] {
        let one = request("watch", method, json!({"key": "lock:k"}));
        http.check(&post("/rpc", &one.to_string()), 200, &refused)
            .await;
        socket.send(json!([one])).await;
        expect(&socket.answer().await, &json!([refused]));
    }
}

#[tokio::test]
async fn a_connection_has_a_bounded_number_of_subscriptions() {
    let host = Host::start().await;
    let mut socket = Socket::connect(&host).await;
    let mut last = Value::Null;
    for number in 0..100 {
        let key = format!("lock:{number}");
        last = subscribed(&mut socket, json!({"key": key})).await;
        notified(&mut socket, &last).await;
    }
    socket.send(watch(json!({"key": "lock:more"}))).await;
    let answer = socket.answer().await;
    expect(
        &answer,
        &json!({"id": "watch", "error": {"code": -32006, "message": "<text>"}}),
    );
    assert!(answer.to_string().contains("100"), "{answer}");
    // Another connection has its own.
    let mut other = Socket::connect(&host).await;
    subscribed(&mut other, json!({"key": "lock:more"})).await;
    socket
        .send(request(1, "forrst.unwatch", json!([last])))
        .await;
    expect(&socket.answer().await, &json!({"result": true}));
    until_watched(&host, 100).await;
    subscribed(&mut socket, json!({"key": "lock:more"})).await;
}

#[tokio::test]
async fn a_subscription_ends_with_its_connection() {
    let host = Host::start().await;
    let mut socket = Socket::connect(&host).await;
    subscribed(&mut socket, json!({"key": "lock:k"})).await;
    until_watched(&host, 1).await;
    drop(socket);
    until_watched(&host, 0).await;
}

#[tokio::test]
async fn a_subscription_ends_with_the_server() {
    let host = Host::start().await;
    let mut socket = Socket::connect(&host).await;
    let id = subscribed(&mut socket, json!({"key": "lock:k"})).await;
    notified(&mut socket, &id).await;
    until_watched(&host, 1).await;
    let server = host.server.clone();
    let ended = tokio::spawn(async move { server.shut_down(Duration::from_secs(60)).await });
    let (messages, end) = socket.rest().await;
    assert!(messages.is_empty(), "{messages:?}");
    match end {
        End::Close(Some(frame)) => assert_eq!(frame.code, CloseCode::Away),
        other => panic!("{other:?}"),
    }
    soon(ended).await.unwrap();
    until_watched(&host, 0).await;
}

#[tokio::test]
async fn a_client_that_does_not_read_gets_the_newest_state_later() {
    let host = Host::start().await;
    let [mut socket, mut other] = [Socket::connect(&host).await, Socket::connect(&host).await];
    let id = subscribed(&mut socket, json!({"key": "lock:k"})).await;
    for _ in 0..3_000 {
        acquire(&mut other, "me").await;
        release(&mut other, "me").await;
    }
    acquire(&mut other, "last").await;
    while notified(&mut socket, &id).await["owner"] != "last" {}
}

#[tokio::test]
async fn rights_are_those_of_the_function_and_end_with_the_key() {
    let guarded = Guarded::new(Limits::default(), 2);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = guarded.server.clone();
    let serving = tokio::spawn(async move { server.serve_on(listener).await });
    let mut socket = Socket::open(address, &guarded.keys[0]).await;
    let mut other = Socket::open(address, &guarded.keys[1]).await;

    // These keys may only call.
    socket.send(watch(json!({"key": "lock:k"}))).await;
    let refused = json!({"id": "watch", "error": {"code": -32001, "data": {"code": "FORBIDDEN"}}});
    expect(&socket.answer().await, &refused);

    acquire(&mut socket, "me").await;
    let own = json!({"key": "lock:k", "owner": "me"});
    let id = subscribed(&mut socket, own).await;
    expect(&notified(&mut socket, &id).await, &json!({"owner": "me"}));
    release(&mut other, "me").await;
    let free = notified(&mut socket, &id).await;
    expect(&free, &json!({"locked": false, "owner": "<absent>"}));
    // It is not notified of the next lease, which is not its own.
    acquire(&mut other, "another").await;
    release(&mut other, "another").await;
    acquire(&mut other, "me").await;
    // Another caller has acquired it, so the owner is masked.
    let own = json!({"caller": "caller 1", "owner": "<text>"});
    expect(&notified(&mut socket, &id).await, &own);

    guarded.keep_only(1);
    let (messages, end) = socket.rest().await;
    for message in messages {
        assert_eq!(
            message["params"]["error"]["code"], "UNAUTHORIZED",
            "{message}"
        );
    }
    match end {
        End::Close(Some(frame)) => assert_eq!(frame.code, CloseCode::Policy),
        other => panic!("{other:?}"),
    }
    let locks = guarded.server.locks().clone();
    until("it is no longer watched", || locks.watched_keys() == 0).await;
    serving.abort();
}

#[tokio::test]
async fn a_caller_without_a_lease_waits_for_its_own_and_notices_no_other() {
    let guarded = Guarded::new(Limits::default(), 1);
    let free = Revision::FREE.to_string();
    let watch = ask(&format!("{SYSTEM}watch"))
        .arguments(json!({"key": "lock:k", "owner": "me", "since": free}));
    let acquire = |owner: &str| {
        let arguments = json!({"key": "k", "ttl": seconds(3600), "owner": owner});
        ask(&format!("{SYSTEM}acquire")).arguments(arguments)
    };
    let release =
        ask(&format!("{SYSTEM}release")).arguments(json!({"key": "lock:k", "owner": "another"}));
    let send = async |request: crate::wire::Ask| {
        let key = Some(guarded.keys[0].as_str());
        let (_, body) = guarded.send("/forrst", key, request.text()).await;
        serde_json::from_slice::<Value>(&body).unwrap()["result"].clone()
    };
    let changes = async {
        let locks = guarded.server.locks().clone();
        until("it is watched", || locks.watched_keys() == 1).await;
        let name = LockName::parse("lock:k").unwrap();
        let hour = Duration::from_secs(3600);
        for _ in 0..3 {
            expect(&send(acquire("another")).await, &json!({"acquired": true}));
            // Other watchers notice it.
            let held = locks.watch(&name, Some(Revision::FREE), hour).await;
            expect(&send(release.clone()).await, &json!({"released": true}));
            let since = held.unwrap().revision;
            locks.watch(&name, Some(since), hour).await.unwrap();
        }
        expect(&send(acquire("me")).await, &json!({"acquired": true}));
    };
    let (seen, ()) = soon(async { tokio::join!(send(watch), changes) }).await;
    expect(&seen, &json!({"locked": true, "owner": "me"}));
}

/// On one thread, nothing else would run if it did not pause.
#[tokio::test]
async fn a_subscription_pauses_even_if_the_function_answers_at_once() {
    const OTHERS: u128 = 500;
    let limits = Limits {
        max_block: Duration::ZERO,
        ..Limits::default()
    };
    let host = Host::with(limits).await;
    let begun = Instant::now();
    let [mut socket, mut other] = [Socket::connect(&host).await, Socket::connect(&host).await];
    let id = subscribed(&mut socket, json!({"key": "lock:k"})).await;
    notified(&mut socket, &id).await;
    for _ in 0..OTHERS {
        soon(call(&mut other, "status", json!({"key": "lock:free"}))).await;
    }
    let scrape = Scrape::fetch(host.address).await;
    let reads = scrape
        .value("lock_op_latency_seconds_count{op=\"inspect\"}")
        .unwrap();
    // The calls of the subscription read at most three times.
    let most = begun.elapsed().as_millis() / 10 * 3 + 10 + OTHERS;
    assert!(reads <= most as f64, "{reads} reads, {most} are allowed");
    socket.send(request(1, "forrst.unwatch", json!([id]))).await;
    expect(&socket.answer().await, &json!({"id": 1, "result": true}));
    until_watched(&host, 0).await;
}
