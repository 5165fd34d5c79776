//! Two nodes: stores with calls that wait, or services over them.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use forrst_lock::model::{Acquire, Acquired, Transition, Wait, Wake};
use forrst_lock::{
    AcquireOutcome, AcquireRequest, Config, Lease, LeaseGuard, LockError, LockService, LockStore,
    Locks, Node, Owner, Reading, Ticket, Timestamp, Ttl,
};
use forrst_stores::{RedisOptions, RedisStore};
use forrst_testkit::RedisServer;
use tokio::sync::oneshot::{Receiver, Sender, channel};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::redis_faults::fixture::{PATIENCE, acquire, call, granted, name, release, until};

pub(super) async fn open_at(url: &str) -> Arc<RedisStore> {
    let store = RedisStore::open(url, &RedisOptions::default()).await;
    Arc::new(store.unwrap())
}

pub(super) fn service(store: &Arc<RedisStore>) -> LockService {
    LockService::new(store.clone(), Config::default())
}

pub(super) async fn two_services(redis: &RedisServer) -> [LockService; 2] {
    let (one, other) = (open_at(&redis.url()).await, open_at(&redis.url()).await);
    [service(&one), service(&other)]
}

pub(super) fn ttl(seconds: u64) -> Ttl {
    Ttl::new(Duration::from_secs(seconds)).unwrap()
}

pub(super) const HOUR: u64 = 3600;

/// For an exclusive lock, without a wait.
pub(super) fn request(key: &str, owner: &str, seconds: u64) -> AcquireRequest {
    AcquireRequest {
        locks: Locks::exclusive(name(key)),
        owner: Owner::parse(owner).unwrap(),
        caller: None,
        note: None,
        ttl: ttl(seconds),
        wait: None,
        attempt: None,
    }
}

pub(super) async fn guard(service: &LockService, request: AcquireRequest) -> LeaseGuard {
    match service.acquire(request).await {
        Ok(AcquireOutcome::Granted(guard)) => guard,
        other => panic!("should be free: {other:?}"),
    }
}

/// A call of a service that waits in a task of its own.
pub(super) type WaitingTask = JoinHandle<Result<AcquireOutcome, LockError>>;

/// Returns when it is in the queue of its first key.
pub(super) async fn join_queue(service: &LockService, request: AcquireRequest) -> WaitingTask {
    let key = request.locks.first().clone();
    let waiters = async || service.inspect(&key).await.unwrap().0.waiters;
    let before = waiters().await;
    let request = AcquireRequest {
        wait: Some(PATIENCE),
        ..request
    };
    let task = tokio::spawn({
        let service = service.clone();
        async move { service.acquire(request).await }
    });
    until("it waits", async || waiters().await == before + 1).await;
    task
}

pub(super) async fn guard_of(task: WaitingTask) -> LeaseGuard {
    let outcome = timeout(PATIENCE, task).await.expect("an outcome in time");
    match outcome.unwrap() {
        Ok(AcquireOutcome::Granted(guard)) => guard,
        other => panic!("should have been granted: {other:?}"),
    }
}

/// Calls that wait at a store, without a service that settles keys or sweeps.
#[derive(Debug, Default)]
pub(super) struct Calls {
    waiting: Mutex<HashMap<Ticket, Sender<(Wake, Reading)>>>,
}

impl Node for Calls {
    fn wake(&self, ticket: Ticket, wake: Wake, reading: Reading) -> bool {
        let waiting = self.waiting.lock().unwrap().remove(&ticket);
        waiting.is_some_and(|waiting| waiting.send((wake, reading)).is_ok())
    }

    fn changed(&self, _: &Transition, _: Timestamp) {}
}

/// A store and its waiting calls.
#[derive(Debug, Clone)]
pub(super) struct WaitingNode {
    pub(super) store: Arc<RedisStore>,
    calls: Arc<Calls>,
}

pub(super) type Woken = Receiver<(Wake, Reading)>;

impl WaitingNode {
    pub(super) fn new(store: Arc<RedisStore>) -> Self {
        let calls: Arc<Calls> = Arc::default();
        let weak: Weak<Calls> = Arc::downgrade(&calls);
        store.subscribe(weak);
        Self { store, calls }
    }

    pub(super) async fn two(url: &str) -> [Self; 2] {
        [Self::new(open_at(url).await), Self::new(open_at(url).await)]
    }

    /// Joins the queue.
    pub(super) async fn wait(&self, call: Acquire) -> Woken {
        let (sender, woken) = channel();
        let ticket = call.ticket;
        self.calls.waiting.lock().unwrap().insert(ticket, sender);
        let wait = Some(Wait {
            timeout: Duration::from_secs(60),
            max_queue: 10_000,
            rejoin: None,
        });
        let call = Acquire { wait, ..call };
        let outcome = acquire(&self.store, call).await.unwrap();
        assert!(matches!(outcome, Acquired::Queued { .. }), "{outcome:?}");
        woken
    }
}

/// Calls of both nodes in turn, whose owners are numbers.
pub(super) async fn wait_in_turn(nodes: &[WaitingNode; 2], key: &str, count: usize) -> Vec<Woken> {
    let mut waiting = Vec::new();
    for number in 0..count {
        let mut call = call(key, &number.to_string());
        call.claim.ttl = ttl(60);
        waiting.push(nodes[number % 2].wait(call).await);
    }
    waiting
}

/// Whether none has been woken.
pub(super) fn all_wait(waiting: &mut [Woken]) -> bool {
    waiting.iter_mut().all(|woken| woken.try_recv().is_err())
}

/// Releases the lock again and again: it has to be handed over in the order of arrival. Returns what each call was woken with.
pub(super) async fn are_served_in_turn(
    nodes: &[WaitingNode; 2],
    waiting: Vec<Woken>,
) -> Vec<(Lease, Reading)> {
    let mut waiting = VecDeque::from(waiting);
    let mut served = Vec::new();
    while let Some(woken) = waiting.pop_front() {
        let number = served.len();
        let woken = timeout(PATIENCE, woken).await;
        let woken = woken.unwrap_or_else(|_| panic!("call {number} is woken in time"));
        let (wake, reading) = woken.unwrap();
        let lease = granted(&wake).clone();
        assert_eq!(lease.owner.as_str(), number.to_string());
        assert!(
            all_wait(waiting.make_contiguous()),
            "two hold it at {number}"
        );
        release(&nodes[number % 2].store, &lease).await;
        served.push((lease, reading));
    }
    served
}

/// How many commands of nodes Redis has run.
pub(super) fn commands(redis: &RedisServer) -> u64 {
    let stats = redis.cli(&["INFO", "commandstats"]);
    let sent = ["fcall", "fcall_ro", "publish"];
    sent.iter()
        .filter_map(|command| {
            let start = format!("cmdstat_{command}:calls=");
            let line = stats.lines().find_map(|line| line.strip_prefix(&start))?;
            line.split(',').next()?.parse::<u64>().ok()
        })
        .sum()
}
