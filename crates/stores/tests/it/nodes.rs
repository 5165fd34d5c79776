//! Two nodes: stores with calls that wait, or services over them.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use forrst_lock::model::{Acquire, Acquired, Transition, Wait, Wake};
use forrst_lock::{
    AcquireOutcome, AcquireRequest, Config, Lease, LeaseGuard, LockError, LockService, LockStore,
    Locks, Node, Owner, Reading, Ticket, Timestamp, Ttl,
};
use tokio::sync::oneshot::{Receiver, Sender, channel};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::calls::{PATIENCE, acquire, call, granted, name, release, until};

pub(crate) fn service(store: &Arc<impl LockStore>) -> LockService {
    LockService::new(store.clone(), Config::default())
}

pub(crate) fn ttl(seconds: u64) -> Ttl {
    Ttl::new(Duration::from_secs(seconds)).unwrap()
}

pub(crate) const HOUR: u64 = 3600;

/// For an exclusive lock, without a wait.
pub(crate) fn request(key: &str, owner: &str, seconds: u64) -> AcquireRequest {
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

pub(crate) async fn guard(service: &LockService, request: AcquireRequest) -> LeaseGuard {
    match service.acquire(request).await {
        Ok(AcquireOutcome::Granted(guard)) => guard,
        other => panic!("should be free: {other:?}"),
    }
}

/// A call of a service that waits in a task of its own.
pub(crate) type WaitingTask = JoinHandle<Result<AcquireOutcome, LockError>>;

/// Returns when it is in the queue of its first key.
pub(crate) async fn join_queue(service: &LockService, request: AcquireRequest) -> WaitingTask {
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

pub(crate) async fn guard_of(task: WaitingTask) -> LeaseGuard {
    let outcome = timeout(PATIENCE, task).await.expect("an outcome in time");
    match outcome.unwrap() {
        Ok(AcquireOutcome::Granted(guard)) => guard,
        other => panic!("should have been granted: {other:?}"),
    }
}

/// Calls that wait at a store, without a service that settles keys or sweeps.
#[derive(Debug, Default)]
pub(crate) struct Calls {
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
pub(crate) struct WaitingNode {
    pub(crate) store: Arc<dyn LockStore>,
    calls: Arc<Calls>,
}

pub(crate) type Woken = Receiver<(Wake, Reading)>;

impl WaitingNode {
    pub(crate) fn new(store: Arc<dyn LockStore>) -> Self {
        let calls: Arc<Calls> = Arc::default();
        let weak: Weak<Calls> = Arc::downgrade(&calls);
        store.subscribe(weak);
        Self { store, calls }
    }

    /// Joins the queue.
    pub(crate) async fn wait(&self, call: Acquire) -> Woken {
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
pub(crate) async fn wait_in_turn(nodes: &[WaitingNode; 2], key: &str, count: usize) -> Vec<Woken> {
    let mut waiting = Vec::new();
    for number in 0..count {
        let mut call = call(key, &number.to_string());
        call.claim.ttl = ttl(60);
        waiting.push(nodes[number % 2].wait(call).await);
    }
    waiting
}

/// Whether none has been woken.
pub(crate) fn all_wait(waiting: &mut [Woken]) -> bool {
    waiting.iter_mut().all(|woken| woken.try_recv().is_err())
}

/// Releases the lock again and again: it has to be handed over in the order of arrival. Returns what each call was woken with.
pub(crate) async fn are_served_in_turn(
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
