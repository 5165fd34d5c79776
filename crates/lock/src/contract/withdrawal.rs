//! Attempts that are taken back by callers who do not know what became of them.

use std::sync::Arc;

use super::{
    acquire, acquire_all, answer, ask, exclusive, fresh_name, granted, heard, held_by, long, owner,
    pass, short, take, wait, wait_at_most, wait_for_all,
};
use crate::model::{Acquired, Wait, Wake, Withdrawn};
use crate::store::{LockStore, LockStoreExt};
use crate::{Attempt, LockName, Locks, NotHeld, Share};

async fn withdraw(store: &dyn LockStore, name: &LockName, attempt: &str) -> Withdrawn {
    let attempt = Attempt::parse(attempt).expect("short");
    answer(store.withdraw(name, owner("me"), attempt).await)
}

pub async fn a_held_attempt_is_released_by_withdrawing_it(store: Arc<dyn LockStore>) {
    let [a, b] = ["a", "b"].map(fresh_name);
    let locks = [&a, &b].map(|name| (name.clone(), Share::EXCLUSIVE));
    let both = Locks::new(locks.to_vec()).expect("a set");
    let call = ask("me", long()).attempt("try 1");
    let Acquired::Granted(lease) = acquire_all(&*store, &both, call.clone()).await else {
        panic!("should be free");
    };
    let next = wait(&*store, &a, ask("next", long())).await;
    assert_eq!(
        withdraw(&*store, &b, "try 1").await,
        Withdrawn::Held(lease.clone())
    );
    granted(next).await;
    let again = super::release(&*store, &lease).await;
    assert_eq!(again, Err(NotHeld::AlreadyReleased { forced: false }));
    // Only those who ask for the key that was named learn of it, and that is enough: all of them do.
    let late = acquire_all(&*store, &both, call.again()).await;
    assert_eq!(late, Acquired::Withdrawn);
}

pub async fn a_waiting_attempt_leaves_by_withdrawing_it(store: Arc<dyn LockStore>) {
    let [a, b] = ["a", "b"].map(fresh_name);
    let locks = [&a, &b].map(|name| (name.clone(), Share::EXCLUSIVE));
    let both = Locks::new(locks.to_vec()).expect("a set");
    take(&*store, &a, "holder", long()).await;
    let call = ask("me", long()).attempt("try 1");
    let first = wait_for_all(&*store, &both, call.clone()).await;
    let second = wait_for_all(&*store, &both, call.again()).await;
    let next = wait(&*store, &b, ask("next", long())).await;
    assert_eq!(withdraw(&*store, &b, "try 1").await, Withdrawn::Waiting);
    assert_eq!(heard(first).await, Some(Wake::Withdrawn));
    assert_eq!(heard(second).await, Some(Wake::Withdrawn));
    granted(next).await;
}

pub async fn a_call_that_arrives_after_its_withdrawal_comes_to_nothing(store: Arc<dyn LockStore>) {
    let name = fresh_name("late");
    assert_eq!(withdraw(&*store, &name, "try 1").await, Withdrawn::Unknown);
    assert_eq!(withdraw(&*store, &name, "try 1").await, Withdrawn::Unknown);
    pass(short()).await;
    let late = acquire(&*store, &name, ask("me", long()).attempt("try 1")).await;
    assert_eq!(late, Acquired::Withdrawn);
    assert_eq!(held_by(&*store, &name).await, None);
    // Another attempt, and another owner's, are not meant.
    let other = acquire(&*store, &name, ask("me", long()).attempt("try 2")).await;
    let Acquired::Granted(lease) = other else {
        panic!("should be free: {other:?}");
    };
    super::release(&*store, &lease).await.unwrap();
    let other = acquire(&*store, &name, ask("other", long()).attempt("try 1")).await;
    assert!(matches!(other, Acquired::Granted(_)), "{other:?}");
}

/// A node that was cut off asks again for the positions of its calls. By then another call of the attempt, through another node, may
/// have had the lease and given it back: nobody waits for a second one.
pub async fn a_call_that_asks_again_after_its_attempt_was_released_comes_to_nothing(
    store: Arc<dyn LockStore>,
) {
    let name = fresh_name("again");
    let locks = exclusive(&name);
    let holder = take(&*store, &name, "holder", long()).await;
    let call = ask("me", long()).attempt("try 1");
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
    // Another attempt that asks again, and a call that does not, are not meant.
    for other in [
        ask("me", long()).attempt("try 2").for_locks(&locks, again),
        call.again().for_locks(&locks, None),
    ] {
        let acquired = answer(store.acquire(other).await);
        let Acquired::Granted(lease) = acquired else {
            panic!("should be free: {acquired:?}");
        };
        super::release(&*store, &lease).await.unwrap();
    }
}
