//! Fences, remembered releases and messages in the memory store.

use std::time::Duration;

use forrst_lock::model::{Acquire, Acquired, Claim, LeaseRef};
use forrst_lock::{Lease, LockKey, NotHeld, Owner, Ttl};

use super::*;

fn name(key: &str) -> LockName {
    LockName::global(&LockKey::parse(key).unwrap())
}

fn acquire(store: &MemoryStore, key: &str) -> Acquired {
    let acquire = Acquire {
        claim: Claim {
            locks: Locks::exclusive(name(key)),
            owner: Owner::parse("a").unwrap(),
            caller: None,
            note: None,
            attempt: None,
            ttl: Ttl::new(Duration::from_secs(5)).unwrap(),
        },
        ticket: Ticket(1),
        node: None,
        wait: None,
    };
    match store.run(&Command::Acquire(acquire)).outcome {
        Outcome::Acquired(acquired) => acquired,
        other => panic!("{other:?}"),
    }
}

fn release(store: &MemoryStore, key: &str) -> Result<Lease, NotHeld> {
    let held = LeaseRef {
        name: name(key),
        owner: Owner::parse("a").unwrap(),
        fence: None,
    };
    match store.run(&Command::Release(held)).outcome {
        Outcome::Lease(lease) => lease,
        other => panic!("{other:?}"),
    }
}

fn cycle(store: &MemoryStore, key: &str) {
    acquire(store, key);
    release(store, key).unwrap();
}

fn remembered(store: &MemoryStore) -> usize {
    store.shards.iter().map(|shard| lock(shard).len()).sum()
}

#[test]
fn after_the_largest_fence_nothing_is_granted() {
    let store = MemoryStore::with_last_fence(
        Fence::new(Fence::MAX.number() - 1),
        ReleaseMemory::default(),
    );
    let Acquired::Granted(lease) = acquire(&store, "a") else {
        panic!("one fence is left");
    };
    assert_eq!(lease.fence, Fence::MAX);
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
    store.sweep(1_000).await.unwrap();
    assert_eq!(remembered(&store), 0, "an idle store forgets in one sweep");
}

#[test]
fn released_keys_do_not_fill_the_memory() {
    let store = MemoryStore::new();
    for key in 0..300_000 {
        cycle(&store, &key.to_string());
    }
    let max = SHARDS * (MAX_REMEMBERED_PER_SHARD.releases + 1);
    assert!(remembered(&store) <= max, "{}", remembered(&store));
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
fn commands_on_free_locks_leave_nothing_behind() {
    let store = MemoryStore::new();
    for key in 0..100 {
        assert_eq!(release(&store, &key.to_string()), Err(NotHeld::NotFound));
        store.abandon(&name(&key.to_string()), Ticket(7));
    }
    assert_eq!(remembered(&store), 0);
    assert_eq!(store.held(), 0);
}
