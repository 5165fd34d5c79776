//! The Redis store fulfils the store contract: alone, and as two nodes that share one Redis.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::two_nodes::TwoNodes;
use forrst_lock::contract::model::{Pace, behaves_like_the_model};
use forrst_lock::{LockStore, ReleaseMemory, contract, lock_contract};
use forrst_stores::{RedisOptions, RedisStore};
use forrst_testkit::{RedisCluster, RedisReplicas, SharedRedis};
use futures_util::StreamExt;
use futures_util::stream::iter;

/// With a long timeout: a slow Redis is tested elsewhere.
async fn connect(url: &str, prefix: &str, release_memory: ReleaseMemory) -> RedisStore {
    let options = RedisOptions {
        prefix: prefix.to_owned(),
        timeout: Duration::from_secs(30),
        release_memory,
        ..RedisOptions::default()
    };
    RedisStore::open(url, &options).await.unwrap()
}

async fn connect_two(url: &str, prefix: &str, memory: ReleaseMemory) -> Arc<dyn LockStore> {
    let [one, other] = [(); 2].map(|()| connect(url, prefix, memory));
    Arc::new(TwoNodes::new([one.await, other.await]))
}

async fn open(memory: ReleaseMemory) -> (Arc<dyn LockStore>, SharedRedis) {
    let redis = SharedRedis::join();
    let store = connect(&redis.url(), redis.prefix(), memory).await;
    (Arc::new(store), redis)
}

async fn open_two(memory: ReleaseMemory) -> (Arc<dyn LockStore>, SharedRedis) {
    let redis = SharedRedis::join();
    let store = connect_two(&redis.url(), redis.prefix(), memory).await;
    (store, redis)
}

lock_contract!(one_node, open, flavor = "multi_thread");
lock_contract!(two_nodes_in_turn, open_two, flavor = "multi_thread");

const PACE: Pace = Pace {
    histories: 20,
    unit: Duration::from_millis(60),
    margin: Duration::from_millis(30),
    is_paused: false,
    ..Pace::PAUSED
};

#[test]
fn redis_behaves_like_the_model() {
    behaves_like_the_model(open, PACE);
}

#[test]
fn two_nodes_behave_like_the_model() {
    behaves_like_the_model(open_two, PACE);
}

#[test]
fn a_cluster_behaves_like_the_model() {
    let open = async |memory| {
        let cluster = RedisCluster::start();
        let store = connect_two(&cluster.url(), "forrst", memory).await;
        (store, cluster)
    };
    let pace = Pace {
        has_one_tag: true,
        ..PACE
    };
    behaves_like_the_model(open, pace);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_fulfils_the_contract() {
    let cluster = RedisCluster::start();
    fulfils_the_contract(&cluster.url()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_behind_a_sentinel_fulfils_the_contract() {
    let replicas = RedisReplicas::steady();
    fulfils_the_contract(&replicas.url()).await;
}

/// Starting several servers takes seconds, so they serve all cases; each has a prefix, so that none sweeps the locks of another.
async fn fulfils_the_contract(url: &str) {
    let opened = AtomicUsize::new(0);
    let cases = contract::CASES.iter().map(|(name, _)| {
        contract::run(name, async |memory| {
            let prefix = format!("case{}", opened.fetch_add(1, Ordering::Relaxed));
            (connect_two(url, &prefix, memory).await, ())
        })
    });
    // All at once would delay each other.
    iter(cases).for_each_concurrent(8, |case| case).await;
}
