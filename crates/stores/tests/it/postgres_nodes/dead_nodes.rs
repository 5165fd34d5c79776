//! Nodes that crash, with waiting calls and with grants that they have not confirmed.

use std::time::Duration;

use forrst_lock::{LockService, Locks, Share};
use forrst_testkit::{PostgresServer, Proxy, Traffic};
use tokio::time::timeout;

use super::fixture::{open_at, two_nodes};
use crate::calls::{PATIENCE, call, granted, inspect, name, release, take, until};
use crate::nodes::{HOUR, guard, guard_of, join_queue, request, service};

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_a_dead_node_are_not_counted_as_waiting() {
    let postgres = PostgresServer::start();
    let [stays, dies] = two_nodes(&postgres.url()).await;
    let lease = take(&stays.store, "k").await;
    for number in 0..5 {
        dies.wait(call("k", &number.to_string())).await;
    }
    assert_eq!(inspect(&stays.store, "k").await.waiters, 5);
    drop(dies);
    let status = async || inspect(&stays.store, "k").await;
    until("its calls are not counted", async || {
        status().await.waiters == 0
    })
    .await;
    assert_eq!(status().await.holder(), Some(&lease));
    let queue = stays.store.queue(&name("k"), 10).await.unwrap().outcome;
    assert_eq!(queue, []);
}

/// Nothing is released or swept.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_behind_that_of_a_dead_node_waits_only_while_that_node_counts_as_alive() {
    let postgres = PostgresServer::start();
    let [stays, dies] = two_nodes(&postgres.url()).await;
    // A dead node's claim for both keys reserves the free one.
    let held = take(&stays.store, "held").await;
    let mut set = call("held", "dead");
    let locks = ["held", "free"].map(|key| (name(key), Share::EXCLUSIVE));
    set.claim.locks = Locks::new(locks.to_vec()).unwrap();
    dies.wait(set).await;
    let behind = stays.wait(call("free", "alive")).await;
    drop(dies);
    let woken = timeout(PATIENCE, behind).await.expect("a wake-up in time");
    assert_eq!(granted(&woken.unwrap().0).owner.as_str(), "alive");
    release(&stays.store, &held).await;
}

/// A service that can crash: nothing that it sends after that reaches Postgres.
struct CrashingNode {
    service: LockService,
    proxy: Proxy,
}

impl CrashingNode {
    async fn start(postgres: &PostgresServer) -> Self {
        let proxy = Proxy::start(postgres.port());
        let service = service(&open_at(&proxy.postgres_url()).await);
        Self { service, proxy }
    }

    fn crash(&self) {
        self.proxy.refuse(Traffic::All);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn grants_to_dead_nodes_pass_to_the_next_waiter() {
    let postgres = PostgresServer::start();
    let alive = service(&open_at(&postgres.url()).await);
    let dead = [
        CrashingNode::start(&postgres).await,
        CrashingNode::start(&postgres).await,
    ];
    let first = guard(&alive, request("k", "a", HOUR)).await;
    let mut calls = Vec::new();
    for node in &dead {
        calls.push(join_queue(&node.service, request("k", "b", HOUR)).await);
    }
    let behind = join_queue(&alive, request("k", "c", HOUR)).await;
    for node in &dead {
        node.crash();
    }
    // They still count as alive.
    first.release().await;
    let (status, _) = alive.inspect(&name("k")).await.unwrap();
    assert_eq!(status.holder().unwrap().owner.as_str(), "b");
    let next = guard_of(behind).await;
    assert_eq!(next.lease().owner.as_str(), "c");
    assert!(next.remaining() > Duration::from_secs(HOUR - 60));
    for call in calls {
        assert!(!call.is_finished());
    }
}

/// The node was only cut off: it notices that its call was passed over, and puts it back.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_was_considered_dead_waits_again_at_its_old_position() {
    let postgres = PostgresServer::start();
    let alive = service(&open_at(&postgres.url()).await);
    let cut_off = CrashingNode::start(&postgres).await;
    let first = guard(&alive, request("k", "a", HOUR)).await;
    let passed_by = join_queue(&cut_off.service, request("k", "b", HOUR)).await;
    let behind = join_queue(&alive, request("k", "c", HOUR)).await;
    cut_off.crash();
    let waiters = async || alive.inspect(&name("k")).await.unwrap().0.waiters;
    until("it counts as dead", async || waiters().await == 1).await;
    cut_off.proxy.heal();
    until("it is back", async || waiters().await == 2).await;
    first.release().await;
    let next = guard_of(passed_by).await;
    assert!(!behind.is_finished());
    next.release().await;
    guard_of(behind).await.release().await;
}
