//! Redis is paused or killed under load.

use std::thread;
use std::time::Duration;

use forrst_testkit::{Lock, RedisServer};

use crate::redis::nodes::{
    HOUR, MINUTE, SECOND, Waiter, assert_unavailable, give_back, node, take, until_serving,
};
use crate::redis::protected::Load;

#[test]
fn no_update_is_lost_while_redis_is_killed_and_paused() {
    let mut redis = RedisServer::start();
    let nodes = [(); 2].map(|()| node(&redis.url()));
    let addresses = nodes.each_ref().map(|node| node.address());
    let load = Load::start(&addresses, 3);
    for _ in 0..3 {
        redis.restart();
        load.until_every_number_changes();
    }
    for still in [500, 2_500] {
        redis.pause();
        thread::sleep(Duration::from_millis(still));
        redis.resume();
        load.until_every_number_changes();
    }
    redis.kill();
    thread::sleep(2 * SECOND);
    redis.restart();
    load.until_every_number_changes();
    assert!(load.unavailable() > 0);
    load.stop();
}

#[test]
fn while_redis_is_paused_callers_get_an_error_in_time() {
    let redis = RedisServer::start();
    let node = node(&redis.url());
    let lock = Lock::global("k");
    let held = take(&node, &lock, "holder", HOUR);
    redis.pause();
    let other = Lock::global("other");
    for request in [
        other.acquire("late", HOUR),
        other.acquire_within("late", HOUR, MINUTE),
        other.locked_call("late", HOUR, true),
        lock.status(),
        lock.extend("holder", held.fence, HOUR),
    ] {
        assert_unavailable(&node, &request);
    }
    redis.resume();
    until_serving(&node);
    // The held lock is still held, and the other one is free.
    assert_eq!(node.ask(&lock.status()).holder(), Some(held.clone()));
    crate::redis::nodes::until_free(&node, &other, crate::redis::nodes::RECOVERY);
    give_back(&node, &lock, &held);
}

#[test]
fn a_restart_of_redis_keeps_locks_and_answers_waiters() {
    let mut redis = RedisServer::start();
    let [one, other] = [(); 2].map(|()| node(&redis.url()));
    let lock = Lock::global("k");
    let held = take(&one, &lock, "holder", HOUR);
    let waiter = Waiter::start(&other, &lock, "waiter", HOUR);
    redis.restart();
    until_serving(&one);
    until_serving(&other);
    assert_eq!(other.ask(&lock.status()).holder(), Some(held.clone()));
    give_back(&one, &lock, &held);
    // It got either an error or the lock.
    let answer = waiter.answer().unwrap();
    match answer.granted() {
        Some(lease) => give_back(&other, &lock, &lease),
        None => assert_eq!(answer.code(), Some("UNAVAILABLE"), "{answer:?}"),
    }
    take(&one, &lock, "next", HOUR);
}
