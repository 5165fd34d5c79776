//! The service over the memory store: waiting, loss, renewal, limits and events, on tokio's paused clock.

use std::sync::Arc;
use std::time::Duration;

use forrst_lock::model::LeaseRef;
use forrst_lock::{
    AcquireOutcome, AcquireRequest, Attempt, Config, Event, EventKind, Fence, KeyStyle, LeaseGuard,
    LockError, LockKey, LockName, LockService, LockStore, Locks, NotHeld, Observation, Owner,
    ReleaseOutcome, Revision, Ttl,
};
use forrst_stores::MemoryStore;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

fn service() -> LockService {
    with_config(Config::default())
}

fn with_config(config: Config) -> LockService {
    LockService::new(Arc::new(MemoryStore::new()), config)
}

fn name() -> LockName {
    LockName::global(&LockKey::parse("orders").unwrap())
}

fn ttl(seconds: u64) -> Ttl {
    Ttl::new(Duration::from_secs(seconds)).unwrap()
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn request(owner: &str, ttl_seconds: u64, wait_seconds: Option<u64>) -> AcquireRequest {
    AcquireRequest {
        locks: Locks::exclusive(name()),
        owner: Owner::parse(owner).unwrap(),
        caller: None,
        note: None,
        ttl: ttl(ttl_seconds),
        wait: wait_seconds.map(Duration::from_secs),
        attempt: None,
    }
}

async fn take(service: &LockService, owner: &str, ttl_seconds: u64) -> LeaseGuard {
    match service.acquire(request(owner, ttl_seconds, None)).await {
        Ok(AcquireOutcome::Granted(guard)) => guard,
        other => panic!("should be free: {other:?}"),
    }
}

/// Starts to wait in a task of its own, and returns when it is in the queue.
async fn join_queue(
    service: &LockService,
    request: AcquireRequest,
) -> JoinHandle<Result<AcquireOutcome, LockError>> {
    let before = service.waiting();
    let task = tokio::spawn({
        let service = service.clone();
        async move { service.acquire(request).await }
    });
    while service.waiting() == before {
        tokio::task::yield_now().await;
    }
    task
}

async fn granted(task: JoinHandle<Result<AcquireOutcome, LockError>>) -> LeaseGuard {
    match task.await.unwrap() {
        Ok(AcquireOutcome::Granted(guard)) => guard,
        other => panic!("should have been granted: {other:?}"),
    }
}

fn lease_ref(owner: Owner, fence: Option<Fence>) -> LeaseRef {
    LeaseRef {
        name: name(),
        owner,
        fence,
    }
}

async fn holder(service: &LockService) -> Option<String> {
    let (status, _) = service.inspect(&name()).await.unwrap();
    status.holder().map(|lease| lease.owner.to_string())
}

#[tokio::test(start_paused = true)]
async fn a_held_lock_is_refused_at_once_with_a_hint() {
    let service = service();
    let start = Instant::now();
    let _held = take(&service, "a", 30).await;
    let refused = service.acquire(request("b", 30, None)).await.unwrap();
    let AcquireOutcome::Held { retry_after, .. } = refused else {
        panic!("{refused:?}");
    };
    assert!(retry_after >= Duration::from_millis(500) && retry_after <= seconds(1));
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn the_hint_is_never_later_than_the_holders_expiry() {
    let service = service();
    let short = AcquireRequest {
        ttl: Ttl::new(Duration::from_millis(3)).unwrap(),
        ..request("a", 1, None)
    };
    let _held = service.acquire(short).await.unwrap();
    for _ in 0..100 {
        let refused = service.acquire(request("b", 30, None)).await.unwrap();
        let AcquireOutcome::Held { retry_after, .. } = refused else {
            panic!("{refused:?}");
        };
        assert!(retry_after >= Duration::from_millis(1) && retry_after <= Duration::from_millis(3));
    }
}

#[tokio::test(start_paused = true)]
async fn waiting_ends_with_a_time_out_that_leaves_nothing_behind() {
    let service = service();
    let held = take(&service, "a", 30).await;
    let start = Instant::now();
    let late = service.acquire(request("b", 30, Some(5))).await.unwrap();
    assert!(matches!(late, AcquireOutcome::TimedOut { .. }), "{late:?}");
    assert_eq!(start.elapsed().as_secs(), 5);
    assert_eq!(service.waiting(), 0);
    assert!(matches!(held.release().await, ReleaseOutcome::Released));
    assert_eq!(holder(&service).await, None);
}

#[tokio::test(start_paused = true)]
async fn first_come_first_served_by_direct_hand_over() {
    let service = service();
    let mut guard = take(&service, "a", 30).await;
    let mut tasks = Vec::new();
    for owner in ["b", "c", "d"] {
        tasks.push((
            owner,
            join_queue(&service, request(owner, 30, Some(60))).await,
        ));
    }
    for (owner, task) in tasks {
        guard.release().await;
        assert_eq!(holder(&service).await.as_deref(), Some(owner), "at once");
        guard = granted(task).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_expiry_of_a_lease_wakes_the_next_waiter_on_time() {
    let service = service();
    let start = Instant::now();
    take(&service, "a", 10).await.keep();
    let first = join_queue(&service, request("b", 3, Some(60))).await;
    let second = join_queue(&service, request("c", 30, Some(60))).await;
    let guard = granted(first).await;
    assert_eq!(start.elapsed().as_secs(), 10);
    // The second is granted the lock when the first's own, shorter lease expires.
    guard.keep();
    granted(second).await;
    assert_eq!(start.elapsed().as_secs(), 13);
}

#[tokio::test(start_paused = true)]
async fn an_extended_lease_keeps_the_waiter_waiting() {
    let service = service();
    let start = Instant::now();
    let lease = take(&service, "a", 10).await.keep();
    let waiter = join_queue(&service, request("b", 30, Some(60))).await;
    sleep(seconds(5)).await;
    let extended = service
        .extend(lease_ref(lease.owner, Some(lease.fence)), ttl(20))
        .await;
    assert!(extended.unwrap().is_ok());
    granted(waiter).await;
    assert_eq!(start.elapsed().as_secs(), 25);
}

#[tokio::test(start_paused = true)]
async fn a_shortened_lease_wakes_the_waiter_at_its_new_end() {
    let service = service();
    let lease = take(&service, "a", 3600).await.keep();
    let waiter = join_queue(&service, request("b", 30, Some(60))).await;
    let start = Instant::now();
    let half = Ttl::new(Duration::from_millis(500)).unwrap();
    let extended = service.extend(lease_ref(lease.owner, None), half).await;
    assert!(extended.unwrap().is_ok());
    granted(waiter).await;
    assert!(start.elapsed() < Duration::from_millis(510));
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_its_caller_does_not_poll_still_expires_on_time() {
    let service = service();
    let held = take(&service, "a", 60).await;
    let mut ignored = Box::pin(service.acquire(request("b", 5, Some(60))));
    let in_queue = timeout(seconds(1), &mut ignored).await;
    assert!(in_queue.is_err());
    let waiter = join_queue(&service, request("c", 30, Some(60))).await;
    let start = Instant::now();
    held.release().await;
    granted(waiter).await;
    assert_eq!(start.elapsed().as_secs(), 5);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_waiter_leaves_the_queue_at_once() {
    let service = service();
    let held = take(&service, "a", 30).await;
    let quitter = join_queue(&service, request("b", 30, Some(60))).await;
    let next = join_queue(&service, request("c", 30, Some(60))).await;
    quitter.abort();
    assert!(quitter.await.unwrap_err().is_cancelled());
    assert_eq!(service.waiting(), 1);
    held.release().await;
    assert_eq!(granted(next).await.lease().owner.as_str(), "c");
}

#[tokio::test(start_paused = true)]
async fn a_waiter_dropped_in_the_moment_of_its_grant_leaves_no_lock_behind() {
    let service = service();
    let held = take(&service, "a", 3600).await;
    let mut waiting = Box::pin(service.acquire(request("b", 3600, Some(60))));
    assert!(timeout(seconds(1), &mut waiting).await.is_err());
    held.release().await;
    assert_eq!(holder(&service).await.as_deref(), Some("b"), "granted");
    drop(waiting);
    assert_eq!(holder(&service).await, None);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_guard_releases_the_lock() {
    let service = service();
    drop(take(&service, "a", 30).await);
    assert_eq!(holder(&service).await, None);
    assert_eq!(service.stats().count(EventKind::Abandoned), 1);
}

#[tokio::test(start_paused = true)]
async fn a_kept_lock_stays_until_its_expiry() {
    let service = service();
    let lease = take(&service, "a", 30).await.keep();
    sleep(seconds(29)).await;
    assert_eq!(holder(&service).await.as_deref(), Some("a"));
    let released = service
        .release(lease_ref(lease.owner, Some(lease.fence)))
        .await;
    assert_eq!(released.unwrap().unwrap().fence, lease.fence);
}

#[tokio::test(start_paused = true)]
async fn loss_is_noticed_at_the_end_of_the_lease_and_not_later() {
    let service = service();
    let guard = take(&service, "a", 10).await;
    let loss = guard.loss();
    let start = Instant::now();
    assert!(!loss.is_lost());
    loss.lost().await;
    assert!(loss.is_lost());
    assert!(start.elapsed() <= seconds(10));
    let outcome = guard.release().await;
    assert!(matches!(
        outcome,
        ReleaseOutcome::Lost(NotHeld::NotFound) | ReleaseOutcome::Released
    ));
}

#[tokio::test(start_paused = true)]
async fn a_waiters_loss_counts_from_its_grant() {
    let service = service();
    let held = take(&service, "a", 100).await;
    let waiter = join_queue(&service, request("b", 10, Some(60))).await;
    sleep(seconds(30)).await;
    held.release().await;
    let guard = granted(waiter).await;
    let loss = guard.loss();
    let start = Instant::now();
    loss.lost().await;
    assert!(start.elapsed() > seconds(9) && start.elapsed() <= seconds(10));
}

#[tokio::test(start_paused = true)]
async fn renewal_keeps_the_lock_until_it_is_released() {
    let service = service();
    let mut guard = take(&service, "a", 10).await;
    guard.renew(ttl(10));
    let loss = guard.loss();
    assert!(timeout(seconds(120), loss.lost()).await.is_err());
    assert_eq!(holder(&service).await.as_deref(), Some("a"));
    let (status, now) = service.inspect(&name()).await.unwrap();
    assert_eq!(
        guard.lease().expires_at,
        status.holder().unwrap().expires_at
    );
    assert!(guard.lease().is_live(now));
    assert!(matches!(guard.release().await, ReleaseOutcome::Released));

    // Renewal does not outlive the release.
    let _successor = take(&service, "b", 5).await.keep();
    sleep(seconds(5)).await;
    assert_eq!(holder(&service).await, None);
    assert!(timeout(seconds(60), loss.lost()).await.is_err());
    assert!(!loss.is_lost());
}

#[tokio::test(start_paused = true)]
async fn renewal_notices_that_the_lock_was_taken_away() {
    let service = service();
    let mut guard = take(&service, "a", 30).await;
    guard.renew(ttl(30));
    service.force_release(&name(), None).await.unwrap().unwrap();
    let successor = take(&service, "b", 300).await;
    let start = Instant::now();
    guard.loss().lost().await;
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert!(matches!(
        guard.release().await,
        ReleaseOutcome::Lost(NotHeld::AlreadyReleased { forced: true })
    ));
    assert_eq!(holder(&service).await.as_deref(), Some("b"));
    successor.release().await;
}

/// The ttl of a lease whose function can notice a loss in time only if it is notified.
const DAY: u64 = 86_400;

/// Ends a lease that is not renewed. Returns how long its guard took to notice.
async fn ended_by(
    end: impl AsyncFnOnce(&LockService, &LeaseGuard),
) -> (LockService, LeaseGuard, Duration) {
    let service = service();
    let guard = take(&service, "a", DAY).await;
    let loss = guard.loss();
    let waiting = tokio::spawn(async move { loss.lost().await });
    tokio::task::yield_now().await;
    let start = Instant::now();
    end(&service, &guard).await;
    waiting.await.unwrap();
    let after = start.elapsed();
    assert!(guard.loss().is_lost());
    assert_eq!(guard.loss().remaining(), Duration::ZERO);
    assert_eq!(service.stats().count(EventKind::Lost), 1);
    (service, guard, after)
}

#[tokio::test(start_paused = true)]
async fn a_forced_release_notifies_the_function_at_once() {
    let (service, guard, after) = ended_by(async |service, guard| {
        let fence = Some(guard.lease().fence);
        service
            .force_release(&name(), fence)
            .await
            .unwrap()
            .unwrap();
    })
    .await;
    assert_eq!(after, Duration::ZERO);
    let loss = guard.loss();
    assert!(matches!(
        guard.release().await,
        ReleaseOutcome::Lost(NotHeld::AlreadyReleased { forced: true })
    ));
    assert!(loss.is_lost(), "also when the guard is gone");
    assert_eq!(service.stats().count(EventKind::Lost), 1);
}

#[tokio::test(start_paused = true)]
async fn a_release_by_token_notifies_the_function_at_once() {
    let (_, guard, after) = ended_by(async |service, guard| {
        let released = service.release(lease_ref(guard.lease().owner, None)).await;
        released.unwrap().unwrap();
    })
    .await;
    assert_eq!(after, Duration::ZERO);
    let loss = guard.loss();
    drop(guard);
    assert!(loss.is_lost(), "also when the guard is gone");
    loss.lost().await;
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_shortened_by_token_is_lost_at_its_new_end() {
    let service = service();
    let guard = take(&service, "a", DAY).await;
    let loss = guard.loss();
    let start = Instant::now();
    let waiting = tokio::spawn(async move { loss.lost().await });
    tokio::task::yield_now().await;
    let owner = guard.lease().owner;
    let shorter = service.extend(lease_ref(owner, None), ttl(10)).await;
    let shorter = shorter.unwrap().unwrap();
    assert_eq!(guard.lease(), shorter);
    waiting.await.unwrap();
    assert!(start.elapsed() > seconds(9) && start.elapsed() <= seconds(10));
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_extended_by_token_is_held_for_longer() {
    let service = service();
    let guard = take(&service, "a", 10).await;
    let loss = guard.loss();
    sleep(seconds(5)).await;
    let owner = guard.lease().owner;
    let longer = service.extend(lease_ref(owner, None), ttl(60)).await;
    longer.unwrap().unwrap();
    assert!(timeout(seconds(50), loss.lost()).await.is_err());
    assert!(matches!(guard.release().await, ReleaseOutcome::Released));
    assert!(timeout(seconds(600), loss.lost()).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn the_end_of_an_earlier_lease_is_not_a_loss_of_the_next() {
    let service = service();
    let guard = take(&service, "a", 30).await;
    service.force_release(&name(), None).await.unwrap().unwrap();
    let successor = take(&service, "a", 30).await;
    drop(guard);
    assert!(!successor.loss().is_lost());
    let stale = service.force_release(&name(), Fence::new(1)).await.unwrap();
    assert_eq!(stale, Err(NotHeld::OwnedByAnother));
    assert!(!successor.loss().is_lost());
}

#[tokio::test(start_paused = true)]
async fn a_guard_that_releases_notifies_the_others_of_its_lease() {
    let service = service();
    let attempt = AcquireRequest {
        attempt: Some(Attempt::parse("1").unwrap()),
        ..request("a", DAY, None)
    };
    let mut guards = Vec::new();
    for _ in 0..2 {
        match service.acquire(attempt.clone()).await.unwrap() {
            AcquireOutcome::Granted(guard) => guards.push(guard),
            other => panic!("{other:?}"),
        }
    }
    let [first, second] = guards.try_into().unwrap();
    assert_eq!(first.lease().fence, second.lease().fence);
    let released = first.loss();
    assert!(matches!(first.release().await, ReleaseOutcome::Released));
    assert!(second.loss().is_lost());
    assert!(!released.is_lost(), "it was released in time");
}

#[tokio::test(start_paused = true)]
async fn a_loss_by_the_clock_stays_known_after_the_guard_is_gone() {
    let service = service();
    for is_dropped in [true, false] {
        let guard = take(&service, "a", 10).await;
        let loss = guard.loss();
        loss.lost().await;
        if is_dropped {
            drop(guard);
        } else {
            guard.release().await;
        }
        assert!(loss.is_lost());
        loss.lost().await;
    }
}

#[tokio::test(start_paused = true)]
async fn waiters_are_limited_per_key_and_in_total() {
    let per_key = with_config(Config {
        max_waiters_per_key: 1,
        ..Config::default()
    });
    let in_total = with_config(Config {
        max_waiters: 1,
        ..Config::default()
    });
    for service in [per_key, in_total] {
        let held = take(&service, "a", 30).await;
        let waiter = join_queue(&service, request("b", 30, Some(60))).await;
        let refused = service.acquire(request("c", 30, Some(60))).await.unwrap();
        assert!(matches!(refused, AcquireOutcome::TooManyWaiters { .. }));
        held.release().await;
        granted(waiter).await.release().await;
        assert_eq!(service.waiting(), 0);
        take(&service, "c", 30).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_repeated_attempt_shares_the_position_and_the_lease_of_the_first() {
    let service = service();
    let held = take(&service, "a", 30).await;
    let attempt = AcquireRequest {
        attempt: Some(Attempt::parse("1").unwrap()),
        ..request("b", 30, Some(60))
    };
    let first = join_queue(&service, attempt.clone()).await;
    let behind = join_queue(&service, request("c", 30, Some(60))).await;
    let second = join_queue(&service, attempt.clone()).await;
    let third = join_queue(&service, attempt).await;
    third.abort();
    held.release().await;
    let (first, second) = (granted(first).await, granted(second).await);
    assert_eq!(first.lease(), second.lease());
    let loss = second.loss();
    first.release().await;
    assert!(loss.is_lost());
    granted(behind).await;
}

#[tokio::test(start_paused = true)]
async fn closing_fails_waiters_and_does_not_affect_holders() {
    let service = service();
    let held = take(&service, "a", 30).await;
    let waiter = join_queue(&service, request("b", 30, Some(60))).await;
    service.close();
    assert!(matches!(waiter.await.unwrap(), Err(LockError::Closed)));
    let late = service.acquire(request("c", 30, Some(60))).await;
    assert!(matches!(late, Err(LockError::Closed)));
    assert_eq!(service.waiting(), 0);
    assert_eq!(holder(&service).await.as_deref(), Some("a"));
    assert!(matches!(held.release().await, ReleaseOutcome::Released));
}

#[tokio::test(start_paused = true)]
async fn every_event_is_counted_and_published() {
    let service = with_config(Config {
        keys: KeyStyle::Plain,
        ..Config::default()
    });
    let mut events = service.events();

    let held = take(&service, "a", 30).await;
    let waiter = join_queue(&service, request("b", 30, Some(60))).await;
    sleep(seconds(2)).await;
    held.release().await;
    let kept = granted(waiter).await.keep();
    service.force_release(&name(), None).await.unwrap().unwrap();
    take(&service, "c", 1).await.keep();
    sleep(seconds(3)).await;
    let expired = service.release(lease_ref(kept.owner, None)).await.unwrap();
    assert!(expired.is_err());
    let _held = take(&service, "d", 30).await;
    let late = service.acquire(request("e", 30, Some(1))).await.unwrap();
    assert!(matches!(late, AcquireOutcome::TimedOut { .. }));

    let expected = [
        (EventKind::Acquired, None),
        (EventKind::Contended, None),
        (EventKind::Released, Some(2)),
        (EventKind::GrantedAfterWait, Some(2)),
        (EventKind::Forced, Some(0)),
        (EventKind::Acquired, None),
        (EventKind::Expired, Some(1)),
        (EventKind::ReleaseRefused, None),
        (EventKind::Acquired, None),
        (EventKind::Contended, None),
        (EventKind::TimedOut, Some(1)),
    ];
    for (kind, after) in expected {
        let event: Event = events.next().await.unwrap();
        assert_eq!(event.kind, kind);
        assert_eq!(event.key, "lock:orders");
        assert_eq!(event.after.map(|after| after.as_secs()), after, "{kind:?}");
    }
    assert_eq!(service.stats().count(EventKind::Acquired), 3);
    assert_eq!(service.stats().count(EventKind::Expired), 1);
}

#[tokio::test(start_paused = true)]
async fn expired_leases_are_swept_without_a_request_for_them() {
    let store = Arc::new(MemoryStore::new());
    let service = LockService::new(store.clone(), Config::default());
    for index in 0..2_500 {
        let key = LockKey::parse(&format!("key {index}")).unwrap();
        let request = AcquireRequest {
            locks: Locks::exclusive(LockName::global(&key)),
            ..request("a", 5, None)
        };
        match service.acquire(request).await.unwrap() {
            AcquireOutcome::Granted(guard) => drop(guard.keep()),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(store.held(), 2_500);
    sleep(seconds(7)).await;
    assert_eq!(store.held(), 0);
    assert_eq!(service.stats().count(EventKind::Expired), 2_500);
    assert!(store.health().await.is_ok());
}

/// Half of them disconnect.
#[tokio::test(start_paused = true)]
async fn ten_thousand_waiters_of_one_key_are_served_in_order() {
    let service = service();
    let held = take(&service, "first", 3600).await;
    let mut tasks = Vec::new();
    for index in 0..10_000 {
        let waiting = request(&format!("{index}"), 3600, Some(3600));
        tasks.push(join_queue(&service, waiting).await);
    }
    for task in tasks.iter().skip(1).step_by(2) {
        task.abort();
    }
    held.release().await;
    for (index, task) in tasks.into_iter().enumerate() {
        if index % 2 == 0 {
            let guard = granted(task).await;
            assert_eq!(guard.lease().owner.as_str(), index.to_string());
            guard.release().await;
        }
    }
    assert_eq!(service.waiting(), 0);
    assert_eq!(holder(&service).await, None);
}

/// Watches `orders` from its present state on, in a task of its own, and returns when it waits for a change.
async fn start_watching(
    service: &LockService,
    wait: Duration,
) -> (Revision, JoinHandle<Result<Observation, LockError>>) {
    let first = service.watch(&name(), None, wait).await.unwrap();
    let since = first.revision;
    let service = service.clone();
    let watching = tokio::spawn(async move { service.watch(&name(), Some(since), wait).await });
    sleep(Duration::from_millis(10)).await;
    assert!(!watching.is_finished());
    (since, watching)
}

#[tokio::test(start_paused = true)]
async fn a_watcher_is_answered_as_soon_as_a_lease_begins_or_ends() {
    let service = service();
    let (free, watching) = start_watching(&service, seconds(60)).await;
    let start = Instant::now();
    let guard = take(&service, "a", 30).await;
    let held = watching.await.unwrap().unwrap();
    assert_eq!(held.status.holders[0].fence, guard.lease().fence);
    assert_ne!(held.revision, free);

    let (since, watching) = start_watching(&service, seconds(60)).await;
    assert_eq!(since, held.revision);
    service.force_release(&name(), []).await.unwrap().unwrap();
    let freed = watching.await.unwrap().unwrap();
    assert_eq!(freed.revision, free, "all free states are equal");
    assert!(start.elapsed() < seconds(1));
}

#[tokio::test(start_paused = true)]
async fn a_watcher_is_answered_when_a_lease_expires() {
    let service = service();
    take(&service, "a", 20).await.keep();
    let start = Instant::now();
    let (_, watching) = start_watching(&service, seconds(60)).await;
    let freed = watching.await.unwrap().unwrap();
    assert_eq!(freed.status.holder_count, 0);
    assert!(start.elapsed() >= seconds(20));
    assert!(start.elapsed() < Duration::from_millis(20_100));
}

#[tokio::test(start_paused = true)]
async fn extensions_and_waiters_do_not_wake_a_watcher() {
    let service = service();
    let mut guard = take(&service, "a", 20).await;
    let start = Instant::now();
    let (since, watching) = start_watching(&service, seconds(60)).await;
    let _waiting = join_queue(&service, request("b", 20, Some(300))).await;
    guard.renew(ttl(20));
    let last = watching.await.unwrap().unwrap();
    assert_eq!(last.revision, since);
    assert_eq!(
        last.status.waiters, 1,
        "the status is that of the end of the wait"
    );
    assert!(start.elapsed() >= seconds(60));
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_shortened_wakes_its_watchers_at_its_new_end() {
    let service = service();
    let guard = take(&service, "a", 3600).await;
    let (_, watching) = start_watching(&service, seconds(60)).await;
    let start = Instant::now();
    let lease = LeaseRef {
        name: name(),
        owner: Owner::parse("a").unwrap(),
        fence: Some(guard.keep().fence),
    };
    service.extend(lease, ttl(5)).await.unwrap().unwrap();
    let freed = watching.await.unwrap().unwrap();
    assert_eq!(freed.status.holder_count, 0);
    assert!(start.elapsed() >= seconds(5));
    assert!(start.elapsed() < Duration::from_millis(5_100));
}

#[tokio::test(start_paused = true)]
async fn watchers_that_are_dropped_leave_nothing_behind_and_the_rest_go_on() {
    let service = service();
    let (_, dropped) = start_watching(&service, seconds(60)).await;
    let (_, stays) = start_watching(&service, seconds(60)).await;
    dropped.abort();
    let guard = take(&service, "a", 30).await;
    assert_eq!(stays.await.unwrap().unwrap().status.holder_count, 1);
    drop(guard);
    let (_, closed) = start_watching(&service, seconds(60)).await;
    service.close();
    assert!(matches!(closed.await.unwrap(), Err(LockError::Closed)));
    assert!(
        !format!("{service:?}").contains("WatchedKey"),
        "{service:?}"
    );
}
