//! One server of a cluster hangs or dies: that delays its own locks, and does not affect the others.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use forrst_lock::model::Acquired;
use forrst_lock::{Lease, LockStore, StoreError};
use forrst_stores::{RedisOptions, RedisStore};
use forrst_testkit::RedisCluster;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::redis_faults::fixture::{
    acquire, call, granted, name, partition_of, release, take, take_again, until, wait,
};

async fn open(cluster: &RedisCluster, wait: u32) -> Arc<RedisStore> {
    let options = RedisOptions {
        wait,
        ..RedisOptions::default()
    };
    let store = RedisStore::open(&cluster.url(), &options).await;
    Arc::new(store.unwrap())
}

/// Keys whose locks are kept by one server.
fn keys_at(cluster: &RedisCluster, index: usize) -> impl Iterator<Item = String> {
    let keys = (0..).map(|number| format!("key {number}"));
    keys.filter(move |key| {
        let partition = partition_of(cluster, &name(key));
        cluster.index_of(&format!("{{forrst:{partition}}}")) == index
    })
}

/// Takes and releases locks all the time, which must never fail.
struct Traffic {
    tasks: JoinSet<()>,
    rounds: Arc<AtomicUsize>,
}

impl Traffic {
    fn on(store: &Arc<RedisStore>, keys: impl IntoIterator<Item = String>) -> Self {
        let rounds = Arc::new(AtomicUsize::new(0));
        let mut tasks = JoinSet::new();
        for key in keys {
            let (store, rounds) = (store.clone(), rounds.clone());
            tasks.spawn(async move {
                loop {
                    release(&store, &take(&store, &key).await).await;
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        Self { tasks, rounds }
    }

    /// Waits until there were some more rounds.
    async fn goes_on(&mut self) {
        let before = self.rounds.load(Ordering::Relaxed);
        until("there is traffic", async || {
            self.rounds.load(Ordering::Relaxed) > before + 50
        })
        .await;
        if let Some(ended) = self.tasks.try_join_next() {
            ended.expect("no call for another server fails");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_hangs_takes_down_its_own_locks_only() {
    let mut cluster = RedisCluster::without_full_coverage();
    let store = open(&cluster, 0).await;
    let hung: Vec<String> = keys_at(&cluster, 0).take(3).collect();
    let others = (1..3).map(|index| keys_at(&cluster, index).next().unwrap());
    let others: Vec<String> = others.collect();
    let held = take(&store, &hung[0]).await;
    let mut traffic = Traffic::on(&store, others);
    for _ in 0..2 {
        cluster.primary(0).pause();
        // The first waits for its answer; later ones fail at once.
        let first = acquire(&store, call(&hung[1], "late")).await;
        assert!(first.is_err(), "{first:?}");
        until("it is given up", async || {
            let late = acquire(&store, call(&hung[1], "late")).await;
            matches!(late, Err(StoreError::NotDone(_)))
        })
        .await;
        traffic.goes_on().await;
        let others = cluster.primary(1);
        until("the others know", async || {
            others.cli(&["CLUSTER", "NODES"]).contains("fail ")
        })
        .await;
        traffic.goes_on().await;
        cluster.primary(0).resume();
        let lease = take_again(&store, &hung[2]).await;
        release(&store, &lease).await;
        let status = store.inspect(&name(&hung[0])).await.unwrap().outcome;
        assert_eq!(status.holder(), Some(&held));
        traffic.goes_on().await;
    }
}

/// Whether a waiter of one node is notified of a release by another node.
async fn is_notified_by(other: &RedisStore, store: &RedisStore, key: &str) -> bool {
    let lease = take(other, key).await;
    let call = wait(store, call(key, "b")).await;
    release(other, &lease).await;
    let wake = timeout(Duration::from_secs(1), call.wake).await;
    wake.is_ok_and(|wake| granted(&wake.unwrap()).fence > lease.fence)
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_notify_each_other_whichever_server_hangs() {
    let mut cluster = RedisCluster::without_full_coverage();
    let store = open(&cluster, 0).await;
    let other = open(&cluster, 0).await;
    for index in 0..3 {
        let keys: Vec<String> = keys_at(&cluster, (index + 1) % 3).take(50).collect();
        // One that was not used in the round before.
        let own = keys_at(&cluster, index).nth(50).unwrap();
        let mut keys = keys.into_iter();
        cluster.primary(index).pause();
        loop {
            let key = keys.next().expect("it is notified soon");
            if is_notified_by(&other, &store, &key).await {
                break;
            }
        }
        cluster.primary(index).resume();
        take_again(&store, &own).await;
    }
}

/// The first lease that a replica has acknowledged. Each attempt before leaves a lease behind that does not count.
async fn first_lease(store: &RedisStore, keys: &mut impl Iterator<Item = String>) -> Lease {
    loop {
        let key = keys.next().expect("a replica answers soon");
        if let Ok(Acquired::Granted(lease)) = acquire(store, call(&key, "a")).await {
            return lease;
        }
        sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_dies_or_hangs_is_replaced_by_its_replica() {
    for hangs in [false, true] {
        let mut cluster = RedisCluster::with_replicas();
        let store = open(&cluster, 0).await;
        let careful = open(&cluster, 1).await;
        let mut keys = keys_at(&cluster, 0)
            .take(100)
            .collect::<Vec<_>>()
            .into_iter();
        let free = keys.next().unwrap();
        let held = first_lease(&careful, &mut keys).await;
        let primary = cluster.primary(0);
        match hangs {
            true => primary.pause(),
            false => primary.kill(),
        }
        cluster.until_failed_over(0);
        let lease = take_again(&store, &free).await;
        release(&store, &lease).await;
        let status = store.inspect(held.name()).await.unwrap().outcome;
        assert_eq!(status.holder(), Some(&held));
        if hangs {
            // It comes back as a replica.
            cluster.primary(0).resume();
            first_lease(&careful, &mut keys).await;
        }
    }
}
