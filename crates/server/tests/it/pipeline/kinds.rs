//! The kinds of locks (shared, limited, and sets of keys) and their options.

use std::time::Duration;

use forrst_lock::LockName;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::pipeline::probe::Probe;
use crate::wire::{LOCK, ask, data, expect, millis, pointers, seconds, until};

const SYSTEM: &str = "urn:cline:forrst:ext:atomic-lock:fn:";

pub(super) fn system(function: &str, arguments: Value) -> crate::wire::Ask {
    ask(&format!("{SYSTEM}{function}")).arguments(arguments)
}

pub(super) fn acquire(mut arguments: Value) -> crate::wire::Ask {
    let members = arguments.as_object_mut().unwrap();
    members.entry("ttl").or_insert_with(|| seconds(30));
    system("acquire", arguments)
}

pub(super) async fn hold(probe: &Probe, arguments: Value) -> Value {
    let answer = probe.call(&acquire(arguments)).await;
    expect(&answer, &json!({"result": {"acquired": true}}));
    answer["result"].clone()
}

pub(super) async fn refuse(probe: &Probe, arguments: Value, blocked_by: Value) {
    let details = json!({"blocked_by": blocked_by});
    let errors = json!([{"code": "LOCK_ACQUISITION_FAILED", "details": details}]);
    let answer = probe.call(&acquire(arguments)).await;
    expect(&answer, &json!({"result": null, "errors": errors}));
}

pub(super) async fn wait(probe: &Probe, mut arguments: Value) -> JoinHandle<Value> {
    arguments["block"] = seconds(60);
    probe.start_waiting(&acquire(arguments)).await
}

pub(super) async fn release(probe: &Probe, lease: &Value, key: &str) {
    let arguments = json!({"key": key, "owner": lease["owner"], "fence": lease["fence"]});
    let answer = probe.call(&system("release", arguments)).await;
    expect(&answer, &json!({"result": {"released": true}}));
}

#[tokio::test(start_paused = true)]
async fn every_invalid_option_is_pointed_at_and_nothing_is_locked() {
    let probe = Probe::new();
    let many: Vec<String> = (0..17).map(|number| format!("k{number}")).collect();
    let key = json!("a");
    for (options, expected) in [
        (json!({"key": key, "mode": "write"}), vec!["/mode"]),
        (json!({"key": key, "mode": null}), vec!["/mode"]),
        (json!({"key": key, "limit": 0}), vec!["/limit"]),
        (json!({"key": key, "limit": 10_001}), vec!["/limit"]),
        (json!({"key": key, "limit": 2.5}), vec!["/limit"]),
        (json!({"key": key, "limit": "3"}), vec!["/limit"]),
        (json!({"key": key, "limit": 3.0}), vec!["/limit"]),
        (json!({"key": key, "limit": 1e1}), vec!["/limit"]),
        (json!({"key": key, "limit": null}), vec!["/limit"]),
        (json!({"keys": null}), vec!["/keys"]),
        (json!({"keys": ["a", null]}), vec!["/keys/1"]),
        (
            json!({"keys": ["a", {"key": "b", "mode": null}]}),
            vec!["/keys/1/mode"],
        ),
        (
            json!({"key": key, "limit": 3, "mode": "shared"}),
            vec!["/limit"],
        ),
        (
            json!({"key": key, "limit": 0, "mode": "x"}),
            vec!["/limit", "/mode"],
        ),
        (json!({"key": key, "keys": ["a", "b"]}), vec!["/keys"]),
        (json!({"mode": "shared"}), vec!["/key"]),
        (json!({"keys": "a"}), vec!["/keys"]),
        (json!({"keys": []}), vec!["/keys"]),
        (json!({"keys": ["a"]}), vec!["/keys"]),
        (json!({"keys": many}), vec!["/keys"]),
        (json!({"keys": ["a", "a"]}), vec!["/keys/1"]),
        (
            json!({"keys": ["caf\u{e9}", "cafe\u{301}"]}),
            vec!["/keys/1"],
        ),
        (
            json!({"keys": ["a", {"key": "a", "mode": "shared"}]}),
            vec!["/keys/1"],
        ),
        (json!({"keys": ["a", ""]}), vec!["/keys/1"]),
        (json!({"keys": ["a", 7]}), vec!["/keys/1"]),
        (json!({"keys": ["a", ["b"]]}), vec!["/keys/1"]),
        (json!({"keys": ["a", {}]}), vec!["/keys/1/key"]),
        (
            json!({"keys": ["a", {"key": "b", "ttl": 1}]}),
            vec!["/keys/1/ttl"],
        ),
        (
            json!({"keys": ["a", {"key": "b", "mode": "no"}]}),
            vec!["/keys/1/mode"],
        ),
        (
            json!({"keys": ["a", {"key": "b", "limit": 0}]}),
            vec!["/keys/1/limit"],
        ),
        (
            json!({"keys": ["a", {"key": "b", "limit": 2, "mode": "shared"}]}),
            vec!["/keys/1/limit"],
        ),
        (
            json!({"keys": [7, {"key": "", "limit": 0}], "limit": 0, "note": "a\nb"}),
            vec!["/keys/0", "/keys/1/key", "/keys/1/limit", "/limit", "/note"],
        ),
        (json!({"key": key, "note": "n".repeat(256)}), vec!["/note"]),
        (json!({"key": key, "note": 7}), vec!["/note"]),
    ] {
        let answer = probe.call(&ask("test.echo").lock(options.clone())).await;
        let at = |base: &str| -> Vec<String> {
            expected
                .iter()
                .map(|tail| format!("{base}{tail}"))
                .collect()
        };
        assert_eq!(pointers(&answer), at("/extensions/0/options"), "{options}");
        let codes = answer["errors"].as_array().unwrap().iter();
        assert!(
            codes
                .map(|e| &e["code"])
                .all(|code| code == "INVALID_ARGUMENTS")
        );
        let answer = probe.call(&acquire(options.clone())).await;
        assert_eq!(pointers(&answer), at("/call/arguments"), "{options}");
    }
    assert_eq!(probe.seen.started(), 0);
    probe.expect_nothing_left().await;
}

