//! The service over a store that fails: nothing is held that nobody knows of, and what was held gets free.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use forrst_lock::model::{Command, Outcome};
use forrst_lock::{
    AcquireOutcome, AcquireRequest, Answer, Attempt, Capabilities, Config, EventKind, LeaseGuard,
    ListError, ListRequest, LockError, LockKey, LockName, LockService, LockStatus, LockStore,
    Locks, Node, Owner, Page, ReleaseOutcome, StoreError, Ticket, Ttl, Waiter,
};
use forrst_stores::MemoryStore;
use tokio::time::{Instant, sleep};

/// The memory store behind a bad connection: the next calls fail, before or after they took effect.
#[derive(Debug, Default)]
struct BadConnection {
    store: MemoryStore,
    lost_requests: AtomicUsize,
    lost_answers: AtomicUsize,
    /// How long grants, and what is known about a lock, are on their way, in seconds.
    lag: AtomicU64,
    /// Whoever sweeps never hears of it.
    is_stuck: AtomicBool,
}

impl BadConnection {
    fn request(&self) -> Result<(), StoreError> {
        match take_one(&self.lost_requests) {
            true => Err(StoreError::NotDone("the request was lost".into())),
            false => Ok(()),
        }
    }

    async fn lag(&self) {
        sleep(Duration::from_secs(self.lag.load(Ordering::SeqCst))).await;
    }

    fn answer<T>(&self, answer: T) -> Result<T, StoreError> {
        match take_one(&self.lost_answers) {
            true => Err(StoreError::MaybeDone("the answer was lost".into())),
            false => Ok(answer),
        }
    }
}

fn take_one(count: &AtomicUsize) -> bool {
    let less = |count: usize| count.checked_sub(1);
    count
        .fetch_update(Ordering::SeqCst, Ordering::SeqCst, less)
        .is_ok()
}

#[async_trait]
impl LockStore for BadConnection {
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    fn secret(&self) -> forrst_lock::Secret {
        self.store.secret()
    }

    fn subscribe(&self, node: Weak<dyn Node>) {
        self.store.subscribe(node);
    }

    async fn submit(&self, command: Command) -> Result<Answer<Outcome>, StoreError> {
        let is_forced = matches!(command, Command::ForceRelease { .. });
        let is_acquire = matches!(command, Command::Acquire(_));
        let is_settle = matches!(command, Command::Settle(_));
        if !is_forced {
            self.request()?;
        }
        let answer = self.store.submit(command).await?;
        if is_acquire {
            self.lag().await;
        }
        if is_forced || is_settle {
            return Ok(answer);
        }
        self.answer(answer)
    }

    fn abandon(&self, name: &LockName, ticket: Ticket) {
        self.store.abandon(name, ticket);
    }

    async fn inspect(&self, name: &LockName) -> Result<Answer<LockStatus>, StoreError> {
        self.lag().await;
        self.store.inspect(name).await
    }

