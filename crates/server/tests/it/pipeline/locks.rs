//! Exclusive locks around a function: grants, refusals, waits, releases, and invalid options.

use forrst_protocol::ErrorCode;
use serde_json::{Value, json};

use crate::pipeline::probe::{Probe, failed};
use crate::wire::{DEADLINE, LOCK, RETRY, TRACING, ask, data, expect, millis, seconds};

const RELEASE: &str = "urn:cline:forrst:ext:atomic-lock:fn:release";
const STATUS: &str = "urn:cline:forrst:ext:atomic-lock:fn:status";

#[tokio::test(start_paused = true)]
async fn a_free_lock_is_taken_and_released_before_the_answer() {
    let probe = Probe::new();
    for (options, full_key, scope) in [
        (json!({"key": "k"}), "lock:test.context:k", "function"),
        (
            json!({"key": "k", "scope": "function"}),
            "lock:test.context:k",
            "function",
        ),
        (json!({"key": "k", "scope": "global"}), "lock:k", "global"),
    ] {
        let lease =
            json!({"key": full_key, "fence": "<fence>", "owner": "<uuid>", "is_lost": false});
        let expected = json!({
            "result": {"lease": lease},
            "extensions": [{"urn": LOCK, "data": {
                "key": "k", "acquired": true, "owner": "<uuid>", "scope": scope,
                "expires_at": "<time>", "full_key": full_key, "fence": "<fence>",
            }}],
        });
        let answer = probe
            .check(&ask("test.context").lock(options), &expected)
            .await;
        let data = data(&answer, LOCK);
        assert_eq!(data["fence"], answer["result"]["lease"]["fence"]);
        assert_eq!(data["owner"], answer["result"]["lease"]["owner"]);
        probe.expect_nothing_left().await;
    }
}

#[tokio::test(start_paused = true)]
async fn fences_grow_and_owners_are_fresh() {
    let probe = Probe::new();
    let mut last = (String::new(), String::new());
    for _ in 0..5 {
        let answer = probe
            .call(&ask("test.echo").lock(json!({"key": "k"})))
            .await;
        let text = |name: &str| data(&answer, LOCK)[name].as_str().unwrap().to_owned();
        let (fence, owner) = (text("fence"), text("owner"));
        assert!(fence > last.0, "{fence} does not follow {}", last.0);
        assert_ne!(owner, last.1);
        last = (fence, owner);
    }
}

#[tokio::test(start_paused = true)]
async fn a_held_lock_is_refused_at_once_and_its_holder_is_unaffected() {
    let probe = Probe::new();
    let hold = ask("test.gate").lock(json!({"key": "k", "owner": "me", "ttl": millis(400)}));
    let holder = probe.start_running(&hold).await;
    // Not even the same owner gets it twice, and a refusal does not free it.
    for owner in ["me", "you"] {
        let request = ask("test.gate").lock(json!({"key": "k", "owner": owner}));
        let expected = json!({
            "result": null,
            "errors": [{
                "code": "LOCK_ACQUISITION_FAILED",
                "message": "Unable to acquire lock",
                "details": {
                    "key": "k", "scope": "function", "full_key": "lock:test.gate:k",
                    "retry_after": {"value": "<number>", "unit": "millisecond"},
                    "waited": "<absent>",
                },
            }],
            "extensions": [{"urn": LOCK, "data": {"key": "k", "acquired": false, "owner": "<absent>"}}],
        });
        let answer = probe.check(&request, &expected).await;
        let hint = answer["errors"][0]["details"]["retry_after"]["value"]
            .as_u64()
            .unwrap();
        assert!(
            (1..=400).contains(&hint),
            "{hint} is after the holder's expiry"
        );
        assert_eq!(
            probe.holder("lock:test.gate:k").await.as_deref(),
            Some("me")
        );
    }
    assert_eq!(probe.seen.started(), 1);
    probe.seen.open_gate();
    expect(&holder.await.unwrap(), &json!({"errors": "<absent>"}));
    probe.expect_nothing_left().await;
}

