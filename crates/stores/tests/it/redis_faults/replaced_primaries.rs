//! A primary that was replaced and is promoted again mints no fence that is smaller than one granted meanwhile.

use std::time::Duration;

use forrst_lock::model::{Acquired, Wake};
use forrst_stores::{RedisOptions, RedisStore};
use forrst_testkit::{RedisOptions as ServerOptions, RedisReplicas, RedisServer};
use tokio::time::{sleep, timeout};

use crate::redis_faults::fixture::{
    PATIENCE, acquire, call, granted, key_of, open, release, take, take_again, until, wait,
};
use crate::redis_faults::switch::Switch;

/// So long that the library notices the gap: nodes call it every second.
const CALL_GAP: Duration = Duration::from_millis(3500);
const HOUR: Duration = Duration::from_secs(3600);

async fn open_at(url: &str, wait: u32) -> RedisStore {
    let options = RedisOptions {
        wait,
        timeout: Duration::from_secs(5),
        ..RedisOptions::default()
    };
    RedisStore::open(url, &options).await.unwrap()
}

fn follow(replicas: &[RedisServer], primary: u16) {
    for replica in replicas {
        replica.cli(&["REPLICAOF", "127.0.0.1", &primary.to_string()]);
    }
}

/// The fence of a new lease, which is released.
async fn fence(store: &RedisStore) -> u64 {
    let lease = take_again(store, "k").await;
    release(store, &lease).await;
    lease.fence.number()
}

/// `k` is granted by a primary that then hangs, by a replica that replaces it, and by the primary again.
async fn take_turns(wait: u32) {
    let replicas = usize::try_from(wait).unwrap() + 1;
    let mut all = RedisReplicas::start(replicas, 0);
    let old = open_at(&all.primary().url(), wait).await;
    let first = fence(&old).await;
    all.primary().pause();
    let (new_primary, others) = all.replicas().split_first().unwrap();
    new_primary.cli(&["REPLICAOF", "NO", "ONE"]);
    follow(others, new_primary.port());
    let new = open_at(&new_primary.url(), wait).await;
    let mut meanwhile = first;
    for _ in 0..3 {
        let next = fence(&new).await;
        assert!(next > meanwhile, "{next} after {meanwhile}");
        meanwhile = next;
    }
    sleep(CALL_GAP).await;
    all.primary().resume();
    let port = all.primary().port();
    follow(&all.replicas()[1..], port);
    // A new node, and one that was there before.
    let fresh = open_at(&all.primary().url(), wait).await;
    for store in [&fresh, &old, &fresh] {
        let again = fence(store).await;
        assert!(again > meanwhile, "{again} after {meanwhile}");
        meanwhile = again;
    }
}

#[tokio::test]
async fn a_primary_that_was_replaced_while_it_hung_continues_above_the_fences_of_its_successor() {
    take_turns(0).await;
}

#[tokio::test]
async fn a_replaced_primary_whose_grants_wait_for_replicas_continues_above_its_successor() {
    take_turns(1).await;
}

/// The second server has no data of the first.
#[tokio::test]
async fn a_node_carries_the_highest_fence_it_has_seen_to_the_next_server() {
    let ahead = ServerOptions::default().clock_ahead(HOUR).start();
    let behind = RedisServer::start();
    let switch = Switch::start(ahead.port());
    let store = open_at(&switch.url(), 0).await;
    let before = fence(&store).await;
    switch.switch_to(behind.port());
    let after = fence(&store).await;
    assert!(after > before, "{after} after {before}");
}

/// This node has only seen the fence of the lease that another node's release granted to it.
#[tokio::test]
async fn a_node_carries_the_fence_of_a_hand_over_to_the_next_server() {
    let ahead = ServerOptions::default().clock_ahead(HOUR).start();
    let behind = RedisServer::start();
    let switch = Switch::start(ahead.port());
    let (other, store) = (open(&ahead).await, open_at(&switch.url(), 0).await);
    let lease = take(&other, "k").await;
    let waiting = wait(&store, call("k", "b")).await;
    release(&other, &lease).await;
    let wake: Wake = timeout(PATIENCE, waiting.wake)
        .await
        .expect("a wake-up in time")
        .unwrap();
    let before = granted(&wake).fence.number();
    switch.switch_to(behind.port());
    let after = fence(&store).await;
    assert!(after > before, "{after} after {before}");
}

/// The fail-over sets the clock back. The nodes are new and the key was deleted, so neither knows an earlier fence.
#[tokio::test]
async fn a_new_primary_whose_clock_is_behind_continues_above_the_fences_of_the_old_one() {
    let ahead = ServerOptions::default().clock_ahead(HOUR);
    let mut all = RedisReplicas::start_with(ahead, vec![ServerOptions::default()], 0);
    let mut last = fence(&open(all.primary()).await).await;
    all.primary().cli(&["SET", "last", "one"]);
    let new = &all.replicas()[0];
    // A replica receives all writes in their order.
    until("it has all", async || {
        new.cli(&["GET", "last"]).trim() == "one"
    })
    .await;
    new.cli(&["REPLICAOF", "NO", "ONE"]);
    for _ in 0..2 {
        new.cli(&["DEL", &key_of(new, "k")]);
        let store = open(new).await;
        for _ in 0..3 {
            let Ok(Acquired::Granted(lease)) = acquire(&store, call("k", "a")).await else {
                panic!("should be free");
            };
            assert!(lease.fence.number() > last, "{} after {last}", lease.fence);
            last = lease.fence.number();
            release(&store, &lease).await;
        }
    }
}
