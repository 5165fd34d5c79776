//! Locks with several holders: what `status`, `list` and `waiters` show, and how one lease of many is named.

use serde_json::{Value, json};

use crate::pipeline::kinds::{hold, release, system, wait};
use crate::pipeline::probe::Probe;
use crate::wire::{expect, pointers, seconds};

#[tokio::test(start_paused = true)]
async fn status_and_list_show_every_holder() {
    let probe = Probe::new();
    let first = json!({"key": "b", "limit": 3, "owner": "one", "note": "render job"});
    let first = hold(&probe, first).await;
    let set = json!({"keys": ["a", {"key": "b", "limit": 3}], "owner": "two"});
    let set = hold(&probe, set).await;
    let expected = json!({
        "key": "lock:b", "locked": true, "limit": 3, "available": 1, "mode": "<absent>",
        "owner": "one", "fence": first["fence"], "note": "render job", "ttl_remaining": 30,
        "ttl_remaining_ms": "<number>", "holder_count": 2, "waiters": 0, "full_keys": "<absent>",
        "holders": [
            {"owner": "one", "fence": first["fence"], "acquired_at": "<time>", "expires_at": "<time>",
             "ttl_remaining": 30, "ttl_remaining_ms": "<number>", "note": "render job", "full_keys": "<absent>"},
            {"owner": "two", "fence": set["fence"], "full_keys": ["lock:a", "lock:b"], "note": "<absent>"},
        ],
    });
    let status = system("status", json!({"key": "lock:b"}));
    probe.check(&status, &json!({"result": expected})).await;
    let answer = probe.call(&system("list", json!({}))).await;
    let mut locks = answer["result"]["locks"].as_array().unwrap().clone();
    locks.sort_by_key(|lock| lock["key"].to_string());
    // The set is listed under each of its keys.
    let of_a = json!({"key": "lock:a", "mode": "exclusive", "limit": "<absent>", "available": "<absent>",
        "holders": [{"full_keys": ["lock:a", "lock:b"]}]});
    expect(&json!(locks), &json!([of_a, expected]));
    hold(&probe, json!({"key": "s", "mode": "shared"})).await;
    let shared = json!({"result": {"mode": "shared", "available": "<absent>", "holder_count": 1}});
    probe
        .check(&system("status", json!({"key": "lock:s"})), &shared)
        .await;
}

#[tokio::test(start_paused = true)]
async fn at_most_a_hundred_holders_are_shown_and_all_are_released_by_force() {
    let probe = Probe::new();
    for _ in 0..101 {
        hold(&probe, json!({"key": "k", "mode": "shared"})).await;
    }
    let answer = probe
        .call(&system("status", json!({"key": "lock:k"})))
        .await;
    assert_eq!(answer["result"]["holders"].as_array().unwrap().len(), 100);
    assert_eq!(answer["result"]["holder_count"], 101);
    let forced = json!({"result": {"leases": 101}});
    let force = system("force-release", json!({"key": "lock:k"}));
    probe.check(&force, &forced).await;
    probe.expect_nothing_left().await;
}

