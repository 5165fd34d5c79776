//! Two nodes on one Postgres.

use std::sync::Arc;

use forrst_lock::LockService;
use forrst_stores::{PostgresOptions, PostgresStore};

use crate::calls::{AsStore, until};
use crate::nodes::{WaitingNode, service};

pub(crate) async fn open_at(url: &str) -> Arc<PostgresStore> {
    let store = PostgresStore::open(url, &PostgresOptions::default()).await;
    Arc::new(store.unwrap())
}

pub(crate) async fn two_services(url: &str) -> [LockService; 2] {
    let (one, other) = (open_at(url).await, open_at(url).await);
    [service(&one), service(&other)]
}

pub(crate) async fn two_nodes(url: &str) -> [WaitingNode; 2] {
    let (one, other) = (open_at(url).await, open_at(url).await);
    [WaitingNode::new(one), WaitingNode::new(other)]
}

/// Returns when the store can be used again.
pub(crate) async fn until_healthy(store: &impl AsStore) {
    until("the store is healthy", async || {
        store.as_store().health().await.is_ok()
    })
    .await;
}
