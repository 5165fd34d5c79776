//! The functions are missing: they were flushed, or a server has taken over that does not have them.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use forrst_lock::model::Acquired;
use forrst_lock::{LockStore, LockStoreExt};
use forrst_stores::{RedisOptions, RedisStore};
use forrst_testkit::{RedisReplicas, RedisServer};
use tokio::task::JoinSet;

use crate::redis_faults::fixture::{
    PATIENCE, acquire, call, held, key_of, take, take_again, until,
};
use crate::redis_faults::switch::Switch;

/// Callers that take and release locks, and the errors of their calls.
struct Traffic {
    calls: JoinSet<()>,
    is_over: Arc<AtomicBool>,
    rounds: Arc<AtomicUsize>,
    failures: Arc<Mutex<Vec<String>>>,
}

impl Traffic {
    fn on(stores: &[Arc<RedisStore>]) -> Self {
        let mut traffic = Self {
            calls: JoinSet::new(),
            is_over: Arc::default(),
            rounds: Arc::default(),
            failures: Arc::default(),
        };
        for number in 0..32 {
            let store = stores[number % stores.len()].clone();
            let (is_over, rounds) = (traffic.is_over.clone(), traffic.rounds.clone());
            let failures = traffic.failures.clone();
            traffic.calls.spawn(async move {
                while !is_over.load(Ordering::Relaxed) {
                    if let Err(why) = take_and_release(&store, &format!("k{number}")).await {
                        failures
                            .lock()
                            .unwrap_or_else(PoisonError::into_inner)
                            .push(why);
                    }
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        traffic
    }

    async fn until_more(&self, rounds: usize) {
        let enough = self.rounds.load(Ordering::Relaxed) + rounds;
        until("there is more traffic", async || {
            self.rounds.load(Ordering::Relaxed) >= enough
        })
        .await;
    }

    async fn end(mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        while let Some(ended) = self.calls.join_next().await {
            ended.unwrap();
        }
        let failures = self.failures.lock().unwrap();
        assert!(
            failures.is_empty(),
            "{} failed: {failures:?}",
            failures.len()
        );
    }
}

async fn take_and_release(store: &RedisStore, key: &str) -> Result<(), String> {
    let lease = match acquire(store, call(key, "a")).await {
        Ok(Acquired::Granted(lease)) => lease,
        other => return Err(format!("{other:?}")),
    };
    let held = held(&lease);
    match store.release(held).await.map(|answer| answer.outcome) {
        Ok(Ok(_)) => {}
        other => return Err(format!("{other:?}")),
    }
    match store.inspect(lease.name()).await {
        Ok(_) => Ok(()),
        Err(error) => Err(format!("{error:?}")),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_call_fails_because_functions_and_scripts_are_flushed() {
    let redis = RedisServer::start();
    let options = RedisOptions {
        timeout: PATIENCE,
        ..RedisOptions::default()
    };
    let mut stores = Vec::new();
    for _ in 0..2 {
        let store = RedisStore::open(&redis.url(), &options).await;
        stores.push(Arc::new(store.unwrap()));
    }
    let traffic = Traffic::on(&stores);
    for _ in 0..20 {
        redis.cli(&["FUNCTION", "FLUSH"]);
        redis.cli(&["SCRIPT", "FLUSH"]);
        traffic.until_more(200).await;
    }
    traffic.end().await;
}

#[tokio::test]
async fn the_functions_are_loaded_into_a_new_primary_without_them() {
    let mut replicas = RedisReplicas::alone();
    let switch = Switch::start(replicas.primary().port());
    let store = RedisStore::open(&switch.url(), &RedisOptions::default()).await;
    let store = store.unwrap();
    let lease = take(&store, "k").await;
    let new = &replicas.replicas()[0];
    until("it has the lease", async || !key_of(new, "k").is_empty()).await;
    new.cli(&["REPLICAOF", "NO", "ONE"]);
    new.cli(&["FUNCTION", "FLUSH"]);
    switch.switch_to(new.port());
    until("the lease is released", async || {
        let held = held(&lease);
        store.release(held).await.is_ok()
    })
    .await;
    take_again(&store, "k").await;
    assert!(new.cli(&["FUNCTION", "LIST"]).contains("forrst_"));
}
