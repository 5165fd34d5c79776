//! Many concurrent calls, some through the service as a server uses it (properties S1, L2).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;

use super::{acquire, exclusive, fresh_name, held_by, long, request, ttl};
use crate::model::Acquired;
use crate::store::LockStore;
use crate::{AcquireOutcome, AcquireRequest, Config, LeaseGuard, LockName, LockService, Owner};

pub async fn one_of_many_concurrent_calls_wins(store: Arc<dyn LockStore>) {
    for _ in 0..10 {
        let name = fresh_name("race");
        let mut tasks = JoinSet::new();
        for index in 0..32 {
            let (store, name) = (store.clone(), name.clone());
            tasks.spawn(async move {
                let acquired =
                    acquire(&*store, &name, request(&format!("racer {index}"), long())).await;
                matches!(acquired, Acquired::Granted(_))
            });
        }
        let outcomes = tasks.join_all().await;
        assert_eq!(outcomes.iter().filter(|won| **won).count(), 1);
    }
}

/// Between read and write another task may run, so only the lock prevents lost updates.
pub async fn a_guarded_counter_loses_no_update(store: Arc<dyn LockStore>) {
    let service = LockService::new(store, Config::default());
    let name = fresh_name("counter");
    let counter = Arc::new(AtomicU64::new(0));
    let last_fence = Arc::new(AtomicU64::new(0));
    let (tasks, rounds) = (16, 20);
    let mut set = JoinSet::new();
    for _ in 0..tasks {
        let (service, name) = (service.clone(), name.clone());
        let (counter, last_fence) = (counter.clone(), last_fence.clone());
        set.spawn(async move {
            for _ in 0..rounds {
                let guard = enter(&service, &name, Duration::from_secs(60)).await;
                let guard = guard.expect("no task holds it for so long");
                let fence = guard.lease().fence.number();
                assert!(last_fence.swap(fence, Ordering::Relaxed) < fence);
                let read = counter.load(Ordering::Relaxed);
                tokio::task::yield_now().await;
                counter.store(read + 1, Ordering::Relaxed);
                guard.release().await;
            }
        });
    }
    set.join_all().await;
    assert_eq!(counter.load(Ordering::Relaxed), tasks * rounds);
    assert_eq!(service.waiting(), 0);
}

/// Calls are dropped in the queue, at the moment of the grant, or while they hold the lock.
pub async fn dropped_calls_leave_no_lease_and_no_waiter(store: Arc<dyn LockStore>) {
    let service = LockService::new(store.clone(), Config::default());
    let name = fresh_name("dropped calls");
    let is_inside = Arc::new(AtomicBool::new(false));
    let mut set = JoinSet::new();
    for index in 0..24_u64 {
        let (service, name) = (service.clone(), name.clone());
        let is_inside = is_inside.clone();
        set.spawn(async move {
            for round in 0..10 {
                // Some time out early, some late, and most are granted the lock.
                let patience = Duration::from_micros(200 * ((index * 7 + round * 3) % 40));
                let visit = async {
                    let guard = enter(&service, &name, Duration::from_secs(60)).await;
                    let guard = guard.expect("no task holds it for so long");
                    let leave = Leave(&is_inside);
                    assert!(!is_inside.swap(true, Ordering::SeqCst), "two are inside");
                    tokio::task::yield_now().await;
                    drop(leave);
                    match round % 3 {
                        0 => drop(guard),
                        _ => drop(guard.release().await),
                    }
                };
                let _ = tokio::time::timeout(patience, visit).await;
            }
        });
    }
    set.join_all().await;
    // A rollback may take a round trip.
    for _ in 0..100 {
        if held_by(&*store, &name).await.is_none() && service.waiting() == 0 {
            return;
        }
        tokio::time::sleep(ttl(20).as_duration()).await;
    }
    panic!("a lease or a waiting call is left");
}

/// Clears the flag, even if the visit is cancelled.
struct Leave<'a>(&'a AtomicBool);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

async fn enter(service: &LockService, name: &LockName, wait: Duration) -> Option<LeaseGuard> {
    let request = AcquireRequest {
        locks: exclusive(name),
        owner: Owner::random(),
        caller: None,
        note: None,
        ttl: long(),
        wait: Some(wait),
        attempt: None,
    };
    match service.acquire(request).await.unwrap() {
        AcquireOutcome::Granted(guard) => Some(guard),
        _ => None,
    }
}
