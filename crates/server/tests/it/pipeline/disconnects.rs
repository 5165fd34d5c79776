//! Clients that disconnect, which is a dropped future here: waits are rolled back, and functions run to completion.

use async_trait::async_trait;
use forrst_protocol::Errors;
use forrst_server::{Around, Context, Extension, ExtensionCall, Next, Outcome};
use serde_json::{Map, Value, json};

use crate::pipeline::probe::{Probe, Seen};
use crate::wire::{ask, expect, seconds, until};

#[tokio::test(start_paused = true)]
async fn a_waiting_client_that_disconnects_leaves_the_queue() {
    let probe = Probe::new();
    let waiting = |key: &str| ask("test.gate").lock(json!({"key": key, "block": seconds(60)}));
    let holder = probe.start_running(&waiting("k")).await;
    let first = probe.start_waiting(&waiting("k")).await;
    let second = probe.start_waiting(&waiting("k")).await;
    let third = probe.start_waiting(&waiting("k")).await;
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    assert_eq!(probe.server.locks().waiting(), 2);
    third.abort();
    let _ = third.await;
    assert_eq!(probe.server.locks().waiting(), 1);
    for call in [holder, second] {
        probe.seen.open_gate();
        expect(&call.await.unwrap(), &json!({"errors": "<absent>"}));
    }
    assert_eq!(probe.seen.started(), 2);
    probe.expect_nothing_left().await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_waits_in_acquire_leaves_the_queue_when_it_disconnects() {
    let probe = Probe::new();
    let acquire = ask("urn:cline:forrst:ext:atomic-lock:fn:acquire");
    let arguments = json!({"key": "k", "ttl": seconds(60), "block": seconds(60)});
    let acquire = acquire.arguments(arguments);
    probe
        .check(&acquire, &json!({"result": {"acquired": true}}))
        .await;
    let waiting = probe.start_waiting(&acquire).await;
    waiting.abort();
    let _ = waiting.await;
    assert_eq!(probe.server.locks().waiting(), 0);
}

#[tokio::test(start_paused = true)]
async fn after_a_disconnect_the_function_runs_to_completion_and_then_releases_its_lock() {
    let probe = Probe::new();
    let call = probe
        .start_running(&ask("test.gate").lock(json!({"key": "k"})))
        .await;
    call.abort();
    let _ = call.await;
    let next = ask("test.gate").lock(json!({"key": "k", "block": seconds(60)}));
    let next = probe.start_waiting(&next).await;
    assert_eq!((probe.seen.returned(), probe.seen.dropped()), (0, 0));
    probe.seen.open_gate();
    until("the first function ends", || probe.seen.returned() == 1).await;
    assert_eq!(probe.seen.dropped(), 0);
    probe.seen.open_gate();
    expect(&next.await.unwrap(), &json!({"errors": "<absent>"}));
    probe.expect_nothing_left().await;
}

#[tokio::test(start_paused = true)]
async fn after_a_disconnect_a_function_without_a_lock_runs_to_completion() {
    let probe = Probe::new();
    let call = probe.start_running(&ask("test.gate")).await;
    call.abort();
    let _ = call.await;
    probe.seen.open_gate();
    until("the function ends", || probe.seen.returned() == 1).await;
    assert_eq!(probe.seen.dropped(), 0);
}

#[tokio::test(start_paused = true)]
async fn after_a_disconnect_a_lock_without_auto_release_stays_held() {
    let probe = Probe::new();
    let keep = json!({"key": "k", "owner": "me", "auto_release": false});
    let call = probe.start_running(&ask("test.gate").lock(keep)).await;
    call.abort();
    let _ = call.await;
    probe.seen.open_gate();
    until("the function ends", || probe.seen.returned() == 1).await;
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    assert_eq!(
        probe.holder("lock:test.gate:k").await.as_deref(),
        Some("me")
    );
}

const AFTERWARDS: &str = "urn:acme:forrst:ext:afterwards";

/// An extension that notes when it has run to completion.
struct Afterwards(Seen);

impl Extension for Afterwards {
    fn urn(&self) -> &'static str {
        AFTERWARDS
    }

    fn prepare(&self, _: &ExtensionCall<'_>) -> Result<Box<dyn Around>, Errors> {
        Ok(Box::new(Afterwards(self.0.clone())))
    }
}

#[async_trait]
impl Around for Afterwards {
    async fn run(self: Box<Self>, context: Context, next: Next) -> Outcome {
        let outcome = next.run(context).await;
        self.0.note("afterwards");
        outcome
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_disconnect_an_extension_of_the_service_runs_to_completion() {
    for is_locked in [false, true] {
        let probe = Probe::with(|builder, seen| builder.extension(Afterwards(seen.clone())));
        let mut request = ask("test.gate").with(AFTERWARDS, Value::Null);
        if is_locked {
            request = request.lock(json!({"key": "k"}));
        }
        let call = probe.start_running(&request).await;
        call.abort();
        let _ = call.await;
        probe.seen.open_gate();
        until("the extension ends", || probe.seen.has_noted("afterwards")).await;
        let seen = &probe.seen;
        until("the function has ended", || seen.returned() == 1).await;
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        probe.expect_nothing_left().await;
    }
}

/// Disconnects at every point at which the call yields.
#[tokio::test(start_paused = true)]
async fn a_disconnect_at_any_await_point_leaves_nothing_behind() {
    for polls in 0..40 {
        let probe = Probe::with(|builder, seen| {
            let seen = seen.clone();
            builder.function("test.steps", "1.0.0", move |_, _: Map<String, Value>| {
                let seen = seen.clone();
                async move {
                    let running = seen.run();
                    for _ in 0..5 {
                        tokio::task::yield_now().await;
                    }
                    running.returns();
                    Ok(())
                }
            })
        });
        let request = ask("test.steps")
            .lock(json!({"key": "k", "block": seconds(60)}))
            .text();
        {
            let mut call = std::pin::pin!(probe.server.handle(request.as_bytes()));
            for _ in 0..polls {
                tokio::select! {
                    biased;
                    _ = &mut call => break,
                    () = std::future::ready(()) => {}
                }
                tokio::task::yield_now().await;
            }
        }
        let seen = &probe.seen;
        until("what began has ended", || seen.started() == seen.returned()).await;
        let again = ask("test.steps").lock(json!({"key": "k", "block": seconds(1)}));
        probe.check(&again, &json!({"errors": "<absent>"})).await;
        probe.expect_nothing_left().await;
    }
}
