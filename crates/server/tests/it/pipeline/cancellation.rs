//! Cancellation: a caller ends its own call by a token, whether the call waits or runs.

use forrst_protocol::ErrorCode;
use forrst_server::{Context, FunctionError, ServerBuilder};
use forrst_testkit::asynchronous::until;
use serde_json::{Map, Value, json};

use crate::pipeline::probe::{Probe, Seen, failed};
use crate::wire::{Ask, CANCELLATION, LOCK, RETRY, ask, data, expect, millis, pointers, seconds};

const CANCEL: &str = "urn:cline:forrst:ext:cancellation:fn:cancel";
const ACQUIRE: &str = "urn:cline:forrst:ext:atomic-lock:fn:acquire";
const WATCH: &str = "urn:cline:forrst:ext:atomic-lock:fn:watch";

fn cancel(token: &str) -> Ask {
    ask(CANCEL).arguments(json!({"token": token}))
}

fn was_cancelled() -> Value {
    json!({"result": {"cancelled": true}})
}

/// The answer to a call that was cancelled by the token `t`.
fn cancelled() -> Value {
    json!({
        "id": "req_1",
        "result": null,
        "errors": [{"code": "CANCELLED", "message": "<text>", "details": {"token": "t"}}],
    })
}

/// With `test.patient`, which runs until its call is cancelled, and then until the gate opens.
fn with_patient(builder: ServerBuilder, seen: &Seen) -> ServerBuilder {
    let seen = seen.clone();
    builder.function(
        "test.patient",
        "1.0.0",
        move |context: Context, _: Map<String, Value>| {
            let seen = seen.clone();
            async move {
                let running = seen.run();
                context.cancelled().await;
                seen.note("cancelled");
                seen.pass_gate().await;
                running.returns();
                Ok::<_, FunctionError>("done all the same")
            }
        },
    )
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_not_cancelled_is_answered_as_without_the_extension() {
    let probe = Probe::new();
    let request = ask("test.echo").arguments(json!({"a": 1})).cancellable("t");
    let expected = json!({"result": {"a": 1}, "errors": "<absent>", "extensions": "<absent>"});
    let answer = probe.call(&request).await;
    assert_eq!(answer["result"], expected["result"]);
    assert!(answer.get("extensions").is_none(), "{answer}");
    probe
        .check(&cancel("t"), &failed(&ErrorCode::CancellationTooLate))
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_wait_leaves_the_queue() {
    let probe = Probe::new();
    let holder = probe
        .start_running(&ask("test.gate").lock(json!({"key": "k"})))
        .await;
    let request = ask("test.gate")
        .lock(json!({"key": "k", "block": seconds(60)}))
        .cancellable("t");
    let waiting = probe.start_waiting(&request).await;
    probe.check(&cancel("t"), &was_cancelled()).await;
    let answer = waiting.await.unwrap();
    expect(&answer, &cancelled());
    expect(data(&answer, LOCK), &json!({"key": "k", "acquired": false}));
    assert_eq!(probe.server.locks().waiting(), 0);
    assert_eq!(probe.seen.started(), 1);
    probe
        .check(&cancel("t"), &failed(&ErrorCode::CancellationTooLate))
        .await;
    probe.seen.open_gate();
    holder.await.unwrap();
    probe.expect_nothing_left().await;
}

#[tokio::test(start_paused = true)]
async fn a_function_learns_that_it_is_cancelled_and_keeps_its_lock_until_it_ends() {
    let probe = Probe::with(with_patient);
    let lock = json!({"key": "k", "scope": "global", "owner": "me", "auto_release": false});
    let request = ask("test.patient")
        .with(RETRY, Value::Null)
        .lock(lock)
        .cancellable("t");
    let running = probe.start_running(&request).await;
    probe.check(&cancel("t"), &was_cancelled()).await;
    until("the function knows", || probe.seen.has_noted("cancelled")).await;
    assert_eq!(probe.holder("lock:k").await.as_deref(), Some("me"));
    assert!(!running.is_finished());
    probe.seen.open_gate();
    let answer = running.await.unwrap();
    expect(&answer, &cancelled());
    expect(
        data(&answer, LOCK),
        &json!({"acquired": true, "owner": "me"}),
    );
    expect(data(&answer, RETRY), &json!({"allowed": false}));
    // Even `auto_release: false` keeps no lock for a caller that has given up.
    probe.expect_nothing_left().await;
}

#[tokio::test(start_paused = true)]
async fn a_call_stays_cancellable_after_its_client_has_disconnected() {
    let probe = Probe::with(with_patient);
    let request = ask("test.patient")
        .lock(json!({"key": "k"}))
        .cancellable("t");
    let running = probe.start_running(&request).await;
    running.abort();
    assert!(running.await.unwrap_err().is_cancelled());
    probe.check(&cancel("t"), &was_cancelled()).await;
    until("the function knows", || probe.seen.has_noted("cancelled")).await;
    probe.seen.open_gate();
    until("the function ends", || probe.seen.returned() == 1).await;
    probe
        .check(&cancel("t"), &failed(&ErrorCode::CancellationTooLate))
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_token_ends_with_a_client_that_disconnects_while_its_call_waits() {
    let probe = Probe::new();
    let holder = probe
        .start_running(&ask("test.gate").lock(json!({"key": "k"})))
        .await;
    let request = ask("test.gate")
        .lock(json!({"key": "k", "block": seconds(60)}))
        .cancellable("t");
    let waiting = probe.start_waiting(&request).await;
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    let too_late = failed(&ErrorCode::CancellationTooLate);
    let mut answer = probe.call(&cancel("t")).await;
    while answer["result"]["cancelled"] == true {
        // The call has not ended yet.
        answer = probe.call(&cancel("t")).await;
    }
    expect(&answer, &too_late);
    probe.seen.open_gate();
    holder.await.unwrap();
    probe.expect_nothing_left().await;
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_acquire_leaves_the_queue() {
    let probe = Probe::new();
    let take = |owner: &str| {
        let arguments =
            json!({"key": "k", "owner": owner, "ttl": seconds(60), "block": seconds(60)});
        ask(ACQUIRE).arguments(arguments)
    };
    probe.call(&take("holder")).await;
    let waiting = probe.start_waiting(&take("waiter").cancellable("t")).await;
    probe.check(&cancel("t"), &was_cancelled()).await;
    expect(&waiting.await.unwrap(), &cancelled());
    assert_eq!(probe.server.locks().waiting(), 0);
    assert_eq!(probe.holder("lock:k").await.as_deref(), Some("holder"));
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_acquire_leaves_the_lease_to_other_calls_of_its_attempt() {
    let probe = Probe::new();
    let arguments = json!({"key": "k", "owner": "me", "attempt": "1", "ttl": seconds(60), "block": seconds(60)});
    let take = ask(ACQUIRE).arguments(arguments);
    let holder = json!({"key": "k", "owner": "holder", "ttl": seconds(5)});
    probe.call(&ask(ACQUIRE).arguments(holder)).await;
    let kept = probe.start_waiting(&take).await;
    let cancelled_call = probe.start_waiting(&take.clone().cancellable("t")).await;
    probe.check(&cancel("t"), &was_cancelled()).await;
    expect(&cancelled_call.await.unwrap(), &cancelled());
    expect(&kept.await.unwrap(), &json!({"result": {"owner": "me"}}));
    assert_eq!(probe.holder("lock:k").await.as_deref(), Some("me"));
}

#[tokio::test(start_paused = true)]
async fn a_token_ends_with_its_function_even_if_a_task_keeps_the_context() {
    let probe = Probe::with(|builder, _| {
        builder.function(
            "test.leaves_a_task",
            "1.0.0",
            async |context: Context, _: Map<String, Value>| {
                tokio::spawn(async move {
                    std::future::pending::<()>().await;
                    drop(context);
                });
                Ok::<_, FunctionError>("done")
            },
        )
    });
    let request = ask("test.leaves_a_task").cancellable("t");
    expect(&probe.call(&request).await, &json!({"result": "done"}));
    probe
        .check(&cancel("t"), &failed(&ErrorCode::CancellationTooLate))
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_watch_ends() {
    let probe = Probe::new();
    let watch = ask(WATCH).arguments(json!({"key": "lock:k"}));
    let revision = probe.call(&watch).await["result"]["revision"].clone();
    let again = json!({"key": "lock:k", "since": revision, "wait": seconds(60)});
    let watching = probe.start(&ask(WATCH).arguments(again).cancellable("t"));
    // Until the call is known.
    loop {
        let answer = probe.call(&cancel("t")).await;
        if answer["result"]["cancelled"] == true {
            break;
        }
        expect(&answer, &failed(&ErrorCode::CancellationTokenUnknown));
        tokio::task::yield_now().await;
    }
    expect(&watching.await.unwrap(), &cancelled());
}

#[tokio::test(start_paused = true)]
async fn a_token_in_use_is_refused_and_can_be_used_again_afterwards() {
    let probe = Probe::new();
    let request = ask("test.gate").cancellable("t");
    let running = probe.start_running(&request).await;
    let answer = probe
        .check(&request, &failed(&ErrorCode::InvalidArguments))
        .await;
    assert_eq!(pointers(&answer), ["/extensions/0/options/token"]);
    assert_eq!(probe.seen.started(), 1);
    probe.seen.open_gate();
    running.await.unwrap();
    let again = probe.start_running(&request).await;
    probe.check(&cancel("t"), &was_cancelled()).await;
    probe.seen.open_gate();
    expect(&again.await.unwrap(), &cancelled());
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_call_stays_cancelled_when_its_token_is_used_again_at_once() {
    let probe = Probe::with(with_patient);
    let request = ask("test.patient")
        .lock(json!({"key": "k"}))
        .cancellable("t");
    let running = probe.start_running(&request).await;
    // Neither yields to the task of the first call.
    probe.check(&cancel("t"), &was_cancelled()).await;
    let again = probe.call(&ask("test.echo").cancellable("t")).await;
    expect(&again, &json!({"result": {}}));
    until("the function knows", || probe.seen.has_noted("cancelled")).await;
    probe.seen.open_gate();
    expect(&running.await.unwrap(), &cancelled());
    probe.expect_nothing_left().await;
}

#[tokio::test(start_paused = true)]
async fn an_ended_token_is_forgotten_after_a_minute() {
    let probe = Probe::new();
    let unknown = failed(&ErrorCode::CancellationTokenUnknown);
    probe.check(&cancel("t"), &unknown).await;
    probe.call(&ask("test.echo").cancellable("t")).await;
    tokio::time::sleep(std::time::Duration::from_secs(59)).await;
    probe
        .check(&cancel("t"), &failed(&ErrorCode::CancellationTooLate))
        .await;
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    probe.check(&cancel("t"), &unknown).await;
}

#[tokio::test(start_paused = true)]
async fn a_function_longer_than_the_lease_of_its_token_can_still_be_cancelled() {
    let probe = Probe::new();
    let running = probe
        .start_running(&ask("test.gate").cancellable("t"))
        .await;
    tokio::time::sleep(std::time::Duration::from_secs(600)).await;
    probe.check(&cancel("t"), &was_cancelled()).await;
    probe.seen.open_gate();
    expect(&running.await.unwrap(), &cancelled());
}

#[tokio::test(start_paused = true)]
async fn a_call_under_way_is_not_a_lock() {
    let probe = Probe::new();
    let running = probe
        .start_running(&ask("test.gate").cancellable("t"))
        .await;
    for prefix in ["", "c", "call:", "lock", "lock:"] {
        let list = ask("urn:cline:forrst:ext:atomic-lock:fn:list");
        let answer = probe.call(&list.arguments(json!({"prefix": prefix}))).await;
        assert_eq!(answer["result"]["locks"], json!([]), "{prefix}");
    }
    let counts = probe.server.locks().store().counts().await.unwrap();
    assert_eq!(counts, forrst_lock::Counts::default());
    for key in ["call:0::t", "call:", "forrst_call:0::t"] {
        let status = ask("urn:cline:forrst:ext:atomic-lock:fn:status");
        let answer = probe.call(&status.arguments(json!({"key": key}))).await;
        expect(&answer, &failed(&ErrorCode::InvalidArguments));
    }
    probe.seen.open_gate();
    running.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_bad_token_is_refused_before_anything_happens() {
    let probe = Probe::new();
    let long = "t".repeat(256);
    let bad = [
        json!({}),
        json!({"token": ""}),
        json!({"token": 7}),
        json!({"token": "a\nb"}),
        json!({"token": long}),
    ];
    for options in bad {
        let request = ask("test.echo")
            .lock(json!({"key": "k"}))
            .with(CANCELLATION, options.clone());
        let answer = probe
            .check(&request, &failed(&ErrorCode::InvalidArguments))
            .await;
        assert_eq!(pointers(&answer), ["/extensions/1/options/token"]);
        let request = ask(CANCEL).arguments(options);
        let answer = probe
            .check(&request, &failed(&ErrorCode::InvalidArguments))
            .await;
        assert_eq!(pointers(&answer), ["/call/arguments/token"]);
    }
    assert_eq!(probe.seen.started(), 0);
    let status = ask("urn:cline:forrst:ext:atomic-lock:fn:status");
    let request = status.arguments(json!({"key": "lock:k"})).cancellable("t");
    let answer = probe.call(&request).await;
    expect(&answer, &failed(&ErrorCode::ExtensionNotApplicable));
}

#[tokio::test(start_paused = true)]
async fn a_deadline_and_a_token_can_be_combined() {
    let probe = Probe::new();
    let request = ask("test.gate").deadline(millis(300)).cancellable("t");
    probe
        .check(&request, &failed(&ErrorCode::DeadlineExceeded))
        .await;
    probe
        .check(&cancel("t"), &failed(&ErrorCode::CancellationTooLate))
        .await;
}
