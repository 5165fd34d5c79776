//! Servers that share a Redis, and callers that take locks from them.

use std::io;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forrst_testkit::{Answer, Lock, Node, Running, Serve, Shown, until, until_for};
use serde_json::Value;

pub(crate) const FORRST: &str = env!("CARGO_BIN_EXE_forrst");

pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const MINUTE: Duration = Duration::from_secs(60);
pub(crate) const HOUR: Duration = Duration::from_secs(3600);

/// How long a server waits for Redis in these tests.
pub(crate) const STORE_TIMEOUT: Duration = SECOND;
/// Additional time for a busy machine. Less than the minute for which callers wait.
pub(crate) const MARGIN: Duration = Duration::from_secs(20);
/// How long the servers may take to recover after a fault.
pub(crate) const RECOVERY: Duration = Duration::from_secs(40);

/// A server with this store.
pub(crate) fn node(store: &str) -> Node {
    node_with(store, &[])
}

pub(crate) fn node_with(store: &str, arguments: &[&str]) -> Node {
    let ours = ["--demo", "--store", store, "--store-timeout", "1s"];
    Serve::new(FORRST, &[&ours, arguments].concat()).node()
}

/// Acquires the lock, which has to be free.
#[track_caller]
pub(crate) fn take(node: &Running, lock: &Lock, owner: &str, ttl: Duration) -> Shown {
    let answer = node.ask(&lock.acquire(owner, ttl));
    let granted = answer.granted();
    granted.unwrap_or_else(|| panic!("{owner} does not get {}: {answer:?}", lock.key))
}

#[track_caller]
pub(crate) fn give_back(node: &Running, lock: &Lock, lease: &Shown) {
    let answer = node.ask(&lock.release(&lease.owner, lease.fence));
    assert_eq!(answer.status, 200, "{answer:?}");
}

/// Waits until a lock is free, for `limit` at most.
#[track_caller]
pub(crate) fn until_free(node: &Running, lock: &Lock, limit: Duration) {
    until_for(limit, "the lock is free", || {
        let answer = node.ask(&lock.status());
        answer.body["result"]["locked"] == false
    });
}

/// Waits until a server can grant locks again.
#[track_caller]
pub(crate) fn until_serving(node: &Running) {
    let lock = Lock::global("is it back?");
    let request = lock.locked_call("asks", SECOND, true);
    until_for(RECOVERY, "it serves again", || {
        node.ask(&request).status == 200
    });
}

/// Checks that a request that needs Redis gets UNAVAILABLE in time.
#[track_caller]
pub(crate) fn assert_unavailable(node: &Running, request: &Value) {
    let since = Instant::now();
    let answer = node.ask(request);
    assert_eq!(answer.code(), Some("UNAVAILABLE"), "{answer:?}");
    let elapsed = since.elapsed();
    assert!(elapsed < STORE_TIMEOUT + MARGIN, "after {elapsed:?}");
}

/// A call that waits for a lock.
pub(crate) struct Waiter {
    call: JoinHandle<io::Result<Answer>>,
}

impl Waiter {
    /// Waits for a minute. Returns when the call is in the queue and its server knows it: Redis has answered it once more.
    #[track_caller]
    pub(crate) fn start(node: &Running, lock: &Lock, owner: &str, ttl: Duration) -> Self {
        let call = node.start_ask(lock.acquire_within(owner, ttl, MINUTE));
        until("it waits, or is answered", || {
            call.is_finished() || node.ask(&lock.waiters()).waiting().contains(&owner)
        });
        Self { call }
    }

    pub(crate) fn is_waiting(&self) -> bool {
        !self.call.is_finished()
    }

    /// The lease that it gets within `limit`.
    #[track_caller]
    pub(crate) fn granted_within(self, limit: Duration) -> Shown {
        until_for(limit, "the waiter is answered", || self.call.is_finished());
        let answer = self.answer().unwrap();
        let granted = answer.granted();
        granted.unwrap_or_else(|| panic!("not granted: {answer:?}"))
    }

    #[track_caller]
    pub(crate) fn answer(self) -> io::Result<Answer> {
        until("the waiter is answered", || self.call.is_finished());
        self.call.join().unwrap()
    }
}
