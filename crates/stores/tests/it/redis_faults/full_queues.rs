//! Calls that have ended make room in a full queue.

use std::time::Duration;

use forrst_lock::LockStore;
use forrst_lock::model::{Acquire, Acquired, Wait};
use forrst_stores::RedisStore;
use forrst_testkit::RedisServer;

use crate::redis_faults::fixture::{
    acquire, call, inspect, key_of, name, open, release, take, until, wait,
};

const FULL: usize = 300;
const HOUR: Duration = Duration::from_secs(3600);

fn waiting(owner: &str, timeout: Duration) -> Acquire {
    Acquire {
        wait: Some(Wait {
            timeout,
            max_queue: FULL,
            rejoin: None,
        }),
        ..call("k", owner)
    }
}

/// Fills the queue behind a first call that keeps waiting.
async fn fill(store: &RedisStore, timeout: Duration) {
    for number in 1..FULL {
        let queued = acquire(store, waiting(&number.to_string(), timeout))
            .await
            .unwrap();
        assert!(matches!(queued, Acquired::Queued { .. }), "{queued:?}");
    }
}

/// The owners of the calls that have not timed out.
async fn owners(store: &RedisStore) -> Vec<String> {
    let queue = store.queue(&name("k"), FULL).await.unwrap().outcome;
    let owners = queue.iter().map(|waiter| waiter.owner.as_str().to_owned());
    owners.collect()
}

/// A newcomer is refused until there is room, and then waits behind the first call, which is the only one left.
async fn gets_in(redis: &RedisServer, store: &RedisStore) {
    until("a newcomer gets in", async || {
        let newcomer = waiting("newcomer", HOUR);
        let acquired = acquire(store, newcomer).await.unwrap();
        match acquired {
            Acquired::Queued { .. } => true,
            Acquired::QueueFull(_) => false,
            other => panic!("the lock is held: {other:?}"),
        }
    })
    .await;
    assert_eq!(owners(store).await, ["first", "newcomer"]);
    // All calls that have ended make room for others.
    for number in 2..FULL {
        let next = waiting(&format!("next {number}"), HOUR);
        let queued = acquire(store, next).await.unwrap();
        assert!(
            matches!(queued, Acquired::Queued { .. }),
            "{number}: {queued:?}"
        );
    }
    let full = acquire(store, waiting("one more", HOUR)).await.unwrap();
    assert!(matches!(full, Acquired::QueueFull(_)), "{full:?}");
    let sorted_set = key_of(redis, "queue:k");
    for texts in [["[q", "(r"], ["[t", "(u"]] {
        let count = redis.cli(&["ZLEXCOUNT", &sorted_set, texts[0], texts[1]]);
        assert_eq!(count.trim(), FULL.to_string());
    }
}

#[tokio::test]
async fn waiters_of_a_dead_node_make_room_for_others() {
    let redis = RedisServer::start();
    let (alive, dying) = (open(&redis).await, open(&redis).await);
    let lease = take(&alive, "k").await;
    let first = wait(&alive, call("k", "first")).await;
    fill(&dying, HOUR).await;
    let full = acquire(&alive, waiting("newcomer", HOUR)).await.unwrap();
    assert!(matches!(full, Acquired::QueueFull(_)), "{full:?}");
    assert_eq!(inspect(&alive, "k").await.waiters, FULL);
    drop(dying);
    gets_in(&redis, &alive).await;
    release(&alive, &lease).await;
    first.wake.await.unwrap();
}

#[tokio::test]
async fn waiters_that_have_timed_out_make_room_for_others() {
    let redis = RedisServer::start();
    let (one, other) = (open(&redis).await, open(&redis).await);
    let lease = take(&one, "k").await;
    let first = wait(&one, call("k", "first")).await;
    fill(&other, Duration::from_secs(1)).await;
    until("they have timed out", async || {
        owners(&one).await == ["first"]
    })
    .await;
    gets_in(&redis, &one).await;
    release(&one, &lease).await;
    first.wake.await.unwrap();
}
