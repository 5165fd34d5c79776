//! Leases during a function: renewal, expiry, loss and late releases.

use std::time::Duration;

use forrst_protocol::ErrorCode;
use forrst_server::{Context, ServerBuilder};
use serde_json::{Map, Value, json};
use tokio::time::{Instant, sleep};

use crate::pipeline::probe::{Probe, Seen, failed};
use crate::wire::{LOCK, ask, data, expect, millis, until};

/// `test.watchful` waits for the loss of its lease, notes it, and runs until the gate opens.
fn watchful(builder: ServerBuilder, seen: &Seen) -> ServerBuilder {
    let seen = seen.clone();
    let run = move |context: Context, _: Map<String, Value>| {
        let seen = seen.clone();
        async move {
            let running = seen.run();
            let began = Instant::now();
            if let Some(lease) = context.lease() {
                tokio::select! {
                    () = lease.lost() => seen.note(format!("lost {}", began.elapsed().as_millis())),
                    () = sleep(Duration::from_secs(5)) => seen.note("kept"),
                }
                assert_eq!(lease.is_lost(), !seen.has_noted("kept"));
            }
            seen.pass_gate().await;
            running.returns();
            Ok("to the end")
        }
    };
    builder.function("test.watchful", "1.0.0", run)
}

#[tokio::test(start_paused = true)]
async fn a_renewed_lease_lasts_as_long_as_its_function() {
    let probe = Probe::with(watchful);
    let renewed = json!({"key": "k", "ttl": millis(100), "renew": true});
    let holder = probe
        .start_running(&ask("test.watchful").lock(renewed))
        .await;
    for _ in 0..20 {
        sleep(Duration::from_millis(290)).await;
        let request = ask("test.watchful").lock(json!({"key": "k"}));
        probe
            .check(&request, &failed(&ErrorCode::LockAcquisitionFailed))
            .await;
    }
    until("the function saw that it kept its lease", || {
        probe.seen.has_noted("kept")
    })
    .await;
    probe.seen.open_gate();
    expect(&holder.await.unwrap(), &json!({"result": "to the end"}));
    probe.expect_nothing_left().await;
    // The renewal ends with the function, so the lease expires.
    sleep(Duration::from_secs(1)).await;
    probe.expect_nothing_left().await;
}

