//! A Redis that is full and evicts nothing still serves what is held; one that cannot be written is not healthy.

use std::sync::Arc;
use std::time::Duration;

use forrst_lock::LockStore;
use forrst_stores::{RedisOptions, RedisStore};
use forrst_testkit::RedisServer;
use tokio::task::JoinSet;

use crate::redis_faults::ground::{
    acquire, call, open, release, still_serves_what_is_held, take, take_again, until, wait,
};

#[tokio::test]
async fn a_full_redis_grants_nothing_new_but_serves_what_is_held() {
    let redis = RedisServer::start();
    let store = open(&redis).await;
    let lease = take(&store, "held").await;
    let waiting = wait(&store, call("held", "b")).await;
    let abandoned = call("abandoned", "a");
    let ticket = abandoned.ticket;
    acquire(&store, abandoned).await.unwrap();
    redis.cli(&["CONFIG", "SET", "maxmemory", "1mb"]);

    assert!(acquire(&store, call("new", "a")).await.is_err());
    still_serves_what_is_held(&store, &lease, waiting, ("abandoned", ticket)).await;
    // A node that restarts meanwhile must be able to serve its leases.
    open(&redis).await.health().await.unwrap();

    redis.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    take_again(&store, "new").await;
}

#[tokio::test]
async fn a_redis_that_cannot_be_written_is_not_healthy() {
    let redis = RedisServer::start();
    let store = open(&redis).await;
    store.health().await.unwrap();
    redis.cli(&["REPLICAOF", "127.0.0.1", "1"]);
    assert!(acquire(&store, call("k", "a")).await.is_err());
    assert!(store.health().await.is_err());
    redis.cli(&["REPLICAOF", "NO", "ONE"]);
    // The connection was given up, as another server might be the primary by now.
    until("it is healthy again", async || store.health().await.is_ok()).await;
}

/// Each of them is refused, and none of them takes the others along.
#[tokio::test(flavor = "multi_thread")]
async fn callers_that_are_refused_do_not_delay_what_a_full_redis_takes_back() {
    let redis = RedisServer::start();
    let options = RedisOptions {
        // The machine may be busy; nothing gets through in any time if they are sent together.
        timeout: Duration::from_secs(10),
        ..RedisOptions::default()
    };
    let store = RedisStore::open(&redis.url(), &options).await;
    let store = Arc::new(store.unwrap());
    let mut held = Vec::new();
    for number in 0..100 {
        held.push(take(&store, &format!("held {number}")).await);
    }
    redis.cli(&["CONFIG", "SET", "maxmemory", "1mb"]);
    let mut crowd = JoinSet::new();
    for number in 0..400 {
        let store = store.clone();
        crowd.spawn(async move {
            loop {
                let refused = acquire(&store, call(&format!("new {number}"), "a")).await;
                assert!(refused.is_err(), "{refused:?}");
                tokio::task::yield_now().await;
            }
        });
    }
    // Of these, the crowd would let none through in its time.
    for lease in &held {
        release(&store, lease).await;
    }
    assert!(crowd.try_join_next().is_none());
}