#[tokio::test(start_paused = true)]
async fn entries_beyond_the_limit_are_counted_and_not_read() {
    let probe = Probe::new();
    let answer = probe
        .call(&acquire(json!({"keys": vec!["same"; 30]})))
        .await;
    let mut expected: Vec<String> = (1..=16)
        .map(|index| format!("/call/arguments/keys/{index}"))
        .collect();
    expected.push("/call/arguments/keys".to_owned());
    expected.sort_unstable();
    assert_eq!(pointers(&answer), expected);
}

#[tokio::test(start_paused = true)]
async fn both_ways_to_name_keys_are_mentioned_when_neither_is_used() {
    let probe = Probe::new();
    let answer = probe.call(&acquire(json!({"limit": 2.0}))).await;
    let messages: Vec<&str> = answer["errors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|error| error["message"].as_str().unwrap())
        .collect();
    assert_eq!(
        messages,
        [
            "`limit` must be an integer from 1 to 10000, without a fraction",
            "`key` is required, or `keys` for several at once",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_set_is_answered_in_the_order_of_the_request() {
    let probe = Probe::new();
    let options = json!({"keys": ["b", {"key": "a", "mode": "shared"}], "limit": 3});
    let expected = json!({
        "keys": ["b", "a"], "full_keys": ["lock:test.context:b", "lock:test.context:a"],
        "key": "<absent>", "full_key": "<absent>", "limit": 3, "mode": "<absent>",
        "acquired": true, "owner": "<uuid>", "scope": "function", "expires_at": "<time>",
        "fence": "<fence>", "ttl_remaining_ms": "<number>", "elapsed_ms": "<number>",
    });
    let answer = probe.call(&ask("test.context").lock(options)).await;
    expect(data(&answer, LOCK), &expected);
    // The function holds all of them, under one fence.
    expect(
        &answer["result"]["lease"],
        &json!({
            "key": "lock:test.context:b",
            "keys": ["lock:test.context:b", "lock:test.context:a"],
            "fence": data(&answer, LOCK)["fence"],
        }),
    );
    probe.expect_nothing_left().await;
    let options = json!({"keys": ["b", "a"], "scope": "global"});
    let answer = probe.call(&ask("test.echo").lock(options)).await;
    let expected =
        json!({"full_keys": ["lock:b", "lock:a"], "mode": "<absent>", "limit": "<absent>"});
    expect(data(&answer, LOCK), &expected);
}

#[tokio::test(start_paused = true)]
async fn the_remaining_time_of_a_lease_is_in_the_answer() {
    let probe = Probe::new();
    let lock = json!({"key": "k", "auto_release": false});
    let request = ask("test.sleep")
        .arguments(json!({"ms": 10_000}))
        .lock(lock);
    let answer = probe.call(&request).await;
    let data = data(&answer, LOCK);
    let number = |name: &str| data[name].as_u64().unwrap();
    // The memory store uses the real clock, which has hardly moved.
    assert!((10_000..11_000).contains(&number("elapsed_ms")), "{data}");
    assert!(
        (19_000..=20_000).contains(&number("ttl_remaining_ms")),
        "{data}"
    );
}

#[tokio::test(start_paused = true)]
async fn the_remaining_time_of_a_lease_counts_from_its_grant() {
    let probe = Probe::new();
    let holder = hold(&probe, json!({"key": "k"})).await;
    let waiting = wait(&probe, json!({"key": "k", "ttl": seconds(10)})).await;
    sleep(Duration::from_secs(5)).await;
    release(&probe, &holder, "lock:k").await;
    let granted = waiting.await.unwrap()["result"].take();
    let number = |name: &str| granted[name].as_u64().unwrap();
    assert!((5_000..6_000).contains(&number("elapsed_ms")), "{granted}");
    assert!(
        (9_000..=10_000).contains(&number("ttl_remaining_ms")),
        "{granted}"
    );
}

#[tokio::test(start_paused = true)]
async fn shared_locks_are_held_together_and_do_not_pass_a_waiting_writer() {
    let probe = Probe::new();
    let shared = json!({"key": "k", "mode": "shared"});
    let first = hold(&probe, shared.clone()).await;
    expect(&first, &json!({"mode": "shared", "limit": "<absent>"}));
    let second = hold(&probe, shared.clone()).await;
    refuse(&probe, json!({"key": "k"}), json!(["lock:k"])).await;
    refuse(&probe, json!({"key": "k", "limit": 2}), json!(["lock:k"])).await;
    let writer = wait(&probe, json!({"key": "k", "mode": "exclusive"})).await;
    refuse(&probe, shared.clone(), json!(["lock:k"])).await;
    let readers = [
        wait(&probe, shared.clone()).await,
        wait(&probe, shared).await,
    ];
    release(&probe, &first, "lock:k").await;
    release(&probe, &second, "lock:k").await;
    let writer = writer.await.unwrap();
    expect(&writer, &json!({"result": {"mode": "exclusive"}}));
    release(&probe, &writer["result"], "lock:k").await;
    for reader in readers {
        expect(
            &reader.await.unwrap(),
            &json!({"result": {"mode": "shared"}}),
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_limit_admits_that_many_holders() {
    let probe = Probe::new();
    let one_of_two = json!({"key": "k", "limit": 2});
    let first = hold(&probe, one_of_two.clone()).await;
    let second = hold(&probe, one_of_two.clone()).await;
    expect(&second, &json!({"limit": 2, "mode": "<absent>"}));
    refuse(&probe, one_of_two.clone(), json!(["lock:k"])).await;
    let third = wait(&probe, one_of_two.clone()).await;
    release(&probe, &first, "lock:k").await;
    expect(&third.await.unwrap(), &json!({"result": {"limit": 2}}));
    refuse(&probe, json!({"key": "k", "limit": 3}), json!(["lock:k"])).await;
}

#[tokio::test(start_paused = true)]
async fn a_set_is_granted_as_a_whole_or_not_at_all() {
    let probe = Probe::new();
    let b = hold(&probe, json!({"key": "b"})).await;
    let set = json!({"keys": ["a", "b", "c"]});
    refuse(&probe, set.clone(), json!(["lock:b"])).await;
    assert_eq!(probe.holder("lock:a").await, None);
    let waiting = wait(&probe, set).await;
    // The key is free, but reserved.
    let free = json!({"result": {"key": "lock:a", "locked": false, "waiters": 1}});
    probe
        .check(&system("status", json!({"key": "lock:a"})), &free)
        .await;
    refuse(&probe, json!({"key": "a"}), json!(["lock:a"])).await;
    release(&probe, &b, "lock:b").await;
    let set = waiting.await.unwrap()["result"].clone();
    expect(
        &set,
        &json!({"keys": ["a", "b", "c"], "full_keys": ["lock:a", "lock:b", "lock:c"]}),
    );
    refuse(
        &probe,
        json!({"keys": ["c", "x", "a"]}),
        json!(["lock:a", "lock:c"]),
    )
    .await;
    // Any of its keys names the lease, and it ends as a whole.
    let longer = json!({"key": "lock:b", "owner": set["owner"], "ttl": seconds(60)});
    let extended = json!({"result": {"extended": true, "fence": set["fence"]}});
    probe.check(&system("extend", longer), &extended).await;
    release(&probe, &set, "lock:c").await;
    probe.expect_nothing_left().await;
}

/// The hint of a refusal, in milliseconds.
async fn retry_after(probe: &Probe, arguments: Value) -> u64 {
    let answer = probe.call(&acquire(arguments)).await;
    let hint = &answer["errors"][0]["details"]["retry_after"];
    assert_eq!(hint["unit"], "millisecond", "{answer}");
    hint["value"].as_u64().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_retry_hint_is_not_after_the_end_of_the_blocking_leases() {
    let probe = Probe::new();
    for owner in ["short", "long"] {
        let ttl = if owner == "short" {
            millis(300)
        } else {
            seconds(30)
        };
        hold(
            &probe,
            json!({"key": "pool", "limit": 2, "owner": owner, "ttl": ttl}),
        )
        .await;
    }
    hold(&probe, json!({"key": "b", "ttl": millis(300)})).await;
    let limited = json!({"key": "pool", "limit": 2});
    assert!(retry_after(&probe, limited).await <= 300);
    let set = json!({"keys": ["a", "b"]});
    assert!(retry_after(&probe, set.clone()).await <= 300);
    let waiting = wait(&probe, set).await;
    // The key is free, but reserved until the lease on the other key has ended.
    assert!(retry_after(&probe, json!({"key": "a"})).await <= 300);
    waiting.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_refusal_names_the_keys_of_the_set() {
    let probe = Probe::new();
    hold(&probe, json!({"key": "b"})).await;
    let options = json!({"keys": ["b", "a"], "scope": "global", "block": seconds(1)});
    let expected = json!({
        "errors": [{"code": "LOCK_TIMEOUT", "details": {
            "keys": ["b", "a"], "full_keys": ["lock:b", "lock:a"], "key": "<absent>",
            "full_key": "<absent>", "scope": "global", "waited": seconds(1), "blocked_by": ["lock:b"],
        }}],
        "extensions": [{"urn": LOCK, "data": {"keys": ["b", "a"], "acquired": false, "key": "<absent>"}}],
    });
    probe
        .check(&ask("test.echo").lock(options), &expected)
        .await;
    assert_eq!(probe.seen.started(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_disconnects_takes_its_set_out_of_every_queue() {
    let probe = Probe::new();
    hold(&probe, json!({"key": "b"})).await;
    let set = wait(&probe, json!({"keys": ["a", "b"]})).await;
    let next = wait(&probe, json!({"key": "a"})).await;
    set.abort();
    expect(&next.await.unwrap(), &json!({"result": {"acquired": true}}));
    until("no call waits", || probe.server.locks().waiting() == 0).await;
    let name = LockName::parse("lock:b").unwrap();
    let (status, _) = probe.server.locks().inspect(&name).await.unwrap();
    assert_eq!(status.waiters, 0);
}

#[tokio::test(start_paused = true)]
async fn a_deadline_ends_the_wait_of_a_set_and_a_function_under_one() {
    let probe = Probe::new();
    let exceeded = json!({"errors": [{"code": "DEADLINE_EXCEEDED"}]});
    let holder = hold(&probe, json!({"key": "b"})).await;
    let set = json!({"keys": ["a", "b"], "scope": "global", "block": seconds(60)});
    let request = ask("test.gate").lock(set.clone()).deadline(millis(300));
    let waiting = probe.start_waiting(&request).await;
    let next = wait(&probe, json!({"key": "a"})).await;
    expect(&waiting.await.unwrap(), &exceeded);
    let next = next.await.unwrap()["result"].take();
    release(&probe, &next, "lock:a").await;
    release(&probe, &holder, "lock:b").await;
    probe.check(&request, &exceeded).await;
    assert_eq!(probe.seen.started(), 1);
    until("both keys are free", || probe.seen.dropped() == 1).await;
    probe.expect_nothing_left().await;
}

#[tokio::test(start_paused = true)]
async fn a_set_is_renewed_as_a_whole() {
    let probe = Probe::new();
    let set = json!({"keys": ["a", "b"], "scope": "global", "ttl": millis(300), "renew": true});
    let request = ask("test.sleep").arguments(json!({"ms": 3000})).lock(set);
    let running = probe.start_running(&request).await;
    for _ in 0..10 {
        sleep(Duration::from_millis(250)).await;
        refuse(&probe, json!({"key": "a"}), json!(["lock:a"])).await;
        refuse(&probe, json!({"key": "b"}), json!(["lock:b"])).await;
    }
    expect(&running.await.unwrap(), &json!({"result": {"slept": 3000}}));
    probe.expect_nothing_left().await;
}
