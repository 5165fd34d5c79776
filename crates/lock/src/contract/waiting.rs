//! Waiting calls are served in arrival order, and none is lost (property L2).

use std::sync::Arc;

use super::{
    Request, acquire, answer, exclusive, extend_as, force_release, fresh_name, granted, held_by,
    long, notified, pass, release, release_as, request, short, still_waits, take, ttl, wait,
    wait_at_most,
};
use crate::Caller;
use crate::model::{Acquired, NotHeld, Wake};
use crate::store::{LockStore, LockStoreExt};

pub async fn waiters_are_served_in_arrival_order(store: Arc<dyn LockStore>) {
    let name = fresh_name("order");
    let mut lease = take(&*store, &name, "first", long()).await;
    let mut queue = Vec::new();
    for index in 0..8 {
        let owner = format!("waiter {index}");
        let wake = wait(&*store, &name, request(&owner, long())).await;
        queue.push((owner, wake));
    }
    for (owner, wake) in queue {
        release(&*store, &lease).await.unwrap();
        lease = granted(wake).await;
        assert_eq!(lease.owner.as_str(), owner);
        assert_eq!(held_by(&*store, &name).await, Some(lease.clone()));
    }
    release(&*store, &lease).await.unwrap();
    assert_eq!(held_by(&*store, &name).await, None);
}

pub async fn a_release_wakes_one_waiter_only(store: Arc<dyn LockStore>) {
    let name = fresh_name("one");
    let lease = take(&*store, &name, "a", long()).await;
    let first = wait(&*store, &name, request("b", long())).await;
    let mut second = wait(&*store, &name, request("c", long())).await;
    let status = answer(store.inspect(&name).await);
    assert_eq!(status.waiters, 2);
    release(&*store, &lease).await.unwrap();
    granted(first).await;
    still_waits(&mut second);
}

pub async fn force_release_hands_over(store: Arc<dyn LockStore>) {
    let name = fresh_name("force");
    take(&*store, &name, "a", long()).await;
    let wake = wait(&*store, &name, request("b", long())).await;
    force_release(&*store, &name, None).await.unwrap();
    assert_eq!(granted(wake).await.owner.as_str(), "b");
}

pub async fn expiry_hands_over_when_settled(store: Arc<dyn LockStore>) {
    let name = fresh_name("settle");
    let lease = take(&*store, &name, "a", short()).await;
    let mut wake = wait(&*store, &name, request("b", long())).await;
    let settled = answer(store.settle(&name).await);
    assert_eq!(settled.retry_at, lease.expires_at, "not yet");
    assert_eq!(settled.waiters, 1);
    still_waits(&mut wake);
    pass(short()).await;
    let settled = answer(store.settle(&name).await);
    assert_eq!(settled.waiters, 0);
    let lease = granted(wake).await;
    assert_eq!(held_by(&*store, &name).await, Some(lease));
}

/// No caller can have meant a lease that is granted in the same step, not even its owner.
pub async fn a_command_on_an_expired_lease_does_not_affect_the_next_lease(
    store: Arc<dyn LockStore>,
) {
    for act in ["release", "extend", "force-release"] {
        let name = fresh_name(act);
        take(&*store, &name, "a", short()).await;
        let wake = wait(&*store, &name, request("b", long())).await;
        pass(short()).await;
        let found = match act {
            "release" => release_as(&*store, &name, "b", None).await,
            "extend" => extend_as(&*store, &name, "b", None, short()).await,
            _ => force_release(&*store, &name, None).await,
        };
        assert_eq!(found, Err(NotHeld::NotFound), "{act}");
        let lease = granted(wake).await;
        assert_eq!(held_by(&*store, &name).await, Some(lease), "{act}");
    }
}

pub async fn a_newcomer_does_not_overtake_the_queue(store: Arc<dyn LockStore>) {
    let name = fresh_name("newcomer");
    take(&*store, &name, "a", short()).await;
    let wake = wait(&*store, &name, request("b", long())).await;
    pass(short()).await;
    let newcomer = acquire(&*store, &name, request("c", long())).await;
    assert!(matches!(newcomer, Acquired::Held(_)), "{newcomer:?}");
    assert_eq!(granted(wake).await.owner.as_str(), "b");
}

