//! The service over a store that fails: no lease is held that its caller does not know of, and every lease ends.

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
    /// How many seconds the answers to acquires and inspections take to arrive.
    lag: AtomicU64,
    /// Whether sweeps never return.
    sweeps_hang: AtomicBool,
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
        if self.sweeps_hang.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        // In these tests, only alarms wake waiters.
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

/// A request of another owner, with a wait of this many seconds.
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
async fn a_grant_that_arrives_after_its_lease_has_expired_is_an_error() {
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

/// Little is left of the lease, but its ttl is long, so this is not the exception for leases that are too short to arrive in time.
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

/// The lease is ended before the grant has arrived, so there is no guard yet.
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

/// The process ends while no request reaches the store.
#[tokio::test(start_paused = true)]
async fn a_release_that_failed_is_rolled_back_before_the_process_ends() {
    let (store, service) = connect();
    let guard = take(&service, 3600).await;
    store.lost_requests.store(usize::MAX, Ordering::SeqCst);
    assert!(matches!(guard.release().await, ReleaseOutcome::Pending(_)));
    service.shut_down().await;
    assert_eq!(store.store.held(), 0);
}

/// The store is only needed for the hint when to retry.
#[tokio::test(start_paused = true)]
async fn a_wait_times_out_even_if_the_store_hangs() {
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
    // The store is available again, but a lost lease stays lost.
    store.lost_requests.store(0, Ordering::SeqCst);
    sleep(Duration::from_secs(5)).await;
    assert!(loss.is_lost());
    assert_eq!(service.stats().count(EventKind::Lost), 1);
}

#[tokio::test(start_paused = true)]
async fn an_alarm_that_could_not_reach_the_store_fires_again() {
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
async fn an_alarm_fires_while_a_sweep_hangs() {
    let (store, service) = connect();
    store.sweeps_hang.store(true, Ordering::SeqCst);
    take(&service, 5).await.keep();
    let outcome = service.acquire(patient(60)).await;
    assert!(matches!(outcome, Ok(AcquireOutcome::Granted(_))));
}
