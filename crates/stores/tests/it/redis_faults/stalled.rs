//! Redis hangs, or the network drops everything, while all connections stay open: with the default timeout, and under load.

use std::sync::Arc;
use std::time::Duration;

use forrst_lock::{LockStore, StoreError};
use forrst_stores::{RedisOptions, RedisStore};
use forrst_testkit::{Proxy, RedisReplicas, RedisServer, Traffic, Way};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::redis_faults::fixture::{acquire, call, name, open, release, take, take_again, until};

/// Callers that do not wait for each other, so that there is always something to write. Ends when dropped.
struct Load {
    _callers: JoinSet<()>,
}

impl Load {
    fn on(store: &Arc<RedisStore>) -> Self {
        let mut callers = JoinSet::new();
        let store = store.clone();
        callers.spawn(async move {
            let mut calls = JoinSet::new();
            loop {
                let store = store.clone();
                calls.spawn(async move { store.inspect(&name("watched")).await.map(drop) });
                while calls.try_join_next().is_some() {}
                sleep(Duration::from_millis(20)).await;
            }
        });
        Self { _callers: callers }
    }
}

/// Whether calls fail without being sent.
async fn fails_at_once(store: &RedisStore) -> bool {
    let answer = acquire(store, call("k", "late")).await;
    match answer {
        Err(StoreError::NotDone(_)) => true,
        Err(StoreError::MaybeDone(_)) => false,
        other => panic!("there cannot be an answer: {other:?}"),
    }
}

#[tokio::test]
async fn the_connection_to_a_redis_that_hangs_is_closed() {
    let redis = RedisServer::start();
    let store = Arc::new(open(&redis).await);
    take(&store, "held").await;
    let _load = Load::on(&store);
    redis.pause();
    until("it is given up", async || fails_at_once(&store).await).await;
    redis.resume();
    take_again(&store, "again").await;
}

#[tokio::test]
async fn a_connection_that_loses_everything_is_closed() {
    let redis = RedisServer::start();
    let proxy = Proxy::start(redis.port());
    let store = RedisStore::open(&proxy.url(), &RedisOptions::default()).await;
    let store = Arc::new(store.unwrap());
    let _load = Load::on(&store);
    for way in [Way::ToServer, Way::ToClient] {
        proxy.swallow(way, Traffic::All);
        until("it is given up", async || fails_at_once(&store).await).await;
        proxy.heal();
        let lease = take_again(&store, "again").await;
        release(&store, &lease).await;
    }
}

#[tokio::test]
async fn a_primary_that_hangs_is_replaced_by_the_one_that_sentinels_promote() {
    let mut replicas = RedisReplicas::start(1, 3);
    let store = RedisStore::open(&replicas.url(), &RedisOptions::default()).await;
    let store = Arc::new(store.unwrap());
    take(&store, "held").await;
    let _load = Load::on(&store);
    replicas.primary().pause();
    take_again(&store, "again").await;
}

#[tokio::test]
async fn a_store_that_is_dropped_leaves_no_connection_behind() {
    let redis = RedisServer::start();
    let connections = || redis.cli(&["CLIENT", "LIST"]).lines().count();
    let before = connections();
    let store = open(&redis).await;
    take(&store, "k").await;
    assert!(connections() > before);
    drop(store);
    until("its connections are closed", async || {
        connections() == before
    })
    .await;
    redis.cli(&["SET", "forrst:format", "1000"]);
    let refused = RedisStore::open(&redis.url(), &RedisOptions::default()).await;
    assert!(refused.is_err());
    until("its connections are closed", async || {
        connections() == before
    })
    .await;
}
