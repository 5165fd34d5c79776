//! The memory store fulfils the store contract.

use std::sync::Arc;

use forrst_lock::contract::model::{Pace, behaves_like_the_model};
use forrst_lock::{LockStore, ReleaseMemory, lock_contract};
use forrst_stores::MemoryStore;

async fn open(memory: ReleaseMemory) -> (Arc<dyn LockStore>, ()) {
    (Arc::new(MemoryStore::remembering(memory)), ())
}

lock_contract!(contract, open, start_paused = true);
lock_contract!(contract_on_threads, open, flavor = "multi_thread");

#[test]
fn the_memory_store_behaves_like_the_model() {
    behaves_like_the_model(open, Pace::PAUSED);
}
