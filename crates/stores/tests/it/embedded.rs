//! The embedded store fulfils the store contract.

use std::sync::Arc;
use std::time::Duration;

use forrst_lock::contract::model::{Pace, behaves_like_the_model};
use forrst_lock::{LockStore, ReleaseMemory, lock_contract};
use forrst_stores::{Durability, EmbeddedStore};
use tempfile::TempDir;

async fn open(memory: ReleaseMemory) -> (Arc<dyn LockStore>, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open_remembering(folder.path(), Durability::Full, memory).unwrap();
    (Arc::new(store), folder)
}

lock_contract!(contract, open, flavor = "multi_thread");

#[test]
fn the_embedded_store_behaves_like_the_model() {
    let pace = Pace {
        histories: 20,
        unit: Duration::from_millis(60),
        margin: Duration::from_millis(30),
        is_paused: false,
    };
    behaves_like_the_model(open, pace);
}
