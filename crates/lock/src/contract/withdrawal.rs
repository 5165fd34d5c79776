//! Attempts that are withdrawn because their caller does not know the outcome.

use std::sync::Arc;

use super::{
    acquire, acquire_all, answer, exclusive, fresh_name, granted, held_by, long, notified, owner,
    pass, request, short, take, wait, wait_at_most, wait_for_all,
};
use crate::model::{Acquired, Wait, Wake, Withdrawn};
use crate::store::{LockStore, LockStoreExt};
use crate::{Attempt, LockName, Locks, NotHeld, Share};

async fn withdraw(store: &dyn LockStore, name: &LockName, attempt: &str) -> Withdrawn {
    let attempt = Attempt::parse(attempt).expect("short");
    answer(store.withdraw(name, owner("me"), attempt).await)
}

pub async fn withdrawing_an_attempt_releases_its_lease(store: Arc<dyn LockStore>) {
    let [a, b] = ["a", "b"].map(fresh_name);
    let locks = [&a, &b].map(|name| (name.clone(), Share::EXCLUSIVE));
    let both = Locks::new(locks.to_vec()).expect("a set");
    let call = request("me", long()).attempt("try 1");
    let Acquired::Granted(lease) = acquire_all(&*store, &both, call.clone()).await else {
        panic!("should be free");
    };
    let next = wait(&*store, &a, request("next", long())).await;
    assert_eq!(
        withdraw(&*store, &b, "try 1").await,
        Withdrawn::Held(lease.clone())
    );
    granted(next).await;
    let again = super::release(&*store, &lease).await;
    assert_eq!(again, Err(NotHeld::AlreadyReleased { forced: false }));
    // The withdrawal is remembered at the named key only, which is enough: every call of the attempt has all keys.
    let late = acquire_all(&*store, &both, call.again()).await;
    assert_eq!(late, Acquired::Withdrawn);
}

pub async fn withdrawing_an_attempt_removes_it_from_its_queues(store: Arc<dyn LockStore>) {
    let [a, b] = ["a", "b"].map(fresh_name);
    let locks = [&a, &b].map(|name| (name.clone(), Share::EXCLUSIVE));
    let both = Locks::new(locks.to_vec()).expect("a set");
    take(&*store, &a, "holder", long()).await;
    let call = request("me", long()).attempt("try 1");
    let first = wait_for_all(&*store, &both, call.clone()).await;
    let second = wait_for_all(&*store, &both, call.again()).await;
    let next = wait(&*store, &b, request("next", long())).await;
    assert_eq!(withdraw(&*store, &b, "try 1").await, Withdrawn::Waiting);
    assert_eq!(notified(first).await, Some(Wake::Withdrawn));
    assert_eq!(notified(second).await, Some(Wake::Withdrawn));
    granted(next).await;
}

pub async fn a_call_that_arrives_after_its_withdrawal_is_refused(store: Arc<dyn LockStore>) {
    let name = fresh_name("late");
    assert_eq!(withdraw(&*store, &name, "try 1").await, Withdrawn::Unknown);
    assert_eq!(withdraw(&*store, &name, "try 1").await, Withdrawn::Unknown);
    pass(short()).await;
    let late = acquire(&*store, &name, request("me", long()).attempt("try 1")).await;
    assert_eq!(late, Acquired::Withdrawn);
    assert_eq!(held_by(&*store, &name).await, None);
    // Another attempt, and the same attempt of another owner, are not affected.
    let other = acquire(&*store, &name, request("me", long()).attempt("try 2")).await;
    let Acquired::Granted(lease) = other else {
        panic!("should be free: {other:?}");
    };
    super::release(&*store, &lease).await.unwrap();
    let other = acquire(&*store, &name, request("other", long()).attempt("try 1")).await;
    assert!(matches!(other, Acquired::Granted(_)), "{other:?}");
}

/// After a network partition a node lets its calls rejoin their queues. By then another call of the attempt, through another
/// node, may have received the lease and released it, so that no caller waits for a second one.
pub async fn a_call_that_rejoins_after_its_attempt_was_released_is_refused(
    store: Arc<dyn LockStore>,
) {
    let name = fresh_name("again");
    let locks = exclusive(&name);
    let holder = take(&*store, &name, "holder", long()).await;
    let call = request("me", long()).attempt("try 1");
    let (queued, first) = wait_at_most(&*store, &locks, call.clone(), long(), 100).await;
    let Acquired::Queued {
        position, until, ..
    } = queued
    else {
        panic!("should be held: {queued:?}");
    };
    let second = wait(&*store, &name, call.again()).await;
    super::release(&*store, &holder).await.unwrap();
    granted(first).await;
    let lease = granted(second).await;
    super::release(&*store, &lease).await.unwrap();

    let again = Some(Wait {
        timeout: long().as_duration(),
        max_queue: 100,
        rejoin: Some((position, until)),
    });
    let late = call.clone().for_locks(&locks, again.clone());
    assert_eq!(answer(store.acquire(late).await), Acquired::Withdrawn);
    assert_eq!(held_by(&*store, &name).await, None);
    // Another attempt that rejoins, and a call that does not rejoin, are not affected.
    for other in [
        request("me", long())
            .attempt("try 2")
            .for_locks(&locks, again),
        call.again().for_locks(&locks, None),
    ] {
        let acquired = answer(store.acquire(other).await);
        let Acquired::Granted(lease) = acquired else {
            panic!("should be free: {acquired:?}");
        };
        super::release(&*store, &lease).await.unwrap();
    }
}
