//! A slot of a cluster is moved to another server while its locks are in use.

use forrst_lock::LockStore;
use forrst_stores::{RedisOptions, RedisStore};
use forrst_testkit::RedisCluster;

use crate::redis_faults::fixture::{
    SlotMove, acquire, call, name, release, take, take_again, until,
};

#[tokio::test]
async fn a_slot_that_is_moved_delays_only_its_own_locks() {
    let cluster = RedisCluster::start();
    let store = RedisStore::open(&cluster.url(), &RedisOptions::default()).await;
    let store = store.unwrap();
    let held = take(&store, "k").await;
    let moving = SlotMove::begin(&cluster, "k");
    moving.move_keys();
    for round in 0..5 {
        assert!(store.inspect(&name("k")).await.is_err());
        // Of other partitions, and other servers.
        for other in ["a", "b", "c", "d"] {
            let other = acquire(&store, call(&format!("{other}{round}"), "a")).await;
            assert!(other.is_ok(), "{other:?}");
        }
    }
    moving.end(&cluster);
    until("it is found at its new server", async || {
        let status = store.inspect(&name("k")).await.map(|answer| answer.outcome);
        status.is_ok_and(|status| status.holder() == Some(&held))
    })
    .await;
    release(&store, &held).await;
    take_again(&store, "k").await;
}
