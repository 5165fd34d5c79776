//! The revocation of a key ends its waiting calls, renewals and sessions.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use forrst_lock::LockName;
use forrst_server::Limits;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use crate::transports::guarded::Guarded;
use crate::transports::host::soon;
use crate::transports::websocket_client::{End, Socket};
use crate::wire::{ask, millis, seconds, until};

/// Takes a lock for the rest of the test, as another caller.
async fn hold(guarded: &Guarded, key: usize) {
    let request =
        ask("test.echo").lock(json!({"key": "k", "scope": "global", "auto_release": false}));
    let (status, _) = guarded
        .send("/forrst", Some(&guarded.keys[key]), request.text())
        .await;
    assert_eq!(status, StatusCode::OK);
}

fn waiting() -> crate::wire::Ask {
    ask("test.echo").lock(json!({"key": "k", "scope": "global", "block": seconds(120)}))
}

fn code(answer: &Value) -> Option<&str> {
    answer["errors"][0]["code"].as_str()
}

#[tokio::test]
async fn a_revoked_key_loses_its_waiting_calls() {
    let guarded = Arc::new(Guarded::new(Limits::default(), 2));
    hold(&guarded, 1).await;
    let acquire = ask("urn:cline:forrst:ext:atomic-lock:fn:acquire")
        .arguments(json!({"key": "k", "ttl": seconds(30), "block": seconds(120)}));
    let calls = [waiting().text(), acquire.text()].map(|request| {
        let guarded = guarded.clone();
        tokio::spawn(async move {
            let key = Some(guarded.keys[0].as_str());
            guarded.send("/forrst", key, request).await
        })
    });
    let locks = guarded.server.locks().clone();
    until("both wait", || locks.waiting() == 2).await;
    guarded.keep_only(1);
    for call in calls {
        let (status, answer) = soon(call).await.unwrap();
        assert_eq!(status, StatusCode::UNAUTHORIZED);
        let answer: Value = serde_json::from_slice(&answer).unwrap();
        assert_eq!(code(&answer), Some("UNAUTHORIZED"));
    }
    assert_eq!(locks.waiting(), 0);
}

#[tokio::test]
async fn a_reload_keeps_the_waiting_calls_of_valid_keys() {
    let guarded = Arc::new(Guarded::new(Limits::default(), 2));
    hold(&guarded, 1).await;
    let call = tokio::spawn({
        let guarded = guarded.clone();
        async move {
            let key = Some(guarded.keys[0].as_str());
            guarded.send("/forrst", key, waiting().text()).await
        }
    });
    let locks = guarded.server.locks().clone();
    until("it waits", || locks.waiting() == 1).await;
    guarded.keep_only(0);
    let name = LockName::parse("lock:k").unwrap();
    locks.force_release(&name, None).await.unwrap().unwrap();
    assert_eq!(soon(call).await.unwrap().0, StatusCode::OK);
}

#[tokio::test]
async fn a_lock_of_a_revoked_key_is_not_renewed() {
    let guarded = Arc::new(Guarded::new(Limits::default(), 2));
    let request = ask("test.gate").lock(json!({"key": "k", "ttl": millis(1500), "renew": true}));
    let call = tokio::spawn({
        let guarded = guarded.clone();
        async move {
            let key = Some(guarded.keys[0].as_str());
            guarded.send("/forrst", key, request.text()).await
        }
    });
    until("the function runs", || guarded.seen.started() == 1).await;
    let name = LockName::parse("lock:test.gate:k").unwrap();
    let locks = guarded.server.locks().clone();
    let is_held = async || locks.inspect(&name).await.unwrap().0.holder().is_some();
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(is_held().await, "it is renewed");
    guarded.keep_only(1);
    soon(async {
        while is_held().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    assert_eq!(guarded.seen.returned(), 0, "the function still runs");
    guarded.seen.open_gate();
    soon(call).await.unwrap();
}

#[tokio::test]
async fn a_session_of_a_revoked_key_is_closed() {
    let guarded = Guarded::new(Limits::default(), 2);
    hold(&guarded, 1).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = guarded.server.clone();
    let serving = tokio::spawn(async move { server.serve_on(listener).await });
    let mut revoked = Socket::open(address, &guarded.keys[0]).await;
    let mut kept = Socket::open(address, &guarded.keys[1]).await;
    revoked.send(waiting().rpc("waits")).await;
    let locks = guarded.server.locks().clone();
    until("it waits", || locks.waiting() == 1).await;
    guarded.keep_only(1);
    let answer = revoked.answer().await;
    assert_eq!(code(&answer["result"]), Some("UNAUTHORIZED"));
    match revoked.next().await {
        Err(End::Close(Some(frame))) => assert_eq!(frame.code, CloseCode::Policy),
        other => panic!("{other:?}"),
    }
    assert_eq!(locks.waiting(), 0);
    kept.send(ask("test.echo").rpc("alive")).await;
    assert_eq!(kept.answer().await["id"], "alive");
    serving.abort();
}
