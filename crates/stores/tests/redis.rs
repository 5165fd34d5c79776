//! The Redis store fulfils the store contract: alone, and as two nodes that share one Redis.
#![cfg(not(shuttle))]

mod two_nodes;

use std::sync::Arc;
use std::time::Duration;

use forrst_lock::contract::model::{Pace, behaves_like_the_model};
use forrst_lock::{LockStore, lock_contract};
use forrst_stores::{RedisOptions, RedisStore};
use forrst_testkit::{RedisCluster, RedisServer};
use two_nodes::TwoNodes;

/// With patience: what a slow Redis costs is tested elsewhere.
async fn connect(url: &str, prefix: &str) -> RedisStore {
    let options = RedisOptions {
        prefix: prefix.to_owned(),
        timeout: Duration::from_secs(30),
        ..RedisOptions::default()
    };
    RedisStore::open(url, &options).await.unwrap()
}

async fn connect_two(url: &str, prefix: &str) -> Arc<dyn LockStore> {
    let nodes = [connect(url, prefix).await, connect(url, prefix).await];
    Arc::new(TwoNodes::new(nodes))
}

async fn open() -> (Arc<dyn LockStore>, RedisServer) {
    let redis = RedisServer::start();
    (Arc::new(connect(&redis.url(), "one").await), redis)
}

async fn open_two() -> (Arc<dyn LockStore>, RedisServer) {
    let redis = RedisServer::start();
    (connect_two(&redis.url(), "two").await, redis)
}

lock_contract!(one_node, open, flavor = "multi_thread");
lock_contract!(two_nodes_in_turn, open_two, flavor = "multi_thread");

const PACE: Pace = Pace {
    histories: 20,
    unit: Duration::from_millis(60),
    margin: Duration::from_millis(30),
    is_paused: false,
};

#[test]
fn redis_behaves_like_the_model() {
    behaves_like_the_model(open, PACE);
}

#[test]
fn two_nodes_behave_like_the_model() {
    behaves_like_the_model(open_two, PACE);
}

/// Starting a cluster takes seconds, so one serves all cases; each has a prefix, so that none sweeps the locks of another.
#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_fulfils_the_contract() {
    let cluster = RedisCluster::start();
    let mut running = Vec::new();
    for (name, case) in forrst_lock::contract::CASES {
        let store = connect_two(&cluster.url(), name).await;
        running.push((name, tokio::spawn(case(store))));
    }
    for (name, case) in running {
        assert!(case.await.is_ok(), "{name}");
    }
}
