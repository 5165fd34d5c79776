//! The embedded store fulfils the store contract.

use std::sync::Arc;
use std::time::Duration;

use forrst_lock::contract::model::{Pace, behaves_like_the_model};
use forrst_lock::{LockStore, ReleaseMemory, lock_contract};
use forrst_stores::{EmbeddedOptions, EmbeddedStore};
use tempfile::TempDir;

async fn open(memory: ReleaseMemory) -> (Arc<dyn LockStore>, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let mut options = EmbeddedOptions::default();
    options.release_memory = memory;
    // The suite does not test the timeout, which a busy machine could exceed.
    options.timeout = Duration::from_secs(60);
    let store = EmbeddedStore::open(folder.path(), &options).unwrap();
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
        ..Pace::PAUSED
    };
    behaves_like_the_model(open, pace);
}
