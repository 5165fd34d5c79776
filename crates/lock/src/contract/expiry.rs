//! Leases expire by the store's clock (properties S1, S4, L1).

use std::sync::Arc;

use super::{
    extend_as, force_release, fresh_name, held_by, is_free, lease_ref, long, pass, release, short,
    take, ttl,
};
use crate::NotHeld;
use crate::store::{ListRequest, LockStore, LockStoreExt};

pub async fn a_lease_ends_at_its_expiry(store: Arc<dyn LockStore>) {
    let name = fresh_name("expiry");
    take(&*store, &name, "a", short()).await;
    assert!(!is_free(&*store, &name).await);
    pass(short()).await;
    assert!(is_free(&*store, &name).await);
}

pub async fn an_expired_lease_is_not_shown(store: Arc<dyn LockStore>) {
    let name = fresh_name("shown");
    take(&*store, &name, "a", short()).await;
    pass(short()).await;
    assert_eq!(held_by(&*store, &name).await, None);
    let request = ListRequest {
        prefix: name.to_string(),
        limit: 10,
        cursor: None,
    };
    assert!(store.list(&request).await.unwrap().locks.is_empty());
    assert_eq!(
        force_release(&*store, &name, None).await,
        Err(NotHeld::NotFound)
    );
}

pub async fn an_expired_lease_cannot_be_released(store: Arc<dyn LockStore>) {
    let name = fresh_name("release");
    let lease = take(&*store, &name, "a", short()).await;
    pass(short()).await;
    assert_eq!(release(&*store, &lease).await, Err(NotHeld::NotFound));
}

pub async fn extend_replaces_the_remaining_time(store: Arc<dyn LockStore>) {
    let name = fresh_name("replace");
    let lease = take(&*store, &name, "a", long()).await;
    let answer = store
        .extend(lease_ref(&name, "a", None), ttl(10_000))
        .await
        .unwrap();
    let extended = answer.outcome.unwrap();
    assert_eq!(
        extended.expires_at.remaining(answer.now),
        ttl(10_000).as_duration(),
        "counted from now, not added"
    );
    assert_eq!(extended.acquired_at, lease.acquired_at);
    assert_eq!(held_by(&*store, &name).await, Some(extended));
}

pub async fn extend_can_shorten_a_lease(store: Arc<dyn LockStore>) {
    let name = fresh_name("shorten");
    take(&*store, &name, "a", long()).await;
    extend_as(&*store, &name, "a", None, short()).await.unwrap();
    pass(short()).await;
    assert!(is_free(&*store, &name).await);
}

pub async fn extend_does_not_revive_an_expired_lease(store: Arc<dyn LockStore>) {
    let name = fresh_name("revive");
    take(&*store, &name, "a", short()).await;
    pass(short()).await;
    assert_eq!(
        extend_as(&*store, &name, "a", None, long()).await,
        Err(NotHeld::NotFound)
    );
    assert_eq!(held_by(&*store, &name).await, None);
    assert!(is_free(&*store, &name).await);
}

pub async fn a_lock_is_held_until_its_extended_expiry(store: Arc<dyn LockStore>) {
    let name = fresh_name("extended");
    take(&*store, &name, "a", short()).await;
    extend_as(&*store, &name, "a", None, long()).await.unwrap();
    pass(short()).await;
    assert!(!is_free(&*store, &name).await);
}

pub async fn the_sweep_ends_expired_leases(store: Arc<dyn LockStore>) {
    let names = [
        fresh_name("sweep"),
        fresh_name("sweep"),
        fresh_name("sweep"),
    ];
    for name in &names {
        take(&*store, name, "a", short()).await;
    }
    let live = fresh_name("live");
    let lease = take(&*store, &live, "a", long()).await;
    pass(short()).await;
    loop {
        let count = store.sweep(2).await.unwrap();
        assert!(count <= 2);
        if count == 0 {
            break;
        }
    }
    assert_eq!(held_by(&*store, &live).await, Some(lease));
    for name in &names {
        assert!(is_free(&*store, name).await);
    }
}
