//! A grant counts when enough replicas have it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use forrst_lock::model::Acquired;
use forrst_lock::{Lease, LockStore, LockStoreExt, StoreError, Ttl};
use forrst_stores::{RedisOptions, RedisStore};
use forrst_testkit::{RedisOptions as ServerOptions, RedisReplicas};
use tokio::task::JoinSet;

use crate::redis_faults::fixture::{
    acquire, call, granted, held, release, take, until, wait, woken,
};

/// A new replica needs some time for its first answer.
async fn first_lease(store: &RedisStore) -> Lease {
    for number in 0..10 {
        let acquired = acquire(store, call(&format!("first {number}"), "a")).await;
        if let Ok(Acquired::Granted(lease)) = acquired {
            return lease;
        }
    }
    panic!("the replica never answers");
}

#[tokio::test]
async fn a_grant_counts_only_when_enough_replicas_have_it() {
    let mut replicas = RedisReplicas::start(1, 1);
    let options = RedisOptions {
        wait: 1,
        timeout: Duration::from_secs(3),
        ..RedisOptions::default()
    };
    let url = format!("redis://127.0.0.1:{}", replicas.primary().port());
    let store = RedisStore::open(&url, &options).await.unwrap();
    let lease = first_lease(&store).await;
    release(&store, &lease).await;
    let lease = take(&store, "k").await;
    let waiting = wait(&store, call("k", "b")).await;
    release(&store, &lease).await;
    let wake = woken(&store, "k", waiting).await;
    release(&store, granted(&wake)).await;

    replicas.replicas()[0].pause();
    let refused = acquire(&store, call("k", "c")).await;
    assert!(
        matches!(refused, Err(StoreError::MaybeDone(_))),
        "{refused:?}"
    );
    replicas.replicas()[0].resume();
}

#[tokio::test]
async fn a_replica_that_hangs_delays_only_grants_and_extensions() {
    let replicas = RedisReplicas::alone();
    let options = RedisOptions {
        wait: 1,
        ..RedisOptions::default()
    };
    let store = RedisStore::open(&replicas.url(), &options).await.unwrap();
    let store = Arc::new(store);
    let lease = first_lease(&store).await;
    replicas.replicas()[0].pause();
    let failed = Arc::new(AtomicUsize::new(0));
    let mut callers = JoinSet::new();
    for number in 0..16 {
        let (store, failed) = (store.clone(), failed.clone());
        callers.spawn(async move {
            for round in 0.. {
                let key = format!("{number} {round}");
                let refused = acquire(&store, call(&key, "a")).await;
                assert!(refused.is_err(), "{refused:?}");
                failed.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
            }
        });
    }
    while failed.load(Ordering::Relaxed) < 64 {
        let status = store.inspect(lease.name()).await.unwrap().outcome;
        assert!(status.holder().is_some());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let ttl = Ttl::new(Duration::from_secs(3600)).unwrap();
    let extended = store.extend(held(&lease), ttl).await;
    assert!(
        matches!(extended, Err(StoreError::MaybeDone(_))),
        "{extended:?}"
    );
    release_extended(&store, &lease).await;
}

/// Releases a lease, whether or not its extension has run.
async fn release_extended(store: &RedisStore, lease: &Lease) {
    let released = store.release(held(lease)).await.unwrap().outcome;
    assert_eq!(released.unwrap().fence, lease.fence);
}

/// The sentinels cannot demote the old primary, so it keeps accepting commands.
#[tokio::test]
async fn a_node_leaves_a_primary_when_the_sentinels_name_another() {
    let cannot_be_demoted = [
        "--rename-command",
        "REPLICAOF",
        "",
        "--rename-command",
        "SLAVEOF",
        "",
    ];
    let primary = ServerOptions::default().arguments(&cannot_be_demoted);
    let mut replicas = RedisReplicas::start_with(primary, vec![ServerOptions::default()], 1);
    let store = RedisStore::open(&replicas.url(), &RedisOptions::default()).await;
    let store = store.unwrap();
    take(&store, "before").await;
    replicas.promote_a_replica();
    let new = replicas.until_failed_over();
    until("the new primary grants", async || {
        let _ = acquire(&store, call("after", "a")).await;
        new.cli(&["KEYS", "*:lock:after"]).contains("after")
    })
    .await;
    let role = replicas.primary().cli(&["INFO", "replication"]);
    assert!(role.contains("role:master"), "{role}");
}
