//! Attempts: a call that repeats one gets the same lease, and a withdrawal rolls it back.

use forrst_lock::model::MAX_WITHDRAWALS;
use forrst_protocol::ErrorCode;
use forrst_server::Limits;
use serde_json::json;

use crate::pipeline::kinds::{acquire, hold, refuse, release, system, wait};
use crate::pipeline::probe::{Probe, failed};
use crate::wire::{expect, pointers, seconds, until};

#[tokio::test(start_paused = true)]
async fn an_attempt_can_be_withdrawn_in_any_state() {
    let probe = Probe::new();
    let attempt = |attempt: &str| json!({"keys": ["a", "b"], "owner": "me", "attempt": attempt});
    let withdraw = async |attempt: &str, was: &str| {
        let arguments = json!({"key": "lock:b", "owner": "me", "attempt": attempt});
        let expected = json!({"result": {"withdrawn": true, "key": "lock:b", "was": was}});
        probe.check(&system("withdraw", arguments), &expected).await;
    };
    hold(&probe, attempt("held")).await;
    withdraw("held", "held").await;
    probe.expect_nothing_left().await;
    let holder = hold(&probe, json!({"key": "a"})).await;
    let waiting = wait(&probe, attempt("waiting")).await;
    withdraw("waiting", "waiting").await;
    let ended = json!({"errors": [{"code": "LOCK_ALREADY_RELEASED"}]});
    expect(&waiting.await.unwrap(), &ended);
    // A call that arrives after its withdrawal is refused.
    withdraw("late", "unknown").await;
    release(&probe, &holder, "lock:a").await;
    probe.check(&acquire(attempt("late")), &ended).await;
    probe.expect_nothing_left().await;
}

