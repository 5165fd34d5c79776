//! Graceful shutdown, without sockets.

use std::time::Duration;

use forrst_protocol::ErrorCode;
use serde_json::json;
use tokio::time::Instant;

use crate::pipeline::probe::{Probe, failed};
use crate::wire::{LOCK, ask, data, expect, seconds, until};

const DRAIN: Duration = Duration::from_secs(10);

#[tokio::test(start_paused = true)]
async fn an_idle_server_shuts_down_at_once() {
    let probe = Probe::new();
    assert!(!probe.server.is_shutting_down());
    let started = Instant::now();
    probe.server.shut_down(DRAIN).await;
    assert!(probe.server.is_shutting_down());
    assert!(started.elapsed() < Duration::from_millis(100));
}

#[tokio::test(start_paused = true)]
async fn waiters_are_refused_and_running_functions_run_to_completion() {
    let probe = Probe::new();
    let waiting = ask("test.gate").lock(json!({"key": "k", "block": seconds(60)}));
    let holder = probe.start_running(&waiting).await;
    let waiters = [
        probe.start_waiting(&waiting).await,
        probe.start_waiting(&waiting).await,
    ];
    let acquire = ask("urn:cline:forrst:ext:atomic-lock:fn:acquire");
    let arguments =
        json!({"key": "k", "function": "test.gate", "ttl": seconds(9), "block": seconds(60)});
    let acquirer = probe.start_waiting(&acquire.arguments(arguments)).await;
    let end = tokio::spawn({
        let server = probe.server.clone();
        async move { server.shut_down(DRAIN).await }
    });
    for waiter in waiters {
        let answer = waiter.await.unwrap();
        expect(&answer, &failed(&ErrorCode::Unavailable));
        expect(data(&answer, LOCK), &json!({"key": "k", "acquired": false}));
    }
    expect(&acquirer.await.unwrap(), &failed(&ErrorCode::Unavailable));
    assert!(!end.is_finished());
    tokio::time::sleep(DRAIN / 2).await;
    probe.seen.open_gate();
    expect(
        &holder.await.unwrap(),
        &json!({"errors": "<absent>", "result": {"fence": "<fence>"}}),
    );
    end.await.unwrap();
    assert_eq!((probe.seen.returned(), probe.seen.dropped()), (1, 0));
    probe.expect_nothing_left().await;
}

#[tokio::test(start_paused = true)]
async fn a_function_that_exceeds_the_drain_timeout_is_ended_and_its_lock_released() {
    let probe = Probe::with_parent();
    let locked = probe
        .start_running(&ask("test.parent").lock(json!({"key": "k"})))
        .await;
    let plain = probe.start_running(&ask("test.gate")).await;
    let gone = probe
        .start_running(&ask("test.gate").lock(json!({"key": "k"})))
        .await;
    gone.abort();
    let _ = gone.await;
    let started = Instant::now();
    let end = tokio::spawn({
        let server = probe.server.clone();
        async move { server.shut_down(DRAIN).await }
    });
    tokio::time::sleep(DRAIN - Duration::from_millis(50)).await;
    assert!(!end.is_finished() && !locked.is_finished());
    assert!(!probe.seen.has_noted("child cancelled"));
    end.await.unwrap();
    let took = started.elapsed();
    assert!(
        took >= DRAIN && took < DRAIN + Duration::from_millis(100),
        "{took:?}"
    );
    let answer = locked.await.unwrap();
    expect(&answer, &failed(&ErrorCode::Unavailable));
    expect(data(&answer, LOCK), &json!({"acquired": true}));
    expect(&plain.await.unwrap(), &failed(&ErrorCode::Unavailable));
    assert_eq!((probe.seen.started(), probe.seen.dropped()), (3, 3));
    until("the child is cancelled", || {
        probe.seen.has_noted("child cancelled")
    })
    .await;
    probe.expect_nothing_left().await;
}

#[tokio::test(start_paused = true)]
async fn a_lock_without_auto_release_survives_the_shutdown() {
    let probe = Probe::new();
    let keep = json!({"key": "k", "owner": "me", "auto_release": false, "ttl": {"value": 1, "unit": "hour"}});
    let call = probe.start_running(&ask("test.gate").lock(keep)).await;
    probe.server.shut_down(Duration::from_millis(100)).await;
    expect(&call.await.unwrap(), &failed(&ErrorCode::Unavailable));
    assert_eq!(
        probe.holder("lock:test.gate:k").await.as_deref(),
        Some("me")
    );
}

#[tokio::test(start_paused = true)]
async fn after_the_shutdown_nothing_runs_and_nothing_is_locked() {
    let probe = Probe::new();
    probe.server.shut_down(DRAIN).await;
    for request in [
        ask("test.echo"),
        ask("test.echo").lock(json!({"key": "k"})),
        ask("test.echo").lock(json!({"key": "k", "auto_release": false})),
        ask("test.echo").lock(json!({"key": "k", "block": seconds(60)})),
    ] {
        probe
            .check(&request, &failed(&ErrorCode::Unavailable))
            .await;
    }
    assert_eq!(probe.seen.started(), 0);
    probe.expect_nothing_left().await;
}

#[tokio::test(start_paused = true)]
async fn no_call_waits_for_a_lock_during_the_shutdown() {
    let probe = Probe::new();
    let waiting = ask("test.gate").lock(json!({"key": "k", "block": seconds(60)}));
    let holder = probe.start_running(&waiting).await;
    let end = tokio::spawn({
        let server = probe.server.clone();
        async move { server.shut_down(DRAIN).await }
    });
    until("the server ends", || probe.server.is_shutting_down()).await;
    let started = Instant::now();
    probe
        .check(&waiting, &failed(&ErrorCode::Unavailable))
        .await;
    assert!(started.elapsed() < Duration::from_millis(100));
    probe.seen.open_gate();
    holder.await.unwrap();
    end.await.unwrap();
}
