//! Deadlines: one ends a wait for a lock, and a function that runs.

use std::sync::mpsc;
use std::time::Duration;

use forrst_protocol::ErrorCode;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use crate::pipeline::probe::{Probe, failed};
use crate::wire::{DEADLINE, LOCK, RETRY, ask, data, expect, millis, pointers, seconds, until};

/// The answer to a call whose deadline has passed.
fn exceeded(deadline: &Value) -> Value {
    json!({
        "result": null,
        "errors": [{
            "code": "DEADLINE_EXCEEDED",
            "message": "<text>",
            "details": {"deadline": deadline, "elapsed": {"value": "<number>", "unit": "millisecond"}},
        }],
    })
}

#[tokio::test(start_paused = true)]
async fn a_call_within_its_deadline_reports_the_remaining_time() {
    let probe = Probe::new();
    let request = ask("test.sleep")
        .arguments(json!({"ms": 250}))
        .deadline(seconds(1));
    let expected = json!({"result": {"slept": 250}, "extensions": [{"urn": DEADLINE, "data": {
        "specified": seconds(1),
        "elapsed": {"value": "<number>", "unit": "millisecond"},
        "remaining": {"value": "<number>", "unit": "millisecond"},
        "utilization": "<number>",
    }}]});
    let answer = probe.check(&request, &expected).await;
    let data = data(&answer, DEADLINE);
    let value = |name: &str| data[name]["value"].as_u64().unwrap();
    assert!((250..=255).contains(&value("elapsed")), "{data}");
    assert!((745..=750).contains(&value("remaining")), "{data}");
    assert!(
        (0.25..0.26).contains(&data["utilization"].as_f64().unwrap()),
        "{data}"
    );
    let request = ask("test.context").deadline(millis(700));
    let answer = probe.call(&request).await;
    let remaining = answer["result"]["remaining_ms"].as_u64().unwrap();
    assert!((690..=700).contains(&remaining), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_at_the_deadline() {
    let probe = Probe::new();
    let holder = probe
        .start_running(&ask("test.gate").lock(json!({"key": "k"})))
        .await;
    let request = ask("test.gate")
        .lock(json!({"key": "k", "block": seconds(20)}))
        .deadline(millis(300));
    let started = Instant::now();
    let answer = probe.check(&request, &exceeded(&millis(300))).await;
    assert_eq!(started.elapsed().as_millis() / 10, 30);
    expect(data(&answer, LOCK), &json!({"key": "k", "acquired": false}));
    expect(
        data(&answer, DEADLINE),
        &json!({"remaining": millis(0), "utilization": 1.0}),
    );
    assert_eq!(probe.server.locks().waiting(), 0);
    assert_eq!(probe.seen.started(), 1);
    probe.seen.open_gate();
    holder.await.unwrap();
    probe.expect_nothing_left().await;
}

#[tokio::test(start_paused = true)]
async fn a_function_ends_at_the_deadline_and_its_lock_is_free_then() {
    let probe = Probe::new();
    let request = ask("test.gate")
        .lock(json!({"key": "k"}))
        .deadline(millis(300));
    let started = Instant::now();
    let answer = probe.check(&request, &exceeded(&millis(300))).await;
    assert_eq!(started.elapsed().as_millis() / 10, 30);
    expect(
        data(&answer, LOCK),
        &json!({"acquired": true, "fence": "<fence>"}),
    );
    assert_eq!((probe.seen.dropped(), probe.seen.returned()), (1, 0));
    probe.expect_nothing_left().await;
}

#[tokio::test(start_paused = true)]
async fn the_wait_counts_against_the_deadline() {
    let probe = Probe::new();
    let hold = ask("test.sleep").arguments(json!({"ms": 200}));
    let holder = probe.start_running(&hold.lock(json!({"key": "k"}))).await;
    let request = ask("test.sleep")
        .arguments(json!({"ms": 200}))
        .lock(json!({"key": "k", "block": seconds(20)}))
        .deadline(millis(300));
    let answer = probe.check(&request, &exceeded(&millis(300))).await;
    expect(data(&answer, LOCK), &json!({"acquired": true}));
    holder.await.unwrap();
    assert_eq!((probe.seen.started(), probe.seen.dropped()), (2, 1));
    probe.expect_nothing_left().await;
}

#[tokio::test(start_paused = true)]
async fn a_deadline_that_has_passed_runs_nothing() {
    let probe = Probe::new();
    let past = json!({"value": "2020-01-31T12:00:00Z", "unit": "iso8601"});
    let request = ask("test.echo")
        .lock(json!({"key": "k", "auto_release": false}))
        .deadline(past.clone());
    let answer = probe.check(&request, &exceeded(&past)).await;
    expect(
        data(&answer, DEADLINE),
        &json!({"specified": past, "remaining": millis(0), "utilization": 1.0}),
    );
    assert_eq!(probe.seen.started(), 0);
    probe.expect_nothing_left().await;
}

#[tokio::test(start_paused = true)]
async fn retry_reports_on_a_missed_deadline_however_it_was_missed() {
    let probe = Probe::new();
    let past = json!({"value": "2020-01-31T12:00:00Z", "unit": "iso8601"});
    for deadline in [millis(50), past] {
        let request = ask("test.gate")
            .deadline(deadline.clone())
            .with(RETRY, Value::Null);
        let answer = probe.check(&request, &exceeded(&deadline)).await;
        expect(
            data(&answer, RETRY),
            &json!({"allowed": true, "strategy": "immediate"}),
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_deadline_in_the_far_future_has_no_effect() {
    let probe = Probe::new();
    for deadline in [
        json!({"value": "9999-12-31T23:59:59.999Z", "unit": "iso8601"}),
        json!({"value": "2199-01-01T00:00:00+02:00", "unit": "iso8601"}),
        json!({"value": 100_000, "unit": "day"}),
    ] {
        let request = ask("test.echo").deadline(deadline.clone());
        let expected = json!({"result": {}, "extensions": [{"data": {"specified": deadline}}]});
        probe.check(&request, &expected).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_deadline_is_specified_in_one_way_only() {
    let probe = Probe::new();
    let (timeout, timestamp) = (seconds(5), "2099-01-31T12:00:00Z");
    for (options, place) in [
        (
            json!({"timeout": timeout, "deadline": timestamp}),
            "deadline",
        ),
        (
            json!({"value": 5, "unit": "second", "timeout": timeout}),
            "timeout",
        ),
        (
            json!({"value": timestamp, "unit": "iso8601", "deadline": timestamp}),
            "deadline",
        ),
    ] {
        let request = ask("test.echo").with(DEADLINE, options.clone());
        let answer = probe.call(&request).await;
        let pointer = format!("/extensions/0/options/{place}");
        assert_eq!(pointers(&answer), [pointer], "{options}");
        let message = answer["errors"][0]["message"].as_str().unwrap();
        let is_right = message.starts_with(&format!("`{place}` cannot be combined with "));
        assert!(is_right, "{options}: {message}");
    }
    assert_eq!(probe.seen.started(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_deadline_must_be_a_valid_time() {
    let probe = Probe::new();
    for (options, places) in [
        (Value::Null, vec!["unit", "value"]),
        (json!({}), vec!["unit", "value"]),
        (json!({"value": 1}), vec!["unit"]),
        (json!({"value": 0, "unit": "second"}), vec!["value"]),
        (json!({"value": "soon", "unit": "iso8601"}), vec!["value"]),
        (json!({"value": 5, "unit": "iso8601"}), vec!["value"]),
        (json!({"unit": "iso8601"}), vec!["value"]),
        (json!({"timeout": 5}), vec!["timeout"]),
        (json!({"timeout": {"value": 5}}), vec!["timeout/unit"]),
        (json!({"timeout": seconds(5), "x": 1}), vec!["x"]),
        (json!({"deadline": 5}), vec!["deadline"]),
        (
            json!({"deadline": "soon", "unit": "second"}),
            vec!["deadline", "unit"],
        ),
        (json!({"value": u64::MAX, "unit": "day"}), vec!["value"]),
        (
            json!({"value": 1, "unit": "fortnight", "x": 1}),
            vec!["unit", "x"],
        ),
    ] {
        let answer = probe
            .call(&ask("test.echo").with(DEADLINE, options.clone()))
            .await;
        let expected: Vec<String> = places
            .iter()
            .map(|place| format!("/extensions/0/options/{place}"))
            .collect();
        assert_eq!(pointers(&answer), expected, "{options}");
    }
    assert_eq!(probe.seen.started(), 0);
}

#[tokio::test(start_paused = true)]
async fn tasks_of_a_function_are_notified_when_its_deadline_passes() {
    let probe = Probe::with_parent();
    let request = ask("test.parent").deadline(millis(100));
    let call = probe.start_running(&request).await;
    assert!(!probe.seen.has_noted("child cancelled"));
    expect(&call.await.unwrap(), &exceeded(&millis(100)));
    until("the child is cancelled", || {
        probe.seen.has_noted("child cancelled")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_function_that_blocks_its_thread_does_not_delay_the_answer_at_the_deadline() {
    let (let_go, gate) = mpsc::channel::<()>();
    let gate = std::sync::Arc::new(std::sync::Mutex::new(gate));
    let probe = Probe::with(|builder, seen| {
        let seen = seen.clone();
        builder.function("test.block", "1.0.0", move |_, _: Map<String, Value>| {
            let (seen, gate) = (seen.clone(), gate.clone());
            async move {
                let running = seen.run();
                // Functions should not do this.
                let _ = gate.lock().unwrap().recv_timeout(Duration::from_secs(20));
                running.returns();
                Ok(())
            }
        })
    });
    let request = ask("test.block")
        .lock(json!({"key": "k"}))
        .deadline(millis(50));
    probe.check(&request, &exceeded(&millis(50))).await;
    // It is still in its critical section, so no other call may hold the lock.
    let second = ask("test.block").lock(json!({"key": "k"}));
    probe
        .check(&second, &failed(&ErrorCode::LockAcquisitionFailed))
        .await;
    assert_eq!(probe.seen.returned(), 0);
    let_go.send(()).unwrap();
    until("it ends", || probe.seen.returned() == 1).await;
    let free = ask("test.echo").lock(json!({"key": "k", "block": seconds(5)}));
    probe.check(&free, &json!({"result": {}})).await;
}
