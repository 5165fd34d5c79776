//! Nobody touches another one's lease (property S3).

use std::sync::Arc;

use super::{
    acquire, answer, claim, extend_as, fresh_name, held_by, long, pass, pass_exactly, release,
    release_as, short, take, ttl,
};
use crate::state::{Acquired, TOMBSTONE_TTL};
use crate::store::LockStore;
use crate::{Attempt, Fence, NotHeld};

pub async fn only_the_owner_releases(store: Arc<dyn LockStore>) {
    let name = fresh_name("release");
    assert_eq!(
        release_as(&*store, &name, "a", None).await,
        Err(NotHeld::NotFound)
    );
    let lease = take(&*store, &name, "a", long()).await;
    for stranger in ["b", "A", "a ", "aa"] {
        assert_eq!(
            release_as(&*store, &name, stranger, None).await,
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
        let outcome = acquire(&*store, &name, claim(contender, ttl(1))).await;
        assert_eq!(
            outcome,
            Acquired::Held {
                expires_at: lease.expires_at
            }
        );
        assert_eq!(held_by(&*store, &name).await, Some(lease.clone()));
    }
    assert!(release(&*store, &lease).await.is_ok());
}

pub async fn held_is_held_also_for_its_own_owner(store: Arc<dyn LockStore>) {
    let name = fresh_name("reentrant");
    take(&*store, &name, "a", long()).await;
    let again = acquire(&*store, &name, claim("a", long())).await;
    assert!(matches!(again, Acquired::Held { .. }), "{again:?}");
}

pub async fn a_second_release_says_so(store: Arc<dyn LockStore>) {
    let name = fresh_name("twice");
    let lease = take(&*store, &name, "a", long()).await;
    release(&*store, &lease).await.unwrap();
    assert_eq!(
        release(&*store, &lease).await,
        Err(NotHeld::AlreadyReleased)
    );
    assert_eq!(
        release_as(&*store, &name, "a", None).await,
        Err(NotHeld::AlreadyReleased)
    );
    assert_eq!(
        extend_as(&*store, &name, "a", None, long()).await,
        Err(NotHeld::AlreadyReleased)
    );
    assert_eq!(
        release_as(&*store, &name, "b", None).await,
        Err(NotHeld::NotFound)
    );
    assert_eq!(held_by(&*store, &name).await, None);
}

pub async fn a_released_owner_is_told_so_while_nobody_holds(store: Arc<dyn LockStore>) {
    let name = fresh_name("tombstone");
    let first = take(&*store, &name, "a", long()).await;
    release(&*store, &first).await.unwrap();
    take(&*store, &name, "b", short()).await;
    assert_eq!(release(&*store, &first).await, Err(NotHeld::OwnedByAnother));
    pass(short()).await;
    assert_eq!(
        release(&*store, &first).await,
        Err(NotHeld::AlreadyReleased)
    );
}

pub async fn a_release_is_forgotten_after_a_while(store: Arc<dyn LockStore>) {
    let name = fresh_name("forgotten");
    let lease = take(&*store, &name, "a", long()).await;
    release(&*store, &lease).await.unwrap();
    pass_exactly(TOMBSTONE_TTL).await;
    assert_eq!(release(&*store, &lease).await, Err(NotHeld::NotFound));
}

pub async fn an_expired_owner_is_not_told_that_it_released(store: Arc<dyn LockStore>) {
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
    assert_eq!(answer(store.force_release(&name).await), None);
    let lease = take(&*store, &name, "a", long()).await;
    assert_eq!(
        answer(store.force_release(&name).await),
        Some(lease.clone())
    );
    assert_eq!(held_by(&*store, &name).await, None);
    assert_eq!(answer(store.force_release(&name).await), None);
    assert_eq!(
        release(&*store, &lease).await,
        Err(NotHeld::AlreadyReleased)
    );
}

pub async fn a_late_release_leaves_the_successor_alone(store: Arc<dyn LockStore>) {
    let name = fresh_name("late");
    let late = take(&*store, &name, "worker", short()).await;
    pass(short()).await;
    // The same owner token, as a service with one fixed name would use.
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
    let mut call = claim("a", long());
    call.attempt = Some(Attempt::parse("try 1").unwrap());
    let first = acquire(&*store, &name, call.clone()).await;
    assert!(matches!(first, Acquired::Granted(_)));
    call.ticket = crate::Ticket::random();
    assert_eq!(acquire(&*store, &name, call.clone()).await, first);
    call.attempt = Some(Attempt::parse("try 2").unwrap());
    let other_attempt = acquire(&*store, &name, call).await;
    assert!(matches!(other_attempt, Acquired::Held { .. }));
    let mut other_owner = claim("b", long());
    other_owner.attempt = Some(Attempt::parse("try 1").unwrap());
    let other_owner = acquire(&*store, &name, other_owner).await;
    assert!(matches!(other_owner, Acquired::Held { .. }));
}

/// Whichever call is given up, the other one's answer may have reached the owner.
pub async fn a_lease_whose_attempt_was_repeated_is_not_given_up(store: Arc<dyn LockStore>) {
    let name = fresh_name("repeat");
    let mut call = claim("a", long());
    call.attempt = Some(Attempt::parse("try 1").unwrap());
    let first = call.ticket;
    acquire(&*store, &name, call.clone()).await;
    call.ticket = crate::Ticket::random();
    let second = call.ticket;
    acquire(&*store, &name, call).await;
    for ticket in [first, second] {
        store.abandon(&name, ticket);
        pass(short()).await;
        assert!(held_by(&*store, &name).await.is_some());
    }
}