pub async fn a_waiters_ttl_counts_from_its_grant(store: Arc<dyn LockStore>) {
    let name = fresh_name("ttl");
    let lease = take(&*store, &name, "a", long()).await;
    let wake = wait(&*store, &name, request("b", ttl(600))).await;
    pass(ttl(400)).await;
    release(&*store, &lease).await.unwrap();
    let lease = granted(wake).await;
    assert_eq!(
        lease.expires_at.remaining(lease.acquired_at),
        ttl(600).as_duration()
    );
    pass(ttl(400)).await;
    assert_eq!(held_by(&*store, &name).await, Some(lease));
    pass(ttl(200)).await;
    assert_eq!(held_by(&*store, &name).await, None);
}

pub async fn a_waiter_that_has_timed_out_is_skipped(store: Arc<dyn LockStore>) {
    let name = fresh_name("over");
    let lease = take(&*store, &name, "a", long()).await;
    let (_, late) = wait_at_most(
        &*store,
        &exclusive(&name),
        request("b", long()),
        short(),
        100,
    )
    .await;
    let next = wait(&*store, &name, request("c", long())).await;
    pass(short()).await;
    release(&*store, &lease).await.unwrap();
    assert_eq!(granted(next).await.owner.as_str(), "c");
    assert!(!matches!(notified(late).await, Some(Wake::Granted(_))));
}

pub async fn an_abandoned_call_leaves_the_queue(store: Arc<dyn LockStore>) {
    let name = fresh_name("give up");
    let lease = take(&*store, &name, "a", long()).await;
    let quitter = request("b", long());
    let ticket = quitter.ticket;
    let mut given_up = wait(&*store, &name, quitter).await;
    let next = wait(&*store, &name, request("c", long())).await;
    store.abandon(&name, ticket);
    waiters_become(&*store, &name, 1).await;
    release(&*store, &lease).await.unwrap();
    assert_eq!(granted(next).await.owner.as_str(), "c");
    assert_eq!(given_up.try_recv(), None);
}

pub async fn an_abandoned_grant_goes_to_the_next_waiter(store: Arc<dyn LockStore>) {
    let name = fresh_name("given up");
    let lease = take(&*store, &name, "a", long()).await;
    let quitter = request("b", long());
    let ticket = quitter.ticket;
    let wake = wait(&*store, &name, quitter).await;
    let next = wait(&*store, &name, request("c", long())).await;
    release(&*store, &lease).await.unwrap();
    granted(wake).await;
    store.abandon(&name, ticket);
    let lease = granted(next).await;
    // A second time has no effect: the lock belongs to another call now.
    store.abandon(&name, ticket);
    pass(short()).await;
    assert_eq!(held_by(&*store, &name).await, Some(lease));
}

pub async fn a_waiter_that_is_gone_is_skipped(store: Arc<dyn LockStore>) {
    let name = fresh_name("gone");
    let lease = take(&*store, &name, "a", long()).await;
    for owner in ["b", "c"] {
        drop(wait(&*store, &name, request(owner, long())).await);
    }
    let next = wait(&*store, &name, request("d", long())).await;
    release(&*store, &lease).await.unwrap();
    assert_eq!(granted(next).await.owner.as_str(), "d");
}

pub async fn a_repeated_waiting_attempt_shares_its_position(store: Arc<dyn LockStore>) {
    let name = fresh_name("repeat");
    let lease = take(&*store, &name, "a", long()).await;
    let call = request("b", long()).attempt("try 1");
    let first = wait(&*store, &name, call.clone()).await;
    let mut behind = wait(&*store, &name, request("c", long())).await;
    let again = call.again();
    let second = wait(&*store, &name, again.clone()).await;
    assert_eq!(answer(store.inspect(&name).await).waiters, 2);
    release(&*store, &lease).await.unwrap();
    let lease = granted(first).await;
    assert_eq!(granted(second).await, lease);
    still_waits(&mut behind);
    // The owner may have received either answer, so the lease ends when both calls are abandoned.
    store.abandon(&name, call.ticket);
    pass(short()).await;
    assert_eq!(held_by(&*store, &name).await, Some(lease));
    store.abandon(&name, again.ticket);
    assert_eq!(granted(behind).await.owner.as_str(), "c");
}

