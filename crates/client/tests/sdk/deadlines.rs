//! Deadlines of calls and acquisitions, here and on the server.

use std::time::{Duration, Instant};

use forrst_client::{Error, Retry};
use serde_json::{Value, json};

use crate::host::{Host, acquired, ms, pauses_of, soon};
use crate::raw_server::{RawServer, Reply};

#[tokio::test]
async fn the_function_receives_how_much_time_is_left() {
    let host = Host::start().await;
    for client in host.clients() {
        let call = client.call::<_, Value>("test.context", json!({}));
        let seen = soon(call.deadline(ms(15_000))).await.unwrap();
        let remaining = seen["remaining"].as_f64().unwrap();
        assert!(remaining > 0.0 && remaining <= 15.0, "{remaining}");
        let without = client.call::<_, Value>("test.context", json!({}));
        assert!(soon(without).await.unwrap()["remaining"].is_null());
    }
}

#[tokio::test]
async fn a_call_is_ended_at_its_deadline() {
    let host = Host::start().await;
    for client in host.clients() {
        let call = client.call::<_, Value>("test.sleep", json!({"ms": 60_000}));
        let start = Instant::now();
        let error = soon(call.deadline(ms(100)).idempotent()).await.unwrap_err();
        assert!(matches!(error, Error::DeadlineExceeded(_)), "{error}");
        assert!(start.elapsed() >= ms(95));
    }
}

#[tokio::test]
async fn a_call_to_a_silent_server_ends_at_its_deadline() {
    let server = RawServer::start(|_| Reply::Silence).await;
    let error = soon(server.call().deadline(ms(100))).await.unwrap_err();
    assert!(matches!(error, Error::DeadlineExceeded(None)), "{error}");
}

#[tokio::test]
async fn every_try_sends_only_what_is_left_of_the_deadline() {
    let server = RawServer::start(|_| Reply::error("RATE_LIMITED", &json!({}))).await;
    let retry = pauses_of(ms(60)).attempts(4);
    let call = server.call().retry(retry).deadline(ms(15_000));
    let error = soon(call).await.unwrap_err();
    assert!(matches!(error, Error::RateLimited(_)), "{error}");
    let left: Vec<Duration> = server
        .received()
        .iter()
        .map(|r| deadline_of(&r.body))
        .collect();
    assert_eq!(left.len(), 4);
    assert!(left[0] <= ms(15_000));
    // Half of the pause is fixed, and fractions of a millisecond are not sent.
    assert!(left.windows(2).all(|w| w[1] + ms(29) <= w[0]), "{left:?}");
}

#[tokio::test]
async fn a_pause_that_would_end_after_the_deadline_is_not_made() {
    let details = json!({"retry_after": {"value": 1, "unit": "minute"}});
    let server = RawServer::start(move |_| Reply::error("RATE_LIMITED", &details)).await;
    let retry = Retry::default().within(ms(1_000_000));
    let call = server.call().retry(retry).deadline(ms(15_000));
    let error = soon(call).await.unwrap_err();
    assert!(matches!(error, Error::RateLimited(_)), "{error}");
    assert_eq!(server.received().len(), 1);
}

fn deadline_of(request: &Value) -> Duration {
    let deadline = &request["extensions"][0];
    assert_eq!(deadline["urn"], "urn:forrst:ext:deadline");
    let options: forrst_protocol::Duration =
        serde_json::from_value(deadline["options"].clone()).unwrap();
    options.to_std().unwrap()
}

#[tokio::test]
async fn an_acquisition_ends_its_wait_at_its_deadline_and_leaves_the_queue() {
    let host = Host::start().await;
    let lease = acquired(host.http().lock("k")).await;
    for client in host.clients() {
        let acquire = client.lock("k").wait(ms(60_000)).deadline(ms(100));
        let error = soon(acquire.acquire()).await.unwrap_err();
        assert!(matches!(error, Error::DeadlineExceeded(_)), "{error}");
        host.until_waiting(0).await;
    }
    soon(lease.release()).await.unwrap();
}

#[tokio::test]
async fn an_answer_that_takes_longer_than_the_timeout_is_given_up() {
    let server = RawServer::start(|_| Reply::Silence).await;
    let client = server.http().timeout(ms(1_000)).build().unwrap();
    let call = client.call::<_, Value>("a.b", json!({}));
    let error = soon(call).await.unwrap_err();
    assert!(matches!(error, Error::Interrupted(_)), "{error}");
    assert_eq!(server.received().len(), 1);
}
