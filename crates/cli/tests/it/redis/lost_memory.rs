//! Redis has lost its scripts, its locks, or everything: fences still grow.

use forrst_testkit::{Lock, RedisOptions, RedisServer};

use crate::redis::nodes::{HOUR, SECOND, give_back, node, take, until_serving};

#[test]
fn scripts_that_were_flushed_are_loaded_again() {
    let redis = RedisServer::start();
    let [one, other] = [(); 2].map(|()| node(&redis.url()));
    let lock = Lock::global("k");
    for owner in ["a", "b"] {
        let lease = take(&one, &lock, owner, HOUR);
        redis.cli(&["SCRIPT", "FLUSH"]);
        let holder = other.ask(&lock.status()).holder();
        assert_eq!(holder, Some(lease.clone()));
        redis.cli(&["SCRIPT", "FLUSH"]);
        give_back(&other, &lock, &lease);
        redis.cli(&["SCRIPT", "FLUSH"]);
    }
}

/// Checks that fences grow although Redis forgets everything, with the lock held or free.
fn check_that_fences_grow(redis: &mut RedisServer, forget: impl Fn(&mut RedisServer)) {
    let node = node(&redis.url());
    let lock = Lock::global("k");
    let mut last = 0;
    for round in 0..3 {
        for _ in 0..10 {
            let lease = take(&node, &lock, "owner", HOUR);
            assert!(lease.fence > last, "{} after {last}", lease.fence);
            last = lease.fence;
            give_back(&node, &lock, &lease);
        }
        // In one round the lock is held when Redis forgets it.
        if round == 1 {
            last = take(&node, &lock, "owner", SECOND).fence;
        }
        forget(redis);
        until_serving(&node);
        crate::redis::nodes::until_free(&node, &lock, crate::redis::nodes::RECOVERY);
    }
    let lease = take(&node, &lock, "owner", HOUR);
    assert!(lease.fence > last, "{} after {last}", lease.fence);
}

#[test]
fn fences_grow_across_a_restart() {
    check_that_fences_grow(&mut RedisServer::start(), RedisServer::restart);
}

#[test]
fn fences_grow_across_a_restart_without_persistence() {
    let mut redis = RedisOptions::default().forgetful().start();
    check_that_fences_grow(&mut redis, RedisServer::restart);
}

#[test]
fn fences_grow_after_everything_was_deleted() {
    check_that_fences_grow(&mut RedisServer::start(), |redis| {
        redis.cli(&["FLUSHALL"]);
    });
}