#[tokio::test(start_paused = true)]
async fn different_keys_functions_and_scopes_are_different_locks() {
    let probe = Probe::new();
    let _holder = probe
        .start_running(&ask("test.gate").lock(json!({"key": "k"})))
        .await;
    for request in [
        ask("test.echo").lock(json!({"key": "k"})),
        ask("test.echo").lock(json!({"key": "k", "scope": "global"})),
        ask("test.echo").lock(json!({"key": "K"})),
        ask("test.echo"),
    ] {
        probe.check(&request, &json!({"result": {}})).await;
    }
}

#[tokio::test(start_paused = true)]
async fn waiters_are_served_in_the_order_of_their_arrival() {
    let probe = Probe::new();
    let waiting = |name: &str| {
        ask("test.gate")
            .id(name)
            .lock(json!({"key": "k", "owner": name, "block": seconds(60)}))
    };
    let mut calls = vec![probe.start_running(&waiting("0")).await];
    for name in ["1", "2", "3"] {
        calls.push(probe.start_waiting(&waiting(name)).await);
    }
    let mut fences = Vec::new();
    for (turn, call) in calls.into_iter().enumerate() {
        let holder = probe.holder("lock:test.gate:k").await;
        assert_eq!(holder, Some(turn.to_string()));
        probe.seen.open_gate();
        let answer = call.await.unwrap();
        expect(
            &answer,
            &json!({"id": turn.to_string(), "errors": "<absent>"}),
        );
        fences.push(data(&answer, LOCK)["fence"].as_str().unwrap().to_owned());
    }
    assert!(fences.is_sorted_by(|a, b| a < b), "{fences:?}");
    probe.expect_nothing_left().await;
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_times_out_reports_how_long_it_was() {
    let probe = Probe::new();
    let hold = json!({"key": "k", "ttl": {"value": 1, "unit": "day"}, "auto_release": false});
    probe.call(&ask("test.echo").lock(hold)).await;
    for (value, unit, words) in [
        (1, "second", "1 second"),
        (2, "second", "2 seconds"),
        (1, "minute", "1 minute"),
        (5, "minute", "5 minutes"),
        (1, "millisecond", "1 millisecond"),
        (1500, "millisecond", "1500 milliseconds"),
    ] {
        let block = json!({"value": value, "unit": unit});
        let request = ask("test.echo").lock(json!({"key": "k", "block": block}));
        let started = tokio::time::Instant::now();
        let expected = json!({
            "result": null,
            "errors": [{
                "code": "LOCK_TIMEOUT",
                "message": format!("Lock acquisition timed out after {words}"),
                "details": {
                    "key": "k", "scope": "function", "full_key": "lock:test.echo:k", "waited": block,
                    "retry_after": {"value": "<number>", "unit": "millisecond"},
                },
            }],
            "extensions": [{"urn": LOCK, "data": {"key": "k", "acquired": false}}],
        });
        probe.check(&request, &expected).await;
        let unit: u64 = match unit {
            "millisecond" => 1,
            "second" => 1000,
            _ => 60_000,
        };
        let waited = started.elapsed().as_millis();
        let asked = u128::from(value * unit);
        assert!((asked..asked + 5).contains(&waited), "{words}: {waited} ms");
        assert_eq!(probe.server.locks().waiting(), 0);
    }
    assert_eq!(probe.seen.started(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_expired_lock_goes_to_the_first_waiter() {
    let probe = Probe::new();
    let hold = json!({"key": "k", "ttl": seconds(3), "auto_release": false});
    probe.call(&ask("test.echo").lock(hold)).await;
    let request = ask("test.echo").lock(json!({"key": "k", "block": seconds(60)}));
    let started = tokio::time::Instant::now();
    probe.check(&request, &json!({"result": {}})).await;
    assert_eq!(started.elapsed().as_millis().div_ceil(100), 30);
}

#[tokio::test(start_paused = true)]
async fn a_lock_without_auto_release_is_held_until_its_owner_releases_it() {
    let probe = Probe::new();
    let request = ask("test.echo").lock(json!({"key": "k", "auto_release": false}));
    let answer = probe.check(&request, &json!({"result": {}})).await;
    let lock = data(&answer, LOCK).clone();
    let full_key = "lock:test.echo:k";
    let status = ask(STATUS).arguments(json!({"key": full_key}));
    let expected = json!({"result": {
        "key": full_key, "locked": true, "owner": lock["owner"], "fence": lock["fence"],
        "expires_at": lock["expires_at"], "acquired_at": "<time>", "ttl_remaining": 30,
    }});
    probe.check(&status, &expected).await;
    let refused = ask("test.echo").lock(json!({"key": "k"}));
    probe
        .check(&refused, &failed(&ErrorCode::LockAcquisitionFailed))
        .await;
    let other = ask(RELEASE).arguments(json!({"key": full_key, "owner": "somebody"}));
    probe
        .check(&other, &failed(&ErrorCode::LockOwnershipMismatch))
        .await;
    let release = ask(RELEASE).arguments(json!({"key": full_key, "owner": lock["owner"]}));
    let released = json!({"result": {"released": true, "key": full_key}});
    probe.check(&release, &released).await;
    probe
        .check(
            &status,
            &json!({"result": {"key": full_key, "locked": false}}),
        )
        .await;
    probe
        .check(&release, &failed(&ErrorCode::LockAlreadyReleased))
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_lock_without_auto_release_expires() {
    let probe = Probe::new();
    let keep = json!({"key": "k", "auto_release": false, "ttl": seconds(10)});
    probe.call(&ask("test.echo").lock(keep)).await;
    tokio::time::sleep(std::time::Duration::from_millis(9_900)).await;
    let again = ask("test.echo").lock(json!({"key": "k"}));
    probe
        .check(&again, &failed(&ErrorCode::LockAcquisitionFailed))
        .await;
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    probe.check(&again, &json!({"result": {}})).await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_locked_for_an_invalid_call() {
    let probe = Probe::new();
    let keep = json!({"key": "k", "auto_release": false, "ttl": seconds(60)});
    for (request, code) in [
        (ask("test.nothing"), ErrorCode::FunctionNotFound),
        (
            ask("test.echo").version("9.9.9"),
            ErrorCode::VersionNotFound,
        ),
        (ask("test.sleep"), ErrorCode::InvalidArguments),
        (
            ask("test.sleep").arguments(json!({"ms": "x"})),
            ErrorCode::InvalidArguments,
        ),
        (
            ask("test.echo").with(DEADLINE, json!({"value": -1, "unit": "second"})),
            ErrorCode::InvalidArguments,
        ),
        (
            ask("test.echo").with(TRACING, json!({"trace_id": "t", "span_id": 5})),
            ErrorCode::InvalidArguments,
        ),
        (
            ask("test.echo").with(RETRY, json!({"x": 1})),
            ErrorCode::InvalidArguments,
        ),
        (
            ask("test.echo").with("urn:acme:forrst:ext:x", Value::Null),
            ErrorCode::ExtensionNotSupported,
        ),
    ] {
        // At any position of the lock among the extensions.
        let first = ask("test.echo").lock(keep.clone());
        let mut lock_first = request.value().clone();
        let own = lock_first["extensions"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let lock = first.value()["extensions"][0].clone();
        lock_first["extensions"] = std::iter::once(lock).chain(own).collect();
        let last = request.clone().lock(keep.clone());
        for body in [lock_first.to_string(), last.text()] {
            let response = probe.server.handle(body.as_bytes()).await;
            expect(&serde_json::to_value(&response).unwrap(), &failed(&code));
            probe.expect_nothing_left().await;
        }
    }
    assert_eq!(probe.seen.started(), 0);
}

#[tokio::test(start_paused = true)]
async fn invalid_lock_options_are_named_before_anything_happens() {
    let probe = Probe::new();
    let good = json!({"key": "k", "ttl": seconds(1)});
    for (member, value, at) in [
        ("key", json!(""), "key"),
        ("key", json!(7), "key"),
        ("key", json!("a\u{7}b"), "key"),
        ("key", json!("k".repeat(513)), "key"),
        ("key", Value::Null, "key"),
        ("ttl", json!(30), "ttl"),
        ("ttl", json!({"value": 1}), "ttl/unit"),
        ("ttl", json!({"unit": "second"}), "ttl/value"),
        ("ttl", json!({"value": 0, "unit": "second"}), "ttl/value"),
        ("ttl", json!({"value": -1, "unit": "second"}), "ttl/value"),
        ("ttl", json!({"value": 1.5, "unit": "second"}), "ttl/value"),
        ("ttl", json!({"value": "1", "unit": "second"}), "ttl/value"),
        ("ttl", json!({"value": 1, "unit": "seconds"}), "ttl/unit"),
        (
            "ttl",
            json!({"value": 1, "unit": "second", "x": 1}),
            "ttl/x",
        ),
        ("ttl", json!({"value": 25, "unit": "hour"}), "ttl"),
        (
            "ttl",
            json!({"value": u64::MAX, "unit": "day"}),
            "ttl/value",
        ),
        ("scope", json!("local"), "scope"),
        ("scope", Value::Null, "scope"),
        ("block", json!({"value": 6, "unit": "minute"}), "block"),
        (
            "block",
            json!({"value": 0, "unit": "minute"}),
            "block/value",
        ),
        ("block", Value::Null, "block"),
        ("owner", json!(""), "owner"),
        ("owner", json!("o".repeat(256)), "owner"),
        ("auto_release", json!("true"), "auto_release"),
        ("auto_release", json!(1), "auto_release"),
        ("renew", Value::Null, "renew"),
        ("wait", json!(1), "wait"),
    ] {
        let mut options = good.clone();
        options[member] = value;
        let expected = json!({"errors": [{
            "code": "INVALID_ARGUMENTS",
            "message": "<text>",
            "source": {"pointer": format!("/extensions/0/options/{at}")},
        }]});
        probe
            .check(&ask("test.echo").with(LOCK, options), &expected)
            .await;
    }
    let answer = probe.call(&ask("test.echo").with(LOCK, Value::Null)).await;
    assert_eq!(
        crate::wire::pointers(&answer),
        ["/extensions/0/options/key", "/extensions/0/options/ttl"]
    );
    assert_eq!(probe.seen.started(), 0);
    probe.expect_nothing_left().await;
}

#[tokio::test(start_paused = true)]
async fn a_function_that_fails_releases_its_lock_and_keeps_the_data_of_the_extension() {
    let probe = Probe::new();
    let request = ask("test.fail").lock(json!({"key": "k"}));
    let expected = json!({
        "result": null,
        "errors": [{"code": "TEST_FAILED"}],
        "extensions": [{"urn": LOCK, "data": {
            "key": "k", "acquired": true, "owner": "<uuid>", "scope": "function",
            "expires_at": "<time>", "full_key": "lock:test.fail:k", "fence": "<fence>",
        }}],
    });
    probe.check(&request, &expected).await;
    probe.expect_nothing_left().await;
    let keep = ask("test.fail").lock(json!({"key": "k", "auto_release": false}));
    probe.check(&keep, &expected).await;
    assert!(probe.holder("lock:test.fail:k").await.is_some());
}

/// Some valid JSON cannot be read, such as numbers that are too large. That is one problem, and members beside it are not
/// reported as missing.
#[tokio::test]
async fn a_value_that_cannot_be_read_is_pointed_at() {
    let probe = Probe::new();
    let second = json!({"value": 1, "unit": "second"});
    let locked = ask("test.echo").lock(json!({"key": "HERE", "ttl": second}));
    let acquire = ask("urn:cline:forrst:ext:atomic-lock:fn:acquire")
        .arguments(json!({"key": "HERE", "ttl": second}));
    for (request, at) in [
        (locked, "/extensions/0/options"),
        (acquire, "/call/arguments"),
    ] {
        for (from, to, member) in [
            ("\"HERE\"", "\"\\ud800\"", "/key"),
            ("\"value\":1", "\"value\":1e400", "/ttl/value"),
        ] {
            let text = request.text();
            assert!(text.contains(from), "{text}");
            let response = probe.server.handle(text.replace(from, to).as_bytes()).await;
            let answer = serde_json::to_value(&response).unwrap();
            expect(&answer, &failed(&ErrorCode::InvalidArguments));
            assert_eq!(crate::wire::pointers(&answer), [format!("{at}{member}")]);
        }
    }
    probe.expect_nothing_left().await;
}