#[tokio::test(start_paused = true)]
async fn the_answer_has_the_expiry_of_the_last_renewal() {
    let probe = Probe::new();
    let request = ask("test.sleep")
        .arguments(json!({"ms": 1000}))
        .lock(json!({"key": "k", "ttl": millis(300), "renew": true, "auto_release": false}));
    let answer = probe
        .check(&request, &json!({"result": {"slept": 1000}}))
        .await;
    let status = ask("urn:cline:forrst:ext:atomic-lock:fn:status");
    let status = status.arguments(json!({"key": "lock:test.sleep:k"}));
    let expected =
        json!({"result": {"locked": true, "expires_at": data(&answer, LOCK)["expires_at"]}});
    probe.check(&status, &expected).await;
    // The lease is kept, but not renewed any more.
    sleep(Duration::from_millis(400)).await;
    probe
        .check(&status, &json!({"result": {"locked": false}}))
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_function_is_notified_that_its_lease_expired_and_goes_on() {
    let probe = Probe::with(watchful);
    let request = ask("test.watchful").lock(json!({"key": "k", "ttl": millis(200)}));
    let call = probe.start_running(&request).await;
    let noted = || probe.seen.notes.lock().unwrap().first().cloned();
    until("the loss is noted", || noted().is_some()).await;
    // Never after the store has ended the lease.
    let note = noted().unwrap();
    let after: u64 = note.strip_prefix("lost ").unwrap().parse().unwrap();
    assert!((190..=200).contains(&after), "{note}");
    sleep(Duration::from_secs(10)).await;
    assert_eq!((probe.seen.returned(), probe.seen.dropped()), (0, 0));
    probe.seen.open_gate();
    expect(
        &call.await.unwrap(),
        &json!({"result": "to the end", "extensions": [{"data": {"acquired": true}}]}),
    );
    probe.expect_nothing_left().await;
}

#[tokio::test(start_paused = true)]
async fn a_late_release_does_not_release_the_successor() {
    let probe = Probe::with(watchful);
    let late = ask("test.watchful")
        .lock(json!({"key": "k", "scope": "global", "owner": "o", "ttl": millis(200)}));
    let late = probe.start_running(&late).await;
    until("the late one has lost its lease", || {
        !probe.seen.notes.lock().unwrap().is_empty()
    })
    .await;
    // The store ends the lease a moment after its function was notified.
    let next = ask("test.sleep")
        .arguments(json!({"ms": 5000}))
        .lock(json!({"key": "k", "scope": "global", "owner": "o", "block": millis(1000)}));
    let next = probe.start_running(&next).await;
    probe.seen.open_gate();
    expect(&late.await.unwrap(), &json!({"result": "to the end"}));
    assert_eq!(probe.holder("lock:k").await.as_deref(), Some("o"));
    let refused = ask("test.echo").lock(json!({"key": "k", "scope": "global"}));
    probe
        .check(&refused, &failed(&ErrorCode::LockAcquisitionFailed))
        .await;
    expect(&next.await.unwrap(), &json!({"result": {"slept": 5000}}));
    probe.expect_nothing_left().await;
}

/// The lease is neither renewed nor released with its function: only the registry of held leases can notify the function.
#[tokio::test(start_paused = true)]
async fn a_function_under_a_kept_lease_is_notified_of_a_forced_release() {
    let probe = Probe::with(watchful);
    let day = json!({"value": 1, "unit": "day"});
    let kept = json!({"key": "k", "scope": "global", "ttl": day, "auto_release": false});
    let holder = probe.start_running(&ask("test.watchful").lock(kept)).await;
    let force = ask("urn:cline:forrst:ext:atomic-lock:fn:force-release");
    let force = force.arguments(json!({"key": "lock:k"}));
    probe
        .check(&force, &json!({"result": {"forced": true}}))
        .await;
    until("the function has waited for the loss", || {
        !probe.seen.notes.lock().unwrap().is_empty()
    })
    .await;
    assert!(!probe.seen.has_noted("kept"), "it was not notified");
    probe.seen.open_gate();
    expect(&holder.await.unwrap(), &json!({"result": "to the end"}));
    probe.expect_nothing_left().await;
}

#[tokio::test(start_paused = true)]
async fn a_force_released_lease_is_not_renewed_again() {
    let probe = Probe::with(watchful);
    let renewed = json!({"key": "k", "scope": "global", "ttl": millis(300), "renew": true});
    let holder = probe
        .start_running(&ask("test.watchful").lock(renewed))
        .await;
    let force = ask("urn:cline:forrst:ext:atomic-lock:fn:force-release");
    let force = force.arguments(json!({"key": "lock:k"}));
    probe
        .check(&force, &json!({"result": {"forced": true}}))
        .await;
    let next = ask("test.sleep").arguments(json!({"ms": 2000}));
    let next = next.lock(json!({"key": "k", "scope": "global", "owner": "next"}));
    let next = probe.start_running(&next).await;
    until("the loss is noted", || {
        !probe.seen.notes.lock().unwrap().is_empty()
    })
    .await;
    assert!(!probe.seen.has_noted("kept"));
    probe.seen.open_gate();
    expect(&holder.await.unwrap(), &json!({"result": "to the end"}));
    assert_eq!(probe.holder("lock:k").await.as_deref(), Some("next"));
    next.await.unwrap();
    probe.expect_nothing_left().await;
}

#[tokio::test(start_paused = true)]
async fn a_function_under_a_set_is_notified_when_the_set_ends_by_any_key() {
    let probe = Probe::with(watchful);
    let set = json!({"keys": ["a", "b"], "scope": "global", "owner": "me"});
    let holder = probe.start_running(&ask("test.watchful").lock(set)).await;
    let release = ask("urn:cline:forrst:ext:atomic-lock:fn:release");
    let release = release.arguments(json!({"key": "lock:b", "owner": "me"}));
    probe
        .check(&release, &json!({"result": {"released": true}}))
        .await;
    until("the function has waited for the loss", || {
        !probe.seen.notes.lock().unwrap().is_empty()
    })
    .await;
    assert!(!probe.seen.has_noted("kept"), "it was not notified");
    probe.seen.open_gate();
    expect(&holder.await.unwrap(), &json!({"result": "to the end"}));
    probe.expect_nothing_left().await;
}
