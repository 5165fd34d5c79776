//! The Postgres store fulfils the store contract: alone, and as two nodes that share one Postgres.

use std::sync::Arc;
use std::time::Duration;

use crate::two_nodes::TwoNodes;
use forrst_lock::contract::model::{Pace, behaves_like_the_model};
use forrst_lock::{LockStore, ReleaseMemory, lock_contract};
use forrst_stores::{PostgresOptions, PostgresStore};
use forrst_testkit::SharedPostgres;

/// With a long timeout: a slow Postgres is tested elsewhere.
async fn connect(postgres: &SharedPostgres, release_memory: ReleaseMemory) -> PostgresStore {
    let options = PostgresOptions {
        schema: postgres.schema().to_owned(),
        timeout: Duration::from_secs(30),
        release_memory,
        ..PostgresOptions::default()
    };
    PostgresStore::open(&postgres.url(), &options)
        .await
        .unwrap()
}

async fn open(memory: ReleaseMemory) -> (Arc<dyn LockStore>, SharedPostgres) {
    let postgres = SharedPostgres::join();
    let store = connect(&postgres, memory).await;
    (Arc::new(store), postgres)
}

async fn open_two(memory: ReleaseMemory) -> (Arc<dyn LockStore>, SharedPostgres) {
    let postgres = SharedPostgres::join();
    // At the same time: both want to create the tables.
    let (one, other) = tokio::join!(connect(&postgres, memory), connect(&postgres, memory));
    (Arc::new(TwoNodes::new([one, other])), postgres)
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
fn postgres_behaves_like_the_model() {
    behaves_like_the_model(open, PACE);
}

#[test]
fn two_nodes_behave_like_the_model() {
    behaves_like_the_model(open_two, PACE);
}
