//! A server that is killed or paused while its callers hold locks or wait.

use std::time::Duration;

use forrst_testkit::{Lock, Node, RedisServer, request, until_for};
use serde_json::{Value, json};

use crate::redis::nodes::{
    HOUR, MARGIN, RECOVERY, SECOND, Waiter, give_back, node, take, until_free,
};

/// A call that holds the lock for as long as its server lives.
fn endless(lock: &Lock, ttl: Duration) -> Value {
    let sleep = request("demo.sleep", json!({"ms": 600_000}));
    lock.around(sleep, "endless", ttl)
}

#[test]
fn the_lock_of_a_killed_node_goes_to_a_waiter_at_its_ttl() {
    let redis = RedisServer::start();
    let [dies, lives] = [(); 2].map(|()| node(&redis.url()));
    let lock = Lock::global("k");
    let ttl = 3 * SECOND;
    let _call = dies.start_ask(endless(&lock, ttl));
    lives.until_locked(&lock.full_key());
    let first = lives.ask(&lock.status()).holder().unwrap();
    let waiter = Waiter::start(&lives, &lock, "waiter", HOUR);
    dies.kill();
    let lease = waiter.granted_within(ttl + MARGIN);
    let [until, first_until] = [&lease, &first].map(|it| Duration::from_millis(it.expires_at));
    assert!(until - HOUR >= first_until, "{lease:?} after {first:?}");
    assert!(lease.fence > first.fence);
}

#[test]
fn the_lock_of_a_killed_node_is_free_at_its_ttl() {
    let redis = RedisServer::start();
    let [mut dies, lives] = [(); 2].map(|()| node(&redis.url()));
    let lock = Lock::global("k");
    let _call = dies.start_ask(endless(&lock, 2 * SECOND));
    lives.until_locked(&lock.full_key());
    dies.kill();
    until_free(&lives, &lock, 2 * SECOND + MARGIN);
    // The restarted server works as before.
    dies.restart();
    take(&dies, &lock, "next", HOUR);
}

#[test]
fn waiters_of_a_killed_node_are_skipped() {
    let redis = RedisServer::start();
    let nodes = [(); 3].map(|()| node(&redis.url()));
    let [holds, dies, lives] = &nodes;
    let lock = Lock::global("k");
    let held = take(holds, &lock, "holder", HOUR);
    let wait = |node: &Node, owner: &str| Waiter::start(node, &lock, owner, HOUR);
    let _dead = [wait(dies, "dead 1"), wait(dies, "dead 2")];
    let alive = wait(lives, "alive");
    let _dead_too = wait(dies, "dead 3");
    dies.kill();
    give_back(holds, &lock, &held);
    let lease = alive.granted_within(RECOVERY);
    assert_eq!(lease.owner, "alive");
    // The last dead waiter does not get it either.
    give_back(lives, &lock, &lease);
    until_free(holds, &lock, RECOVERY);
}

#[test]
fn waiters_of_a_killed_node_are_not_listed() {
    let redis = RedisServer::start();
    let [dies, lives] = [(); 2].map(|()| node(&redis.url()));
    let lock = Lock::global("k");
    take(&lives, &lock, "holder", HOUR);
    let _dead = Waiter::start(&dies, &lock, "dead", HOUR);
    let _alive = Waiter::start(&lives, &lock, "alive", HOUR);
    dies.kill();
    until_for(
        RECOVERY,
        "only the waiter of the other server is listed",
        || lives.ask(&lock.waiters()).waiting() == ["alive"],
    );
}

#[test]
fn a_waiter_of_a_paused_node_is_granted_later() {
    let redis = RedisServer::start();
    let nodes = [(); 3].map(|()| node(&redis.url()));
    let [holds, sleeps, lives] = &nodes;
    let lock = Lock::global("k");
    let held = take(holds, &lock, "holder", HOUR);
    let asleep = Waiter::start(sleeps, &lock, "asleep", HOUR);
    let awake = Waiter::start(lives, &lock, "awake", HOUR);
    sleeps.pause();
    give_back(holds, &lock, &held);
    // Other waiters do not wait for a paused server.
    let lease = awake.granted_within(RECOVERY);
    assert!(asleep.is_waiting());
    sleeps.resume();
    give_back(lives, &lock, &lease);
    let next = asleep.granted_within(RECOVERY);
    assert!(next.fence > lease.fence);
    give_back(sleeps, &lock, &next);
}

#[test]
fn the_only_waiter_of_a_paused_node_gets_the_lock_when_it_continues() {
    let redis = RedisServer::start();
    let [holds, sleeps] = [(); 2].map(|()| node(&redis.url()));
    let lock = Lock::global("k");
    let held = take(&holds, &lock, "holder", HOUR);
    let waiter = Waiter::start(&sleeps, &lock, "asleep", HOUR);
    sleeps.pause();
    give_back(&holds, &lock, &held);
    until_free(&holds, &lock, RECOVERY);
    assert!(waiter.is_waiting());
    sleeps.resume();
    waiter.granted_within(RECOVERY);
}

#[test]
fn a_node_that_was_paused_beyond_its_lease_does_not_release_the_lock_of_the_successor() {
    let redis = RedisServer::start();
    let [sleeps, lives] = [(); 2].map(|()| node(&redis.url()));
    let lock = Lock::global("k");
    let nap = request("demo.sleep", json!({"ms": 500}));
    let call = sleeps.start_ask(lock.around(nap, "napper", SECOND));
    // A few requests through the same node, so that it has received its grant before it is paused.
    sleeps.until_locked(&lock.full_key());
    for _ in 0..20 {
        sleeps.ask(&lock.status());
    }
    sleeps.pause();
    let successor = Waiter::start(&lives, &lock, "successor", HOUR);
    let successor = successor.granted_within(SECOND + MARGIN);
    sleeps.resume();
    // The function has ended, and the server has tried to release its lock.
    let answer = call.join().unwrap().unwrap();
    assert!(answer.granted().is_some(), "{answer:?}");
    let holder = sleeps.ask(&lock.status()).holder();
    assert_eq!(holder, Some(successor));
}

#[test]
fn a_node_that_shuts_down_leaves_no_waiter_in_a_queue() {
    let redis = RedisServer::start();
    let [holds, ends] = [(); 2].map(|()| node(&redis.url()));
    let lock = Lock::global("k");
    let held = take(&holds, &lock, "holder", HOUR);
    let waiters: Vec<Waiter> = (0..20)
        .map(|number| Waiter::start(&ends, &lock, &format!("waiter {number}"), HOUR))
        .collect();
    ends.terminate();
    assert_eq!(redis.cli(&["KEYS", "*:queue:*"]).trim(), "");
    for waiter in waiters {
        let answer = waiter.answer().unwrap();
        assert_eq!(answer.code(), Some("UNAVAILABLE"), "{answer:?}");
    }
    give_back(&holds, &lock, &held);
    take(&holds, &lock, "next", HOUR);
}
