//! Messages between nodes get lost. Their recipients notice that by themselves, without a settle or a sweep.

use forrst_testkit::{Proxy, RedisServer, Traffic, Way};
use tokio::time::timeout;

use crate::redis_faults::fixture::{PATIENCE, call, granted, release, take};
use crate::redis_nodes::fixture::{WaitingNode, Woken, open_at, two_nodes};

async fn is_granted(node: &WaitingNode, woken: Woken) {
    let (wake, _) = timeout(PATIENCE, woken)
        .await
        .expect("a wake-up in time")
        .unwrap();
    release(&node.store, granted(&wake)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hand_over_while_subscriptions_are_killed_reaches_its_call() {
    let redis = RedisServer::start();
    let [one, other] = two_nodes(&redis.url()).await;
    for round in 0..5 {
        let key = format!("k{round}");
        let lease = take(&other.store, &key).await;
        let woken = one.wait(call(&key, "b")).await;
        redis.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        release(&other.store, &lease).await;
        is_granted(&one, woken).await;
    }
}

/// Hands a lock over to a node whose connections are broken by `fault`.
async fn hand_over_while(fault: impl FnOnce(&Proxy)) {
    let redis = RedisServer::start();
    let proxy = Proxy::start(redis.port());
    let one = WaitingNode::new(open_at(&proxy.url()).await);
    let other = open_at(&redis.url()).await;
    let lease = take(&other, "k").await;
    let woken = one.wait(call("k", "b")).await;
    fault(&proxy);
    release(&other, &lease).await;
    is_granted(&one, woken).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hand_over_while_there_is_no_subscription_reaches_its_call() {
    hand_over_while(|proxy| proxy.refuse(Traffic::Subscriptions)).await;
}

/// The connection stays open, like one that a firewall has dropped silently.
#[tokio::test(flavor = "multi_thread")]
async fn a_hand_over_that_a_silent_subscription_loses_reaches_its_call() {
    hand_over_while(|proxy| proxy.swallow(Way::ToClient, Traffic::Subscriptions)).await;
}

/// The first of two messages is lost, and the second one comes.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_behind_a_lost_one_shows_that_it_was_lost() {
    let redis = RedisServer::start();
    let proxy = Proxy::start(redis.port());
    let one = WaitingNode::new(open_at(&proxy.url()).await);
    let other = open_at(&redis.url()).await;
    let leases = [take(&other, "k").await, take(&other, "l").await];
    let first = one.wait(call("k", "b")).await;
    let second = one.wait(call("l", "b")).await;
    proxy.refuse(Traffic::Subscriptions);
    release(&other, &leases[0]).await;
    proxy.heal();
    release(&other, &leases[1]).await;
    is_granted(&one, first).await;
    is_granted(&one, second).await;
}
