//! Only its owner can release or extend a lease (property S3).

use std::sync::Arc;

use super::{
    acquire, extend_as, force_release, fresh_name, granted, held_by, long, pass, pass_exactly,
    release, release_as, request, short, take, ttl, wait,
};
use crate::model::{Acquired, Obstacle, REMEMBERED_RELEASES};
use crate::store::LockStore;
use crate::{CallToken, Fence, LockKey, LockName, NotHeld};

/// Released by its owner, not by force.
const RELEASED: NotHeld = NotHeld::AlreadyReleased { forced: false };

pub async fn only_the_owner_releases(store: Arc<dyn LockStore>) {
    let name = fresh_name("release");
    assert_eq!(
        release_as(&*store, &name, "a", None).await,
        Err(NotHeld::NotFound)
    );
    let lease = take(&*store, &name, "a", long()).await;
    for other in ["b", "A", "a ", "aa"] {
        assert_eq!(
            release_as(&*store, &name, other, None).await,
            Err(NotHeld::OwnedByAnother)
        );
    }
    assert_eq!(held_by(&*store, &name).await, Some(lease));
    assert!(release_as(&*store, &name, "a", None).await.is_ok());
}

pub async fn only_the_owner_extends(store: Arc<dyn LockStore>) {
    let name = fresh_name("extend");
    assert_eq!(
        extend_as(&*store, &name, "a", None, long()).await,
        Err(NotHeld::NotFound)
    );
    let lease = take(&*store, &name, "a", long()).await;
    assert_eq!(
        extend_as(&*store, &name, "b", None, ttl(90_000)).await,
        Err(NotHeld::OwnedByAnother)
    );
    assert_eq!(held_by(&*store, &name).await, Some(lease));
}

pub async fn a_named_fence_has_to_match(store: Arc<dyn LockStore>) {
    let name = fresh_name("fence");
    let lease = take(&*store, &name, "a", long()).await;
    let wrong = Fence::new(lease.fence.number() + 1);
    assert_eq!(
        release_as(&*store, &name, "a", wrong).await,
        Err(NotHeld::OwnedByAnother)
    );
    assert_eq!(
        extend_as(&*store, &name, "a", wrong, long()).await,
        Err(NotHeld::OwnedByAnother)
    );
    assert_eq!(held_by(&*store, &name).await, Some(lease.clone()));
    assert!(
        extend_as(&*store, &name, "a", Some(lease.fence), long())
            .await
            .is_ok()
    );
    assert!(release(&*store, &lease).await.is_ok());
}

pub async fn a_refused_contender_changes_nothing(store: Arc<dyn LockStore>) {
    let name = fresh_name("contender");
    let lease = take(&*store, &name, "a", long()).await;
    for contender in ["b", "a"] {
        let outcome = acquire(&*store, &name, request(contender, ttl(1))).await;
        let obstacle = Obstacle {
            blocked_by: vec![name.clone()],
            retry_at: lease.expires_at,
        };
        assert_eq!(outcome, Acquired::Held(obstacle));
        assert_eq!(held_by(&*store, &name).await, Some(lease.clone()));
    }
    assert!(release(&*store, &lease).await.is_ok());
}

pub async fn a_lock_is_not_reentrant(store: Arc<dyn LockStore>) {
    let name = fresh_name("reentrant");
    take(&*store, &name, "a", long()).await;
    let again = acquire(&*store, &name, request("a", long())).await;
    assert!(matches!(again, Acquired::Held(_)), "{again:?}");
}

pub async fn a_second_release_is_recognised(store: Arc<dyn LockStore>) {
    let name = fresh_name("twice");
    let lease = take(&*store, &name, "a", long()).await;
    release(&*store, &lease).await.unwrap();
    assert_eq!(release(&*store, &lease).await, Err(RELEASED));
    assert_eq!(release_as(&*store, &name, "a", None).await, Err(RELEASED));
    assert_eq!(
        extend_as(&*store, &name, "a", None, long()).await,
        Err(RELEASED)
    );
    assert_eq!(
        release_as(&*store, &name, "b", None).await,
        Err(NotHeld::NotFound)
    );
    assert_eq!(held_by(&*store, &name).await, None);
}