    async fn queue(
        &self,
        name: &LockName,
        limit: usize,
    ) -> Result<Answer<Vec<Waiter>>, StoreError> {
        self.store.queue(name, limit).await
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, ListError> {
        self.store.list(request).await
    }

    async fn sweep(&self, _: usize) -> Result<usize, StoreError> {
        if self.is_stuck.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        // Only the alarms are to wake waiters here.
        Ok(0)
    }

    async fn health(&self) -> Result<(), StoreError> {
        self.store.health().await
    }
}

fn connect() -> (Arc<BadConnection>, LockService) {
    let store = Arc::new(BadConnection::default());
    let service = LockService::new(store.clone(), Config::default());
    (store, service)
}

fn request(owner: &str, seconds: u64) -> AcquireRequest {
    AcquireRequest {
        locks: Locks::exclusive(name()),
        note: None,
        owner: Owner::parse(owner).unwrap(),
        caller: None,
        ttl: ttl(seconds),
        wait: None,
        attempt: None,
    }
}

/// Somebody else's, who waits for so many seconds.
fn patient(seconds: u64) -> AcquireRequest {
    AcquireRequest {
        wait: Some(Duration::from_secs(seconds)),
        ..request("b", 5)
    }
}

fn name() -> LockName {
    LockName::global(&LockKey::parse("orders").unwrap())
}

fn ttl(seconds: u64) -> Ttl {
    Ttl::new(Duration::from_secs(seconds)).unwrap()
}

async fn take(service: &LockService, seconds: u64) -> LeaseGuard {
    match service.acquire(request("a", seconds)).await {
        Ok(AcquireOutcome::Granted(guard)) => guard,
        other => panic!("should be free: {other:?}"),
    }
}

async fn is_held(service: &LockService) -> bool {
    service.inspect(&name()).await.unwrap().0.holder().is_some()
}

#[tokio::test(start_paused = true)]
async fn an_acquire_whose_request_or_answer_was_lost_leaves_nothing_held() {
    let (store, service) = connect();
    for failing in [&store.lost_requests, &store.lost_answers] {
        failing.store(1, Ordering::SeqCst);
        let failed = service.acquire(request("a", 3600)).await;
        assert!(matches!(failed, Err(LockError::Store(_))), "{failed:?}");
        assert!(!is_held(&service).await);
    }
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_comes_when_its_lease_is_over_is_none() {
    let (store, service) = connect();
    store.lag.store(6, Ordering::SeqCst);
    let late = service.acquire(request("a", 5)).await;
    assert!(matches!(late, Err(LockError::Store(_))), "{late:?}");
    let in_time = service.acquire(request("a", 7)).await;
    assert!(matches!(in_time, Ok(AcquireOutcome::Granted(_))));
    let count = |kind| service.stats().count(kind);
    assert_eq!(count(EventKind::AcquireFailed), 1);
    assert_eq!(count(EventKind::Acquired), 2, "the store granted both");
}

/// What was left of the lease is short, but its ttl is not: nobody asked for a lease that is over when it is granted.
#[tokio::test(start_paused = true)]
async fn a_repeated_attempt_that_is_answered_late_is_not_granted() {
    let (store, service) = connect();
    let attempt = AcquireRequest {
        attempt: Some(Attempt::parse("1").unwrap()),
        ..request("a", 10)
    };
    match service.acquire(attempt.clone()).await {
        Ok(AcquireOutcome::Granted(guard)) => drop(guard.keep()),
        other => panic!("{other:?}"),
    }
    sleep(Duration::from_millis(9_950)).await;
    store.lag.store(1, Ordering::SeqCst);
    let late = service.acquire(attempt).await;
    assert!(matches!(late, Err(LockError::Store(_))), "{late:?}");
}

/// The grant is on its way when the lease is ended, so its guard is not there yet.
#[tokio::test(start_paused = true)]
async fn a_lease_that_was_ended_before_its_grant_arrived_is_lost_from_the_start() {
    let (store, service) = connect();
    store.lag.store(5, Ordering::SeqCst);
    let (guard, ()) = tokio::join!(take(&service, 3600), async {
        sleep(Duration::from_secs(1)).await;
        service.force_release(&name(), None).await.unwrap().unwrap();
    });
    assert!(guard.loss().is_lost());
}

/// As [`BadConnection`], a process ends while its store is away.
#[tokio::test(start_paused = true)]
async fn a_release_that_failed_is_rolled_back_before_the_process_ends() {
    let (store, service) = connect();
    let guard = take(&service, 3600).await;
    store.lost_requests.store(usize::MAX, Ordering::SeqCst);
    assert!(matches!(guard.release().await, ReleaseOutcome::Pending(_)));
    service.shut_down().await;
    assert_eq!(store.store.held(), 0);
}

/// When to ask again is only a hint.
#[tokio::test(start_paused = true)]
async fn whose_time_is_over_hears_it_also_from_a_store_that_hangs() {
    let (store, service) = connect();
    take(&service, 3600).await.keep();
    let start = Instant::now();
    let (outcome, ()) = tokio::join!(service.acquire(patient(5)), async {
        sleep(Duration::from_secs(1)).await;
        store.lag.store(60, Ordering::SeqCst);
    });
    assert!(matches!(outcome, Ok(AcquireOutcome::TimedOut { .. })));
    assert!(start.elapsed() < Duration::from_secs(6));
}

#[tokio::test(start_paused = true)]
async fn a_release_that_failed_is_tried_again_in_the_background() {
    let (store, service) = connect();
    let guard = take(&service, 3600).await;
    store.lost_requests.store(3, Ordering::SeqCst);
    assert!(matches!(guard.release().await, ReleaseOutcome::Pending(_)));
    assert!(is_held(&service).await);
    sleep(Duration::from_secs(2)).await;
    assert!(!is_held(&service).await);
    assert_eq!(service.stats().count(EventKind::ReleaseFailed), 1);
    assert_eq!(service.stats().count(EventKind::Released), 1);
}

#[tokio::test(start_paused = true)]
async fn a_release_is_not_tried_for_longer_than_the_lease_lasts() {
    let (store, service) = connect();
    let guard = take(&service, 5).await;
    store.lost_requests.store(usize::MAX, Ordering::SeqCst);
    assert!(matches!(guard.release().await, ReleaseOutcome::Pending(_)));
    sleep(Duration::from_secs(10)).await;
    let left = store.lost_requests.load(Ordering::SeqCst);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(store.lost_requests.load(Ordering::SeqCst), left);
}

#[tokio::test(start_paused = true)]
async fn renewal_survives_failures_that_are_shorter_than_the_lease() {
    let (store, service) = connect();
    let mut guard = take(&service, 12).await;
    guard.renew(ttl(12));
    let loss = guard.loss();
    for _ in 0..5 {
        store.lost_requests.store(2, Ordering::SeqCst);
        store.lost_answers.store(2, Ordering::SeqCst);
        sleep(Duration::from_secs(12)).await;
        assert!(!loss.is_lost());
    }
    assert!(matches!(guard.release().await, ReleaseOutcome::Released));
}

#[tokio::test(start_paused = true)]
async fn renewal_that_cannot_reach_the_store_is_loss_at_the_end_of_the_lease() {
    let (store, service) = connect();
    let mut guard = take(&service, 12).await;
    let start = Instant::now();
    guard.renew(ttl(12));
    store.lost_requests.store(usize::MAX, Ordering::SeqCst);
    let loss = guard.loss();
    loss.lost().await;
    assert!(start.elapsed() > Duration::from_secs(11));
    assert!(start.elapsed() <= Duration::from_secs(12));
    // The store is back, but what was lost stays lost.
    store.lost_requests.store(0, Ordering::SeqCst);
    sleep(Duration::from_secs(5)).await;
    assert!(loss.is_lost());
    assert_eq!(service.stats().count(EventKind::Lost), 1);
}

#[tokio::test(start_paused = true)]
async fn an_alarm_that_could_not_reach_the_store_rings_again() {
    let (store, service) = connect();
    take(&service, 5).await.keep();
    let start = Instant::now();
    let (outcome, ()) = tokio::join!(service.acquire(patient(60)), async {
        sleep(Duration::from_secs(1)).await;
        store.lost_requests.store(3, Ordering::SeqCst);
    });
    assert!(matches!(outcome, Ok(AcquireOutcome::Granted(_))));
    assert!(start.elapsed() < Duration::from_secs(7));
}

#[tokio::test(start_paused = true)]
async fn an_alarm_rings_while_a_sweep_takes_for_ever() {
    let (store, service) = connect();
    store.is_stuck.store(true, Ordering::SeqCst);
    take(&service, 5).await.keep();
    let outcome = service.acquire(patient(60)).await;
    assert!(matches!(outcome, Ok(AcquireOutcome::Granted(_))));
}
