//! The fences of a key grow strictly (property S2).

use std::sync::Arc;

use super::{
    extend_as, force_release, fresh_name, granted, long, pass, release, request, short, take, wait,
};
use crate::Fence;
use crate::store::LockStore;

/// Each fence is larger than the previous one, as a number and as text.
fn assert_grow(fences: &[Fence]) {
    for pair in fences.windows(2) {
        assert!(pair[0] < pair[1], "{} then {}", pair[0], pair[1]);
        assert!(pair[0].to_string() < pair[1].to_string());
    }
}

pub async fn fences_grow_with_every_grant(store: Arc<dyn LockStore>) {
    let (name, other) = (fresh_name("grant"), fresh_name("other"));
    let mut fences = Vec::new();
    for round in 0..10 {
        let lease = take(&*store, &name, "a", long()).await;
        fences.push(lease.fence);
        release(&*store, &lease).await.unwrap();
        if round % 3 == 0 {
            let lease = take(&*store, &other, "a", long()).await;
            release(&*store, &lease).await.unwrap();
        }
    }
    assert_grow(&fences);
}

pub async fn fences_grow_across_expiry(store: Arc<dyn LockStore>) {
    let name = fresh_name("expiry");
    let mut fences = Vec::new();
    for _ in 0..3 {
        fences.push(take(&*store, &name, "a", short()).await.fence);
        pass(short()).await;
        store.sweep(1000).await.unwrap();
    }
    assert_grow(&fences);
}

pub async fn fences_grow_across_force_release(store: Arc<dyn LockStore>) {
    let name = fresh_name("force");
    let mut fences = Vec::new();
    for _ in 0..5 {
        fences.push(take(&*store, &name, "a", long()).await.fence);
        force_release(&*store, &name, None).await.unwrap();
    }
    assert_grow(&fences);
}

pub async fn fences_grow_with_a_hand_over(store: Arc<dyn LockStore>) {
    let name = fresh_name("hand-over");
    let mut lease = take(&*store, &name, "a", long()).await;
    let mut fences = vec![lease.fence];
    for round in 0..5 {
        let wake = wait(&*store, &name, request(&format!("w{round}"), long())).await;
        release(&*store, &lease).await.unwrap();
        lease = granted(wake).await;
        fences.push(lease.fence);
    }
    assert_grow(&fences);
}

pub async fn extend_keeps_the_fence(store: Arc<dyn LockStore>) {
    let name = fresh_name("extend");
    let lease = take(&*store, &name, "a", long()).await;
    let extended = extend_as(&*store, &name, "a", None, long()).await.unwrap();
    assert_eq!(extended.fence, lease.fence);
}
