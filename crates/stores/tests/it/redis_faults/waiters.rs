//! Waiters are served in their order, whatever happens to messages and nodes.

use std::time::Duration;

use forrst_lock::{LockStore, LockStoreExt};
use forrst_testkit::RedisServer;
use tokio::time::{sleep, timeout};

use crate::redis_faults::fixture::{
    PATIENCE, call, forget_queue, granted, inspect, name, open, release, take, until, wait, woken,
};

/// Leaves Redis as it is after all nodes were considered dead, and their waiters passed over.
fn forget_who_waits(redis: &RedisServer, key: &str) {
    forget_queue(redis, key);
    redis.cli(&["DEL", "forrst:nodes"]);
}

#[tokio::test]
async fn a_grant_to_a_node_that_has_just_died_passes_to_the_next_waiter_within_seconds() {
    let redis = RedisServer::start();
    let (alive, dying) = (open(&redis).await, open(&redis).await);
    let lease = take(&alive, "k").await;
    let _lost = wait(&dying, call("k", "b")).await;
    let behind = wait(&alive, call("k", "c")).await;
    // Its call stays in the queue, and the node still counts as alive.
    drop(dying);
    release(&alive, &lease).await;
    let status = inspect(&alive, "k").await;
    assert_eq!(status.holder().unwrap().owner.as_str(), "b");
    let wake = woken(&alive, "k", behind).await;
    assert_eq!(granted(&wake).owner.as_str(), "c");
}

#[tokio::test]
async fn a_waiter_that_redis_has_lost_gets_its_position_back() {
    let redis = RedisServer::start();
    let (one, other) = (open(&redis).await, open(&redis).await);
    let lease = take(&one, "k").await;
    let first = wait(&one, call("k", "first")).await;
    forget_who_waits(&redis, "k");
    // Positions are by the time of arrival; in an empty queue nothing else decides which call was first.
    sleep(Duration::from_millis(2)).await;
    let mut second = wait(&other, call("k", "second")).await;
    until("it is there again", async || {
        inspect(&one, "k").await.waiters == 2
    })
    .await;
    release(&one, &lease).await;
    let wake = woken(&one, "k", first).await;
    assert_eq!(granted(&wake).owner.as_str(), "first");
    assert!(second.wake.try_recv().is_err());
    release(&other, granted(&wake)).await;
    let wake = woken(&other, "k", second).await;
    assert_eq!(granted(&wake).owner.as_str(), "second");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn waiters_that_redis_has_lost_come_back_in_their_order() {
    let redis = RedisServer::start();
    let store = open(&redis).await;
    for round in 0..10 {
        let key = format!("k{round}");
        let lease = take(&store, &key).await;
        let mut waiting = Vec::new();
        for number in 0..16 {
            waiting.push(wait(&store, call(&key, &format!("{number}"))).await);
        }
        forget_who_waits(&redis, &key);
        release(&store, &lease).await;
        for (number, wake) in waiting.into_iter().enumerate() {
            let wake = woken(&store, &key, wake).await;
            let lease = granted(&wake);
            assert_eq!(lease.owner.as_str(), number.to_string());
            release(&store, lease).await;
        }
    }
}

#[tokio::test]
async fn a_long_queue_that_redis_has_lost_comes_back_completely() {
    let redis = RedisServer::start();
    let store = open(&redis).await;
    take(&store, "k").await;
    let mut waiting = Vec::new();
    for number in 0..100 {
        waiting.push(wait(&store, call("k", &format!("{number}"))).await);
    }
    forget_who_waits(&redis, "k");
    until("all are there again", async || {
        inspect(&store, "k").await.waiters == 100
    })
    .await;
    let queue = store.queue(&name("k"), 200).await.unwrap().outcome;
    let owners: Vec<&str> = queue.iter().map(|waiting| waiting.owner.as_str()).collect();
    let expected: Vec<String> = (0..100).map(|number| number.to_string()).collect();
    assert_eq!(owners, expected);
}

/// The reply to its confirmation shows that, so nothing has to be settled.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_whose_lease_was_ended_before_it_was_notified_rejoins_at_once() {
    let redis = RedisServer::start();
    let (one, other) = (open(&redis).await, open(&redis).await);
    for _ in 0..20 {
        let lease = take(&one, "k").await;
        let call = wait(&other, call("k", "b")).await;
        release(&one, &lease).await;
        one.force_release(&name("k"), None)
            .await
            .unwrap()
            .outcome
            .unwrap();
        let wake = timeout(PATIENCE, call.wake)
            .await
            .expect("a wake-up in time");
        // If it was notified in time, it was granted the lease that has ended.
        let _ = other.force_release(&name("k"), None).await.unwrap();
        granted(&wake.unwrap());
    }
}