pub async fn a_repeated_attempt_that_leaves_keeps_the_position_for_the_others(
    store: Arc<dyn LockStore>,
) {
    let name = fresh_name("repeat leaves");
    let lease = take(&*store, &name, "a", long()).await;
    let call = request("b", long()).attempt("try 1");
    let mut first = wait(&*store, &name, call.clone()).await;
    let mut behind = wait(&*store, &name, request("c", long())).await;
    let second = wait(&*store, &name, call.again()).await;
    // A call that does not wait is refused, and changes nothing.
    let refused = acquire(&*store, &name, call.again()).await;
    assert!(matches!(refused, Acquired::Held(_)), "{refused:?}");
    store.abandon(&name, call.ticket);
    pass(short()).await;
    release(&*store, &lease).await.unwrap();
    assert_eq!(granted(second).await.owner.as_str(), "b");
    assert_eq!(first.try_recv(), None);
    still_waits(&mut behind);
}

pub async fn a_full_queue_refuses(store: Arc<dyn LockStore>) {
    let name = fresh_name("full");
    let lease = take(&*store, &name, "a", long()).await;
    let (first, wake) =
        wait_at_most(&*store, &exclusive(&name), request("b", long()), long(), 1).await;
    assert!(matches!(first, Acquired::Queued { .. }));
    let (second, _) =
        wait_at_most(&*store, &exclusive(&name), request("c", long()), long(), 1).await;
    assert!(matches!(second, Acquired::QueueFull(_)), "{second:?}");
    release(&*store, &lease).await.unwrap();
    granted(wake).await;
}

pub async fn a_free_lock_is_granted_without_waiting(store: Arc<dyn LockStore>) {
    let name = fresh_name("free");
    let (outcome, _) =
        wait_at_most(&*store, &exclusive(&name), request("a", long()), long(), 0).await;
    assert!(matches!(outcome, Acquired::Granted(_)), "{outcome:?}");
}

pub async fn holders_and_waiters_are_shown_with_their_callers(store: Arc<dyn LockStore>) {
    let name = fresh_name("known");
    let by = |caller: &str, owner: &str| Request {
        caller: Some(Caller::parse(caller).unwrap()),
        ..request(owner, long())
    };
    let held = acquire(&*store, &name, by("billing", "a")).await;
    let Acquired::Granted(lease) = held else {
        panic!("should be free: {held:?}");
    };
    assert_eq!(lease.caller, Some(Caller::parse("billing").unwrap()));
    assert_eq!(held_by(&*store, &name).await, Some(lease.clone()));
    let next = wait(&*store, &name, by("nightly", "b")).await;
    let _last = wait(&*store, &name, request("c", long())).await;

    let queue = store.queue(&name, 10).await.unwrap();
    let seen: Vec<_> = queue
        .outcome
        .iter()
        .map(|waiting| waiting.owner.as_str())
        .collect();
    assert_eq!(seen, ["b", "c"]);
    let first = &queue.outcome[0];
    assert_eq!(first.caller, Some(Caller::parse("nightly").unwrap()));
    assert_eq!(queue.outcome[1].caller, None);
    assert!(lease.acquired_at <= first.since && first.since <= queue.now);
    assert_eq!(first.until.remaining(first.since), long().as_duration());
    assert_eq!(answer(store.queue(&name, 1).await).len(), 1);

    release(&*store, &lease).await.unwrap();
    assert_eq!(granted(next).await.caller, first.caller);
    assert_eq!(answer(store.queue(&name, 10).await).len(), 1);
}

/// An abandoned call may take a round trip to leave the queue.
async fn waiters_become(store: &dyn LockStore, name: &crate::LockName, expected: usize) {
    for _ in 0..100 {
        let status = answer(store.inspect(name).await);
        if status.waiters == expected {
            return;
        }
        pass(ttl(20)).await;
    }
    panic!("{expected} claims should wait for {name}");
}