pub async fn a_second_release_is_recognised_while_another_owner_holds_the_lock(
    store: Arc<dyn LockStore>,
) {
    let name = fresh_name("tombstone");
    let first = take(&*store, &name, "a", long()).await;
    release(&*store, &first).await.unwrap();
    let second = take(&*store, &name, "b", short()).await;
    for fence in [None, Some(first.fence)] {
        let again = release_as(&*store, &name, "a", fence).await;
        assert_eq!(again, Err(RELEASED), "{fence:?}");
        let again = extend_as(&*store, &name, "a", fence, long()).await;
        assert_eq!(again, Err(RELEASED), "{fence:?}");
    }
    assert_eq!(
        release_as(&*store, &name, "c", None).await,
        Err(NotHeld::OwnedByAnother)
    );
    assert_eq!(
        release_as(&*store, &name, "a", Some(second.fence)).await,
        Err(NotHeld::OwnedByAnother)
    );
    assert_eq!(held_by(&*store, &name).await, Some(second));
    pass(short()).await;
    assert_eq!(release(&*store, &first).await, Err(RELEASED));
}

pub async fn the_holder_learns_that_its_lease_was_force_released(store: Arc<dyn LockStore>) {
    let name = fresh_name("forced");
    let forced = Err(NotHeld::AlreadyReleased { forced: true });
    let first = take(&*store, &name, "a", long()).await;
    force_release(&*store, &name, None).await.unwrap();
    assert_eq!(release(&*store, &first).await, forced);
    let second = take(&*store, &name, "b", long()).await;
    for fence in [None, Some(first.fence)] {
        assert_eq!(release_as(&*store, &name, "a", fence).await, forced);
        let extended = extend_as(&*store, &name, "a", fence, long()).await;
        assert_eq!(extended, forced);
    }
    release(&*store, &second).await.unwrap();
    assert_eq!(release(&*store, &second).await, Err(RELEASED));
    assert_eq!(release(&*store, &first).await, forced);
}

pub async fn a_release_with_a_fence_is_recognised_after_a_newer_lease(store: Arc<dyn LockStore>) {
    let name = fresh_name("newest");
    let first = take(&*store, &name, "a", long()).await;
    release(&*store, &first).await.unwrap();
    take(&*store, &name, "a", short()).await;
    // The owner holds another lease, which must not be reported as released.
    assert_eq!(release(&*store, &first).await, Err(NotHeld::OwnedByAnother));
    pass(short()).await;
    assert_eq!(release(&*store, &first).await, Err(RELEASED));
    assert_eq!(
        release_as(&*store, &name, "a", None).await,
        Err(NotHeld::NotFound)
    );
}

pub async fn the_last_sixteen_releases_are_remembered(store: Arc<dyn LockStore>) {
    let name = fresh_name("sixteen");
    let mut leases = Vec::new();
    for number in 0..=REMEMBERED_RELEASES {
        let lease = take(&*store, &name, &format!("owner {number}"), long()).await;
        release(&*store, &lease).await.unwrap();
        leases.push(lease);
    }
    assert_eq!(release(&*store, &leases[0]).await, Err(NotHeld::NotFound));
    for lease in &leases[1..] {
        assert_eq!(release(&*store, lease).await, Err(RELEASED));
    }
}

pub async fn a_release_is_forgotten_after_a_while(store: Arc<dyn LockStore>) {
    let name = fresh_name("forgotten");
    let lease = take(&*store, &name, "a", long()).await;
    release(&*store, &lease).await.unwrap();
    pass_exactly(store.capabilities().release_memory.as_duration()).await;
    assert_eq!(release(&*store, &lease).await, Err(NotHeld::NotFound));
}

pub async fn the_end_of_a_call_is_remembered_for_longer(store: Arc<dyn LockStore>) {
    let call = fresh_call("ended");
    let lease = take(&*store, &call, "a", long()).await;
    release(&*store, &lease).await.unwrap();
    pass_exactly(store.capabilities().release_memory.as_duration()).await;
    assert_eq!(release(&*store, &lease).await, Err(RELEASED));
    // A lock is not taken for a call, whatever its key.
    let key = LockKey::parse(&format!("}}:{call}")).unwrap();
    let lease = take(&*store, &LockName::global(&key), "a", long()).await;
    release(&*store, &lease).await.unwrap();
    pass_exactly(store.capabilities().release_memory.as_duration()).await;
    assert_eq!(release(&*store, &lease).await, Err(NotHeld::NotFound));
}

