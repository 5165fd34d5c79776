//! A lease that is ended or changed through another node: the guard of its holder is notified at once.

use std::time::Duration;

use forrst_lock::model::LeaseRef;
use forrst_lock::{AcquireRequest, Attempt, LeaseGuard, LockService, Locks, Share};
use forrst_testkit::RedisServer;
use tokio::time::{Instant, sleep_until, timeout};

use crate::redis_faults::fixture::{PATIENCE, name, until};
use crate::redis_nodes::fixture::{HOUR, guard, guard_of, join_queue, request, ttl, two_services};

async fn is_lost_early(guard: &LeaseGuard) {
    let lost = timeout(PATIENCE, guard.loss().lost()).await;
    lost.expect("it is lost long before its end");
    assert_eq!(guard.loss().remaining(), Duration::ZERO);
}

async fn force(service: &LockService, key: &str) {
    let forced = service.force_release(&name(key), None).await;
    forced.unwrap().unwrap();
}

/// Refers to the lease without its fence.
fn without_fence(key: &str, owner: &str) -> LeaseRef {
    LeaseRef {
        name: name(key),
        owner: forrst_lock::Owner::parse(owner).unwrap(),
        fence: None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_another_node_forces_is_lost() {
    let redis = RedisServer::start();
    let [one, other] = two_services(&redis).await;
    let guard = guard(&one, request("k", "a", HOUR)).await;
    force(&other, "k").await;
    is_lost_early(&guard).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_another_node_releases_is_lost() {
    let redis = RedisServer::start();
    let [one, other] = two_services(&redis).await;
    let guard = guard(&one, request("k", "a", HOUR)).await;
    other
        .release(without_fence("k", "a"))
        .await
        .unwrap()
        .unwrap();
    is_lost_early(&guard).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_whose_attempt_another_node_withdraws_is_lost() {
    let redis = RedisServer::start();
    let [one, other] = two_services(&redis).await;
    let attempt = Attempt::parse("1").unwrap();
    let request = AcquireRequest {
        attempt: Some(attempt.clone()),
        ..request("k", "a", HOUR)
    };
    let owner = request.owner.clone();
    let guard = guard(&one, request).await;
    other.withdraw(&name("k"), owner, attempt).await.unwrap();
    is_lost_early(&guard).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_another_node_shortens_is_lost_at_its_new_end() {
    let redis = RedisServer::start();
    let [one, other] = two_services(&redis).await;
    let guard = guard(&one, request("k", "a", HOUR)).await;
    let sent = Instant::now();
    let extended = other.extend(without_fence("k", "a"), ttl(4)).await;
    extended.unwrap().unwrap();
    // By a message, long before a sweep could end it.
    until("its node knows", async || {
        guard.remaining() <= Duration::from_secs(4)
    })
    .await;
    is_lost_early(&guard).await;
    // Not at once; how much earlier than by the clock of Redis depends on its answers.
    assert!(sent.elapsed() > Duration::from_secs(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_another_node_extends_outlives_its_old_end() {
    let redis = RedisServer::start();
    let [one, other] = two_services(&redis).await;
    let guard = guard(&one, request("k", "a", 5)).await;
    let old_end = Instant::now() + Duration::from_secs(5);
    let extended = other.extend(without_fence("k", "a"), ttl(HOUR)).await;
    extended.unwrap().unwrap();
    until("its node knows", async || {
        guard.remaining() > Duration::from_secs(60)
    })
    .await;
    sleep_until(old_end).await;
    assert!(!guard.loss().is_lost());
    let (status, _) = other.inspect(&name("k")).await.unwrap();
    assert_eq!(status.holder(), Some(&guard.lease()));
}

/// The node that granted it is not the one of its holder.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_was_handed_over_and_then_forced_is_lost() {
    let redis = RedisServer::start();
    let [one, other] = two_services(&redis).await;
    let first = guard(&other, request("k", "a", HOUR)).await;
    let waiting = join_queue(&one, request("k", "b", HOUR)).await;
    first.release().await;
    let guard = guard_of(waiting).await;
    assert!(!guard.loss().is_lost());
    force(&other, "k").await;
    is_lost_early(&guard).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_set_of_locks_that_is_forced_by_any_of_them_is_lost() {
    let redis = RedisServer::start();
    let [one, other] = two_services(&redis).await;
    for forced in ["x", "y", "z"] {
        let locks = ["x", "y", "z"].map(|key| (name(key), Share::EXCLUSIVE));
        let request = AcquireRequest {
            locks: Locks::new(locks.to_vec()).unwrap(),
            ..request("x", "a", HOUR)
        };
        let guard = guard(&one, request).await;
        force(&other, forced).await;
        is_lost_early(&guard).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn forcing_one_of_two_shared_leases_loses_only_that_one() {
    let redis = RedisServer::start();
    let [one, other] = two_services(&redis).await;
    let shared = |owner: &str| AcquireRequest {
        locks: Locks::one(name("k"), Share::SHARED),
        ..request("k", owner, HOUR)
    };
    let (forced, kept) = (
        guard(&one, shared("a")).await,
        guard(&one, shared("b")).await,
    );
    let fence = forced.lease().fence;
    let ended = other.force_release(&name("k"), [fence]).await;
    ended.unwrap().unwrap();
    is_lost_early(&forced).await;
    assert!(!kept.loss().is_lost());
}