#[tokio::test(start_paused = true)]
async fn waiters_have_positions_and_notes() {
    let probe = Probe::new();
    hold(&probe, json!({"key": "b"})).await;
    let _set = wait(
        &probe,
        json!({"keys": ["a", "b"], "owner": "one", "note": "first"}),
    )
    .await;
    let _next = wait(&probe, json!({"key": "b", "owner": "two"})).await;
    let one = json!({"position": 1, "owner": "one", "note": "first", "since": "<time>", "until": "<time>"});
    let two = json!({"position": 2, "owner": "two", "note": "<absent>"});
    for (key, expected) in [("lock:b", json!([one, two])), ("lock:a", json!([one]))] {
        let expected = json!({"result": {"key": key, "waiters": expected}});
        probe
            .check(&system("waiters", json!({"key": key})), &expected)
            .await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_owner_of_several_leases_must_name_one() {
    let probe = Probe::new();
    let shared = json!({"key": "k", "mode": "shared", "owner": "me"});
    let first = hold(&probe, shared.clone()).await;
    let second = hold(&probe, shared).await;
    for (function, ttl) in [("release", Value::Null), ("extend", seconds(9))] {
        let mut arguments = json!({"key": "lock:k", "owner": "me"});
        if !ttl.is_null() {
            arguments["ttl"] = ttl;
        }
        let answer = probe.call(&system(function, arguments)).await;
        expect(&answer, &json!({"errors": [{"code": "INVALID_ARGUMENTS"}]}));
        assert_eq!(pointers(&answer), ["/call/arguments/fence"]);
    }
    release(&probe, &second, "lock:k").await;
    release(&probe, &first, "lock:k").await;
}

#[tokio::test(start_paused = true)]
async fn force_release_ends_every_lease_on_a_key_as_a_whole() {
    let probe = Probe::new();
    let shared = json!({"key": "k", "mode": "shared"});
    let first = hold(&probe, shared.clone()).await;
    hold(&probe, shared).await;
    let set = hold(&probe, json!({"keys": ["k", "x"], "mode": "shared"})).await;
    let force = |arguments| system("force-release", arguments);
    let one = json!({"key": "lock:k", "fence": first["fence"]});
    let expected =
        json!({"result": {"released": true, "key": "lock:k", "forced": true, "leases": 1}});
    probe.check(&force(one.clone()), &expected).await;
    let mismatch = json!({"errors": [{"code": "LOCK_OWNERSHIP_MISMATCH"}]});
    probe.check(&force(one), &mismatch).await;
    let expected = json!({"result": {"leases": 2}});
    probe
        .check(&force(json!({"key": "lock:k"})), &expected)
        .await;
    probe.expect_nothing_left().await;
    let arguments = json!({"key": "lock:x", "owner": set["owner"]});
    let forced =
        json!({"errors": [{"code": "LOCK_ALREADY_RELEASED", "details": {"forced": true}}]});
    probe.check(&system("release", arguments), &forced).await;
}

#[tokio::test(start_paused = true)]
async fn a_page_ends_early_when_its_locks_have_many_holders() {
    let probe = Probe::new();
    for number in 0..11 {
        for _ in 0..100 {
            hold(
                &probe,
                json!({"key": format!("k{number}"), "mode": "shared"}),
            )
            .await;
        }
    }
    let mut lengths = Vec::new();
    let mut names = std::collections::BTreeSet::new();
    let mut arguments = json!({"limit": 1000});
    loop {
        let page = probe.call(&system("list", arguments.clone())).await["result"].take();
        let locks = page["locks"].as_array().unwrap();
        lengths.push(locks.len());
        names.extend(locks.iter().map(|lock| lock["key"].to_string()));
        if page["cursor"].is_null() {
            break;
        }
        arguments["cursor"] = page["cursor"].clone();
    }
    assert_eq!((lengths, names.len()), (vec![10, 1], 11));
}

#[tokio::test(start_paused = true)]
async fn notes_are_shown_as_they_are() {
    let probe = Probe::new();
    let longest = "\u{fc}".repeat(127) + "x";
    assert_eq!(longest.len(), 255);
    hold(&probe, json!({"key": "long", "note": longest})).await;
    hold(&probe, json!({"key": "none", "note": ""})).await;
    for (key, note) in [("long", longest.as_str()), ("none", "<absent>")] {
        let shown = json!({"note": note, "holders": [{"note": note}]});
        let full_key = format!("lock:{key}");
        let status = system("status", json!({"key": full_key}));
        probe.check(&status, &json!({"result": shown})).await;
        let list = system("list", json!({"prefix": full_key}));
        let expected = json!({"result": {"locks": [shown]}});
        probe.check(&list, &expected).await;
    }
}
