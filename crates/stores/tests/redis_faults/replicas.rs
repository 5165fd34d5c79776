//! A grant counts when enough replicas have it.

use std::time::Duration;

use forrst_lock::StoreError;
use forrst_stores::{RedisOptions, RedisStore};
use forrst_testkit::RedisReplicas;

use crate::ground::{acquire, claim, granted, hears, release, take, wait};

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
    let lease = take(&store, "k").await;
    let waiting = wait(&store, "k", claim("b")).await;
    release(&store, &lease).await;
    let wake = hears(&store, "k", waiting).await;
    release(&store, granted(&wake)).await;

    replicas.replicas()[0].pause();
    let refused = acquire(&store, "k", claim("c")).await;
    assert!(
        matches!(refused, Err(StoreError::MaybeDone(_))),
        "{refused:?}"
    );
    replicas.replicas()[0].resume();
}
