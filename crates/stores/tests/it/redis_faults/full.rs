//! A Redis that is full and evicts nothing still serves what is held; one that cannot be written is not healthy.

use std::sync::Arc;
use std::time::Duration;

use forrst_lock::LockStore;
use forrst_stores::{RedisOptions, RedisStore};
use forrst_testkit::RedisServer;
use tokio::task::JoinSet;

use crate::redis_faults::fixture::{
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

/// Redis refuses a call with acquires as a whole, so releases must not share a call with them.
#[tokio::test(flavor = "multi_thread")]
async fn refused_acquires_do_not_delay_releases_in_a_full_redis() {
    let redis = RedisServer::start();
    let options = RedisOptions {
        // For a busy machine. Releases that are sent together with acquires would fail with any timeout.
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
    let mut acquires = JoinSet::new();
    for number in 0..400 {
        let store = store.clone();
        acquires.spawn(async move {
            loop {
                let refused = acquire(&store, call(&format!("new {number}"), "a")).await;
                assert!(refused.is_err(), "{refused:?}");
                tokio::task::yield_now().await;
            }
        });
    }
    for lease in &held {
        release(&store, lease).await;
    }
    assert!(acquires.try_join_next().is_none());
}
