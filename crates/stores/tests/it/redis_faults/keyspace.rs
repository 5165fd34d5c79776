//! What is kept in Redis, and what is not.

use std::time::Duration;

use forrst_lock::model::Acquired;
use forrst_lock::{LockStore, Page, Ttl};
use forrst_stores::{RedisError, RedisOptions, RedisStore};
use forrst_testkit::RedisServer;
use tokio::time::sleep;

use crate::redis_faults::fixture::{
    acquire, call, granted, lasting_keys, open, release, take, wait,
};

#[tokio::test]
async fn prefixes_do_not_see_each_other() {
    let redis = RedisServer::start();
    redis.cli(&["SET", "foreign", "value"]);
    let with = async |prefix: &str| {
        let options = RedisOptions {
            prefix: prefix.to_owned(),
            ..RedisOptions::default()
        };
        RedisStore::open(&redis.url(), &options).await
    };
    let (one, other) = (with("one").await.unwrap(), with("other").await.unwrap());
    take(&one, "k").await;
    take(&other, "k").await;
    take(&other, "l").await;
    let names = |page: Page| page.locks.len();
    let all = forrst_lock::ListRequest {
        limit: 10,
        ..Default::default()
    };
    assert_eq!(names(one.list(&all).await.unwrap()), 1);
    assert_eq!(names(other.list(&all).await.unwrap()), 2);
    assert_eq!(redis.cli(&["GET", "foreign"]).trim(), "value");
    for prefix in ["", "a{b}", "a b", "ä", &"x".repeat(65)] {
        let refused = with(prefix).await;
        assert!(matches!(refused, Err(RedisError::BadPrefix(_))), "{prefix}");
    }
}

#[tokio::test]
async fn a_newer_format_is_refused() {
    let redis = RedisServer::start();
    redis.cli(&["SET", "forrst:format", "1000"]);
    let refused = RedisStore::open(&redis.url(), &RedisOptions::default()).await;
    assert!(matches!(refused, Err(RedisError::OtherFormat { .. })));
}

#[tokio::test]
async fn locks_leave_nothing_behind() {
    let redis = RedisServer::start();
    let store = open(&redis).await;
    for key in ["a", "b", "c"] {
        let lease = take(&store, key).await;
        let waiting = wait(&store, call(key, "b")).await;
        release(&store, &lease).await;
        release(&store, granted(&waiting.wake.await.unwrap())).await;
    }
    assert_eq!(lasting_keys(&redis), [""; 0]);
}

/// Takes locks that expire at once.
async fn take_briefly(store: &RedisStore, keys: impl IntoIterator<Item = String>) {
    let ttl = Ttl::new(Duration::from_millis(1)).unwrap();
    for key in keys {
        let mut call = call(&key, "a");
        call.claim.ttl = ttl;
        let acquired = acquire(store, call).await.unwrap();
        assert!(matches!(acquired, Acquired::Granted(_)), "{acquired:?}");
    }
    sleep(Duration::from_millis(5)).await;
}

/// The state of a lease that expired while there was no node expires by itself after a while; its entry in the index does not.
#[tokio::test]
async fn an_index_entry_without_a_lease_is_swept() {
    let redis = RedisServer::start();
    let store = open(&redis).await;
    take_briefly(&store, (0..20).map(|number| format!("k{number}"))).await;
    for lock in redis.cli(&["KEYS", "*:lock:*"]).split_whitespace() {
        redis.cli(&["DEL", lock]);
    }
    assert_eq!(store.counts().await.unwrap().keys, 20);
    assert_eq!(store.sweep(100).await.unwrap(), 20);
    assert_eq!(store.counts().await.unwrap().keys, 0);
    assert_eq!(redis.cli(&["KEYS", "*:expiry"]).trim(), "");
}

#[tokio::test]
async fn a_partition_that_fails_does_not_keep_the_others_from_being_swept() {
    let redis = RedisServer::start();
    let store = open(&redis).await;
    take_briefly(&store, (0..20).map(|number| format!("k{number}"))).await;
    let broken = redis.cli(&["KEYS", "*:expiry"]);
    let broken = broken.split_whitespace().next().unwrap();
    let in_broken: usize = redis.cli(&["ZCARD", broken]).trim().parse().unwrap();
    redis.cli(&["SET", broken, "no sorted set"]);
    assert_eq!(store.sweep(100).await.unwrap(), 20 - in_broken);
}

#[tokio::test]
async fn a_partition_with_many_due_locks_does_not_keep_the_others_from_being_swept() {
    let redis = RedisServer::start();
    let store = open(&redis).await;
    take_briefly(&store, (0..300).map(|number| format!("k{number}"))).await;
    let partitions = redis.cli(&["KEYS", "*:expiry"]);
    let partitions: Vec<&str> = partitions.split_whitespace().collect();
    let left = |ends: &&str| -> usize { redis.cli(&["ZCARD", ends]).trim().parse().unwrap() };
    let before: Vec<usize> = partitions.iter().map(left).collect();
    // One sweep for each partition, of one lock each.
    for _ in 0..64 {
        store.sweep(1).await.unwrap();
    }
    for (ends, before) in partitions.iter().zip(before) {
        assert!(left(ends) < before, "{ends} still has all {before}");
    }
}
