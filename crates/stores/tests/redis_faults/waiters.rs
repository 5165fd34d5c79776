//! Who waits is served, in turn, whatever becomes of messages and of nodes.

use forrst_lock::LockStore;
use forrst_testkit::RedisServer;

use crate::ground::{claim, granted, hears, name, open, release, take, wait};

#[tokio::test]
async fn a_grant_to_a_node_that_has_just_died_goes_on_within_seconds() {
    let redis = RedisServer::start();
    let (alive, dying) = (open(&redis).await, open(&redis).await);
    let lease = take(&alive, "k").await;
    let _unheard = wait(&dying, "k", claim("b")).await;
    let behind = wait(&alive, "k", claim("c")).await;
    // Its name stays in the queue, and as far as Redis knows it is well.
    drop(dying);
    release(&alive, &lease).await;
    let held = alive.inspect(&name("k")).await.unwrap().outcome.unwrap();
    assert_eq!(held.lease.owner.as_str(), "b");
    let wake = hears(&alive, "k", behind).await;
    assert_eq!(granted(&wake).owner.as_str(), "c");
}

#[tokio::test]
async fn a_waiter_that_redis_has_forgotten_gets_its_place_back() {
    let redis = RedisServer::start();
    let (one, other) = (open(&redis).await, open(&redis).await);
    let lease = take(&one, "k").await;
    let first = wait(&one, "k", claim("first")).await;
    let queue = redis.cli(&["KEYS", "*queue:lock:k"]);
    let waiters = redis.cli(&["KEYS", "*waiters:lock:k"]);
    redis.cli(&["DEL", queue.trim(), waiters.trim()]);
    let mut second = wait(&other, "k", claim("second")).await;
    one.settle(&name("k")).await.unwrap();
    release(&one, &lease).await;
    let wake = hears(&one, "k", first).await;
    assert_eq!(granted(&wake).owner.as_str(), "first");
    assert!(second.try_recv().is_err());
    release(&other, granted(&wake)).await;
    let wake = hears(&other, "k", second).await;
    assert_eq!(granted(&wake).owner.as_str(), "second");
}

/// As after a node has stood still for so long that all its waiters were passed by.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn waiters_that_redis_has_forgotten_come_back_in_their_order() {
    let redis = RedisServer::start();
    let store = open(&redis).await;
    for round in 0..10 {
        let key = format!("k{round}");
        let lease = take(&store, &key).await;
        let mut waiting = Vec::new();
        for number in 0..16 {
            waiting.push(wait(&store, &key, claim(&format!("{number}"))).await);
        }
        let queue = redis.cli(&["KEYS", &format!("*queue:lock:{key}")]);
        let waiters = redis.cli(&["KEYS", &format!("*waiters:lock:{key}")]);
        redis.cli(&["DEL", queue.trim(), waiters.trim()]);
        release(&store, &lease).await;
        for (number, wake) in waiting.into_iter().enumerate() {
            let wake = hears(&store, &key, wake).await;
            let lease = granted(&wake);
            assert_eq!(lease.owner.as_str(), number.to_string());
            release(&store, lease).await;
        }
    }
}
