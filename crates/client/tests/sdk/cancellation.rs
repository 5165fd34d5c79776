//! Calls that are cancelled by their handle.

use forrst_client::{Error, Lock};
use forrst_protocol::ErrorCode;
use serde_json::{Value, json};
use std::future::IntoFuture;

use crate::host::{Host, acquired, ms, soon};

#[tokio::test]
async fn a_cancelled_call_leaves_the_queue_over_any_transport() {
    let host = Host::start().await;
    let lease = acquired(host.http().lock("k")).await;
    for client in host.clients() {
        let lock = Lock::key("k").global().ttl(ms(30_000)).wait(ms(30_000));
        let call = client.call::<_, Value>("test.wait", json!({})).lock(lock);
        let (call, cancel) = call.cancellable();
        let waiting = tokio::spawn(call.into_future());
        host.until_waiting(1).await;
        soon(cancel.cancel()).await.unwrap();
        let error = soon(waiting).await.unwrap().unwrap_err();
        assert!(matches!(error, Error::Cancelled(Some(_))), "{error}");
        assert_eq!(error.code(), Some(&ErrorCode::Cancelled));
        host.until_waiting(0).await;
        let again = soon(cancel.cancel()).await.unwrap_err();
        assert_eq!(again.code(), Some(&ErrorCode::CancellationTooLate));
    }
    soon(lease.release()).await.unwrap();
}

#[tokio::test]
async fn a_cancelled_function_stops_and_frees_its_lock() {
    let host = Host::start().await;
    for client in host.clients() {
        let lock = Lock::key("k").ttl(ms(30_000));
        let call = client.call::<_, Value>("test.wait", json!({})).lock(lock);
        let (call, cancel) = call.cancellable();
        let running = tokio::spawn(call.into_future());
        host.until_held("lock:test.wait:k").await;
        soon(cancel.cancel()).await.unwrap();
        let error = soon(running).await.unwrap().unwrap_err();
        assert!(matches!(error, Error::Cancelled(Some(_))), "{error}");
        assert!(error.may_have_run());
        host.until_free("lock:test.wait:k").await;
    }
}

#[tokio::test]
async fn a_call_that_was_cancelled_before_is_not_sent() {
    let host = Host::start().await;
    let (call, cancel) = host
        .http()
        .call::<_, Value>("test.wait", json!({}))
        .cancellable();
    soon(cancel.cancel()).await.unwrap();
    let error = soon(call).await.unwrap_err();
    assert!(matches!(error, Error::Cancelled(None)), "{error}");
    assert!(!error.may_have_run());
}