pub async fn calls_are_not_counted_as_locks(store: Arc<dyn LockStore>) {
    let before = store.counts().await.unwrap();
    let lock = take(&*store, &fresh_name("counted"), "a", long()).await;
    let calls = ["one", "other"].map(fresh_call);
    for call in &calls {
        take(&*store, call, "a", long()).await;
    }
    let counted = store.counts().await.unwrap();
    assert_eq!(
        (counted.keys, counted.leases),
        (before.keys + 1, before.leases + 1)
    );
    release_as(&*store, &calls[0], "a", None).await.unwrap();
    release(&*store, &lock).await.unwrap();
    assert_eq!(store.counts().await.unwrap(), before);
    release_as(&*store, &calls[1], "a", None).await.unwrap();
    assert_eq!(store.counts().await.unwrap(), before);
}

fn fresh_call(about: &str) -> LockName {
    let token = CallToken::parse(fresh_name(about).as_str());
    LockName::call(None, &token.expect("a short token"))
}

pub async fn an_expired_lease_is_not_reported_as_released(store: Arc<dyn LockStore>) {
    let name = fresh_name("expired");
    let first = take(&*store, &name, "a", long()).await;
    release(&*store, &first).await.unwrap();
    take(&*store, &name, "a", short()).await;
    pass(short()).await;
    assert_eq!(
        release_as(&*store, &name, "a", None).await,
        Err(NotHeld::NotFound)
    );
}

pub async fn force_release_needs_no_owner(store: Arc<dyn LockStore>) {
    let name = fresh_name("force");
    let not_found = Err(NotHeld::NotFound);
    assert_eq!(force_release(&*store, &name, None).await, not_found);
    let lease = take(&*store, &name, "a", long()).await;
    assert_eq!(force_release(&*store, &name, None).await, Ok(lease.clone()));
    assert_eq!(held_by(&*store, &name).await, None);
    assert_eq!(force_release(&*store, &name, None).await, not_found);
}

pub async fn force_release_of_a_fence_does_not_end_the_next_lease(store: Arc<dyn LockStore>) {
    let name = fresh_name("force one");
    let first = take(&*store, &name, "a", long()).await;
    let forced = force_release(&*store, &name, Some(first.fence)).await;
    assert_eq!(forced, Ok(first.clone()));
    assert_eq!(
        force_release(&*store, &name, Some(first.fence)).await,
        Err(NotHeld::NotFound)
    );
    let successor = take(&*store, &name, "b", long()).await;
    assert_eq!(
        force_release(&*store, &name, Some(first.fence)).await,
        Err(NotHeld::OwnedByAnother)
    );
    assert_eq!(held_by(&*store, &name).await, Some(successor));
}

pub async fn a_late_release_does_not_end_the_next_lease(store: Arc<dyn LockStore>) {
    let name = fresh_name("late");
    let late = take(&*store, &name, "worker", short()).await;
    pass(short()).await;
    // The same owner token, as a service with a fixed name uses it.
    let successor = take(&*store, &name, "worker", long()).await;
    assert_eq!(release(&*store, &late).await, Err(NotHeld::OwnedByAnother));
    assert_eq!(
        extend_as(&*store, &name, "worker", Some(late.fence), long()).await,
        Err(NotHeld::OwnedByAnother)
    );
    assert_eq!(held_by(&*store, &name).await, Some(successor));
}

pub async fn a_repeated_attempt_gets_the_same_lease(store: Arc<dyn LockStore>) {
    let name = fresh_name("attempt");
    let mut call = request("a", long());
    call = call.attempt("try 1");
    let first = acquire(&*store, &name, call.clone()).await;
    assert!(matches!(first, Acquired::Granted(_)));
    call = call.again();
    assert_eq!(acquire(&*store, &name, call.clone()).await, first);
    call = call.attempt("try 2");
    let other_attempt = acquire(&*store, &name, call).await;
    assert!(matches!(other_attempt, Acquired::Held(_)));
    let mut other_owner = request("b", long());
    other_owner = other_owner.attempt("try 1");
    let other_owner = acquire(&*store, &name, other_owner).await;
    assert!(matches!(other_owner, Acquired::Held(_)));
}

/// The owner may have received the answer to either call.
pub async fn a_lease_ends_when_all_calls_of_its_attempt_are_abandoned(store: Arc<dyn LockStore>) {
    let name = fresh_name("repeat");
    let call = request("a", long()).attempt("try 1");
    let again = call.again();
    acquire(&*store, &name, call.clone()).await;
    acquire(&*store, &name, again.clone()).await;
    store.abandon(&name, call.ticket);
    pass(short()).await;
    assert!(held_by(&*store, &name).await.is_some());
    let next = wait(&*store, &name, request("b", long())).await;
    store.abandon(&name, again.ticket);
    assert_eq!(granted(next).await.owner.as_str(), "b");
}
