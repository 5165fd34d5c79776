//! Redis is full, and throws nothing away: what is held can be given back. Or it takes no writes at all.

use forrst_lock::LockStore;
use forrst_testkit::RedisServer;

use crate::redis_faults::ground::{
    acquire, call, looks_after_what_is_held, open, take, take_again, wait,
};

#[tokio::test]
async fn a_full_redis_grants_nothing_new_but_takes_back_what_it_has() {
    let redis = RedisServer::start();
    let store = open(&redis).await;
    let lease = take(&store, "held").await;
    let waiting = wait(&store, call("held", "b")).await;
    let given_up = call("given up", "a");
    let ticket = given_up.ticket;
    acquire(&store, given_up).await.unwrap();
    redis.cli(&["CONFIG", "SET", "maxmemory", "1mb"]);

    assert!(acquire(&store, call("new", "a")).await.is_err());
    looks_after_what_is_held(&store, &lease, waiting, ("given up", ticket)).await;
    // A node that comes back meanwhile must be able to look after its leases.
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
    store.health().await.unwrap();
}