#[tokio::test(start_paused = true)]
async fn a_repeated_attempt_must_name_the_same_locks() {
    let probe = Probe::new();
    let set = json!({"keys": ["a", "b"], "owner": "me", "attempt": "1"});
    let lease = hold(&probe, set).await;
    // The order of keys does not matter: it is the same set.
    let again = json!({"keys": ["b", "a"], "owner": "me", "attempt": "1"});
    assert_eq!(hold(&probe, again).await["fence"], lease["fence"]);
    for other in [
        json!({"keys": ["a", "c"], "owner": "me", "attempt": "1"}),
        json!({"keys": ["a", "b"], "mode": "shared", "owner": "me", "attempt": "1"}),
        json!({"key": "a", "owner": "me", "attempt": "1"}),
    ] {
        let answer = probe.call(&acquire(other)).await;
        expect(&answer, &json!({"errors": [{"code": "INVALID_ARGUMENTS"}]}));
        assert_eq!(pointers(&answer), ["/call/arguments/attempt"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_repetition_of_a_waiting_attempt_must_name_the_same_locks() {
    let probe = Probe::new();
    let holder = hold(&probe, json!({"key": "a"})).await;
    let set = json!({"keys": ["a", "b"], "owner": "me", "attempt": "1"});
    let waiting = wait(&probe, set).await;
    for mut other in [
        json!({"keys": ["a", "c"], "owner": "me", "attempt": "1"}),
        json!({"keys": ["a", "b"], "mode": "shared", "owner": "me", "attempt": "1"}),
        json!({"key": "a", "owner": "me", "attempt": "1"}),
    ] {
        other["block"] = seconds(60);
        let answer = probe.call(&acquire(other)).await;
        expect(&answer, &json!({"errors": [{"code": "INVALID_ARGUMENTS"}]}));
        assert_eq!(pointers(&answer), ["/call/arguments/attempt"]);
    }
    release(&probe, &holder, "lock:a").await;
    expect(
        &waiting.await.unwrap(),
        &json!({"result": {"acquired": true}}),
    );
}

#[tokio::test(start_paused = true)]
async fn a_withdrawn_set_frees_the_key_that_was_reserved_for_it() {
    let probe = Probe::new();
    hold(&probe, json!({"key": "b"})).await;
    let set = json!({"keys": ["a", "b"], "owner": "me", "attempt": "1"});
    let set = wait(&probe, set).await;
    let next = wait(&probe, json!({"key": "a"})).await;
    refuse(&probe, json!({"key": "a"}), json!(["lock:a"])).await;
    let withdraw = json!({"key": "lock:b", "owner": "me", "attempt": "1"});
    let waited = json!({"result": {"was": "waiting"}});
    probe.check(&system("withdraw", withdraw), &waited).await;
    expect(&next.await.unwrap(), &json!({"result": {"acquired": true}}));
    expect(
        &set.await.unwrap(),
        &json!({"errors": [{"code": "LOCK_ALREADY_RELEASED"}]}),
    );
}

#[tokio::test(start_paused = true)]
async fn withdrawals_beyond_what_a_key_remembers_are_refused() {
    let probe = Probe::new();
    let withdraw = |attempt: usize| {
        let attempt = attempt.to_string();
        let arguments = json!({"key": "lock:k", "owner": "me", "attempt": attempt});
        system("withdraw", arguments)
    };
    let unknown = json!({"result": {"was": "unknown"}});
    for attempt in 0..MAX_WITHDRAWALS {
        probe.check(&withdraw(attempt), &unknown).await;
    }
    let refused = json!({"errors": [{
        "code": "RATE_LIMITED", "details": {"retry_after": {"value": 1000, "unit": "millisecond"}},
    }]});
    probe.check(&withdraw(MAX_WITHDRAWALS), &refused).await;
}

#[tokio::test(start_paused = true)]
async fn a_withdrawal_takes_no_lock() {
    let probe = Probe::new();
    let withdraw = json!({"key": "lock:b", "owner": "me", "attempt": "1"});
    let locked = system("withdraw", withdraw).lock(json!({"key": "k"}));
    probe
        .check(&locked, &failed(&ErrorCode::ExtensionNotApplicable))
        .await;
}

fn at_most(most: usize) -> Probe {
    Probe::with(|builder, _| {
        builder.limits(Limits {
            max_locks_per_caller: Some(most),
            ..Limits::default()
        })
    })
}

fn limited() -> serde_json::Value {
    json!({"errors": [{"code": "RATE_LIMITED", "details": {"max_locks_per_caller": "<number>"}}]})
}

#[tokio::test(start_paused = true)]
async fn calls_that_repeat_a_waiting_attempt_count_as_one_lock() {
    let probe = at_most(2);
    let holder = hold(&probe, json!({"key": "k"})).await;
    let attempt = json!({"key": "k", "owner": "me", "attempt": "1"});
    let first = wait(&probe, attempt.clone()).await;
    let second = wait(&probe, attempt).await;
    probe
        .check(&acquire(json!({"key": "other"})), &limited())
        .await;
    release(&probe, &holder, "lock:k").await;
    let first = first.await.unwrap()["result"].take();
    let second = second.await.unwrap()["result"].take();
    assert_eq!(first["fence"], second["fence"]);
    hold(&probe, json!({"key": "other"})).await;
    probe
        .check(&acquire(json!({"key": "more"})), &limited())
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_repetition_with_a_short_ttl_does_not_change_the_count_of_locks() {
    let probe = at_most(1);
    let attempt = |ttl| json!({"key": "k", "owner": "me", "attempt": "1", "ttl": ttl});
    let lease = hold(&probe, attempt(seconds(60))).await;
    let again = hold(&probe, attempt(json!({"value": 1, "unit": "millisecond"}))).await;
    assert_eq!(again["expires_at"], lease["expires_at"]);
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    probe
        .check(&acquire(json!({"key": "other"})), &limited())
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_set_that_can_never_fit_the_limit_is_refused_with_that_reason() {
    let probe = at_most(2);
    let answer = probe.call(&acquire(json!({"keys": ["a", "b", "c"]}))).await;
    expect(
        &answer,
        &json!({"errors": [{
            "code": "INVALID_ARGUMENTS",
            "message": "`keys` has 3 keys, but one caller may have at most 2 on this server",
            "details": {"max_locks_per_caller": 2},
        }]}),
    );
    assert_eq!(pointers(&answer), ["/call/arguments/keys"]);
}

#[tokio::test(start_paused = true)]
async fn a_set_that_waits_counts_once_for_each_key() {
    let probe = at_most(3);
    let holder = hold(&probe, json!({"key": "a"})).await;
    let waiting = wait(&probe, json!({"keys": ["a", "b"]})).await;
    probe.check(&acquire(json!({"key": "c"})), &limited()).await;
    waiting.abort();
    until("the set has left the queue", || {
        probe.server.locks().waiting() == 0
    })
    .await;
    hold(&probe, json!({"key": "c"})).await;
    release(&probe, &holder, "lock:a").await;
}
