//! Which requests are retried, how often and when.

use std::time::Instant;

use forrst_client::{Client, Error, Lock, Retry};
use forrst_lock::EventKind;
use serde_json::{Value, json};

use crate::host::{Host, acquired, charging, free_address, ms, soon};
use crate::raw_server::{RawServer, Reply};

fn quick() -> Retry {
    Retry::default().first_pause(ms(2)).longest_pause(ms(4))
}

fn after(time: u64) -> Value {
    json!({"retry_after": {"value": time, "unit": "millisecond"}})
}

async fn call(server: &RawServer, retry: Retry) -> Result<Value, Error> {
    soon(server.call().retry(retry)).await
}

#[tokio::test]
async fn retry_after_is_respected() {
    let server = RawServer::start(|before| match before {
        0 => Reply::error("RATE_LIMITED", &after(300)),
        _ => Reply::success(&json!(1)),
    })
    .await;
    assert_eq!(call(&server, quick()).await.unwrap(), 1);
    let received = server.received();
    assert_eq!(received.len(), 2);
    assert!(received[1].at - received[0].at >= ms(300));
}

#[tokio::test]
async fn tries_are_limited_in_number() {
    let server = RawServer::start(|_| Reply::error("RATE_LIMITED", &json!({}))).await;
    let error = call(&server, quick().attempts(3)).await.unwrap_err();
    assert!(matches!(error, Error::RateLimited(_)), "{error}");
    assert_eq!(server.received().len(), 3);
    call(&server, Retry::never()).await.unwrap_err();
    assert_eq!(server.received().len(), 4);
}

#[tokio::test]
async fn tries_are_limited_in_time() {
    let server = RawServer::start(|_| Reply::error("RATE_LIMITED", &after(60_000))).await;
    let start = Instant::now();
    call(&server, quick()).await.unwrap_err();
    assert!(start.elapsed() < ms(10_000));
    assert_eq!(server.received().len(), 1);

    let server = RawServer::start(|_| Reply::error("RATE_LIMITED", &after(40))).await;
    call(&server, quick().attempts(u32::MAX).within(ms(2_000)))
        .await
        .unwrap_err();
    let count = server.received().len();
    assert!((2..=51).contains(&count), "{count}");
}

#[tokio::test]
async fn a_server_that_starts_later_is_reached() {
    let address = free_address().await;
    let client = Client::builder(format!("http://{address}"))
        .build()
        .unwrap();
    let call = charging(&client).retry(quick().attempts(1000));
    let call = tokio::spawn(call.into_future());
    tokio::time::sleep(ms(50)).await;
    let host = Host::start_at(address).await;
    soon(call).await.unwrap().unwrap();
    assert_eq!(host.charges(), 1);
}

#[tokio::test]
async fn unavailable_is_retried_only_if_the_function_cannot_have_begun() {
    let unavailable = |acquired: Option<bool>, has_id: bool| {
        let mut answer =
            json!({"result": null, "errors": [{"code": "UNAVAILABLE", "message": "no"}]});
        if let Some(acquired) = acquired {
            let data = json!({"key": "k", "acquired": acquired});
            answer["extensions"] = json!([{"urn": "urn:forrst:ext:atomicLock", "data": data}]);
        }
        if !has_id {
            answer["id"] = Value::Null;
        }
        answer
    };
    for (answer, tries) in [
        (unavailable(None, true), 1),
        (unavailable(None, false), 4),
        (unavailable(Some(true), true), 1),
        (unavailable(Some(false), true), 4),
    ] {
        let reply = answer.clone();
        let server = RawServer::start(move |_| Reply::Forrst(reply.clone())).await;
        let error = call(&server, quick()).await.unwrap_err();
        assert!(matches!(error, Error::Unavailable(_)), "{error}");
        assert_eq!(server.received().len(), tries, "{answer}");
        assert_eq!(error.may_have_run(), tries == 1, "{answer}");
    }
}

#[tokio::test]
async fn an_idempotent_call_is_retried_after_every_transient_error() {
    for (code, tries) in [
        ("UNAVAILABLE", 4),
        ("INTERNAL_ERROR", 4),
        ("DEPENDENCY_ERROR", 4),
        ("PAYMENTS_DECLINED", 1),
        ("INVALID_ARGUMENTS", 1),
        ("FORBIDDEN", 1),
        ("LOCK_ACQUISITION_FAILED", 1),
        ("LOCK_TIMEOUT", 1),
        ("DEADLINE_EXCEEDED", 1),
    ] {
        let server = RawServer::start(move |_| Reply::error(code, &json!({}))).await;
        let call = server.call().retry(quick()).idempotent();
        soon(call).await.unwrap_err();
        assert_eq!(server.received().len(), tries, "{code}");
    }
}

#[tokio::test]
async fn after_an_error_of_a_gateway_only_idempotent_calls_are_retried() {
    for (status, tries) in [(502, 4), (503, 4), (504, 4), (500, 1), (404, 1)] {
        let server = RawServer::start(move |_| Reply::Http(status, "<html>")).await;
        call(&server, quick()).await.unwrap_err();
        assert_eq!(server.received().len(), 1, "{status}");
        let call = server.call().retry(quick()).idempotent();
        soon(call).await.unwrap_err();
        assert_eq!(server.received().len(), 1 + tries, "{status}");
    }
}

#[tokio::test]
async fn contention_is_retried_only_on_request() {
    let host = Host::start().await;
    let client = host.http();
    let lease = acquired(client.lock("k")).await;
    let locked = || charging(&client).lock(Lock::key("k").global());
    soon(locked()).await.unwrap_err();
    soon(client.lock("k").acquire()).await.unwrap_err();
    let contended = host.server.locks().stats().count(EventKind::Contended);
    assert_eq!(contended, 2, "each asked once");

    let patient = quick().attempts(100).on_contention();
    let call = tokio::spawn(locked().retry(patient.clone()).into_future());
    let next = tokio::spawn(client.lock("k").retry(patient).acquire());
    tokio::time::sleep(ms(50)).await;
    soon(lease.release()).await.unwrap();
    soon(soon(next).await.unwrap().unwrap().release())
        .await
        .unwrap();
    soon(call).await.unwrap().unwrap();
}
