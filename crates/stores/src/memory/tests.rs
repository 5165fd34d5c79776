use std::time::Duration;

use forrst_lock::state::{Claim, ReleaseMemory};
use forrst_lock::{LockKey, Owner, Ttl};

use super::*;

fn name(key: &str) -> LockName {
    LockName::global(&LockKey::parse(key).unwrap())
}

fn acquire(store: &MemoryStore, key: &str) -> Acquired {
    let claim = Claim {
        owner: Owner::parse("a").unwrap(),
        caller: None,
        attempt: None,
        ticket: Ticket(1),
        ttl: Ttl::new(Duration::from_secs(5)).unwrap(),
    };
    let command = Acquire { claim, wait: None };
    store.run(&name(key), command).outcome
}

fn release(store: &MemoryStore, key: &str) -> Result<Lease, NotHeld> {
    let owner = Owner::parse("a").unwrap();
    store
        .run(&name(key), Release { owner, fence: None })
        .outcome
}

fn cycle(store: &MemoryStore, key: &str) {
    acquire(store, key);
    release(store, key).unwrap();
}

fn remembered(store: &MemoryStore) -> usize {
    store.shards.iter().map(|shard| lock(shard).len()).sum()
}

#[test]
fn the_last_fence_is_the_last() {
    let store = MemoryStore::with_last_fence(Fence::MAX.number() - 1, ReleaseMemory::default());
    let Acquired::Granted(lease) = acquire(&store, "a") else {
        panic!("one is left");
    };
    assert_eq!(lease.fence, Fence::MAX);
    assert_eq!(acquire(&store, "b"), Acquired::FencesExhausted);
    assert!(release(&store, "a").is_ok());
    assert_eq!(acquire(&store, "a"), Acquired::FencesExhausted);
}

#[tokio::test(start_paused = true)]
async fn released_keys_are_forgotten_in_time() {
    let store = MemoryStore::new();
    for key in 0..1_000 {
        cycle(&store, &key.to_string());
    }
    assert_eq!(remembered(&store), 1_000);
    tokio::time::advance(ReleaseMemory::default().as_duration()).await;
    for _ in 0..100 {
        store.expire(1_000).await.unwrap();
    }
    assert_eq!(remembered(&store), 0);
}

#[test]
fn released_keys_do_not_fill_the_memory() {
    let store = MemoryStore::new();
    for key in 0..300_000 {
        cycle(&store, &key.to_string());
    }
    let most = SHARDS * (MAX_REMEMBERED_PER_SHARD + 1);
    assert!(remembered(&store) <= most, "{}", remembered(&store));
}

#[test]
fn a_busy_key_does_not_push_others_out_of_memory() {
    let store = MemoryStore::new();
    let quiet: Vec<String> = (0..64).map(|key| format!("quiet {key}")).collect();
    for key in &quiet {
        cycle(&store, key);
    }
    for _ in 0..10_000 {
        cycle(&store, "busy");
    }
    for key in &quiet {
        assert_eq!(
            release(&store, key),
            Err(NotHeld::AlreadyReleased { forced: false })
        );
    }
}

#[test]
fn asking_about_free_locks_leaves_nothing_behind() {
    let store = MemoryStore::new();
    for key in 0..100 {
        assert_eq!(release(&store, &key.to_string()), Err(NotHeld::NotFound));
        store.abandon(&name(&key.to_string()), Ticket(7));
    }
    assert_eq!(remembered(&store), 0);
    assert_eq!(store.held(), 0);
}
