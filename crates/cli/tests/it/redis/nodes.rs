//! Servers that share a Redis, and those who ask them for locks.

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
/// What is added where a machine of two cores has much else to do.
pub(crate) const MARGIN: Duration = Duration::from_secs(4);
/// After a fault is over, everything is as before within this time.
pub(crate) const RECOVERY: Duration = Duration::from_secs(15);

/// A server with its locks there.
pub(crate) fn node(store: &str) -> Node {
    node_with(store, &[])
}

pub(crate) fn node_with(store: &str, arguments: &[&str]) -> Node {
    let ours = ["--demo", "--store", store, "--store-timeout", "1s"];
    Serve::new(FORRST, &[&ours, arguments].concat()).node()
}

/// Takes the lock, which has to be free.
#[track_caller]
pub(crate) fn take(node: &Running, lock: &Lock, owner: &str, ttl: Duration) -> Shown {
    let answer = node.ask(&lock.acquire(owner, ttl));
    let granted = answer.granted();
    granted.unwrap_or_else(|| panic!("{owner} gets {} not: {answer:?}", lock.key))
}

#[track_caller]
pub(crate) fn give_back(node: &Running, lock: &Lock, lease: &Shown) {
    let answer = node.ask(&lock.release(&lease.owner, lease.fence));
    assert_eq!(answer.status, 200, "{answer:?}");
}

/// Waits until a lock is free, for no longer than that.
#[track_caller]
pub(crate) fn until_free(node: &Running, lock: &Lock, limit: Duration) {
    until_for(limit, "the lock is free", || {
        let answer = node.ask(&lock.status());
        answer.body["result"]["locked"] == false
    });
}

/// Waits until a server can lock again.
#[track_caller]
pub(crate) fn until_serving(node: &Running) {
    let lock = Lock::global("is it back?");
    let request = lock.locked_call("asks", SECOND, true);
    until_for(RECOVERY, "it serves again", || {
        node.ask(&request).status == 200
    });
}

/// Sends a request that Redis is needed for while it is gone: the answer comes in time, and says so.
#[track_caller]
pub(crate) fn assert_unavailable(node: &Running, request: &Value) {
    let since = Instant::now();
    let answer = node.ask(request);
    assert_eq!(answer.code(), Some("UNAVAILABLE"), "{answer:?}");
    let elapsed = since.elapsed();
    assert!(elapsed < STORE_TIMEOUT + MARGIN, "after {elapsed:?}");
}

/// Somebody who waits for a lock.
pub(crate) struct Waiter {
    call: JoinHandle<io::Result<Answer>>,
}

impl Waiter {
    /// For a minute. It is in the queue, and its server knows: Redis has answered that server once more since.
    #[track_caller]
    pub(crate) fn start(node: &Running, lock: &Lock, owner: &str, ttl: Duration) -> Self {
        let call = node.start_ask(lock.acquire_within(owner, ttl, MINUTE));
        until("it waits, or does so no more", || {
            call.is_finished() || node.ask(&lock.waiters()).waiting().contains(&owner)
        });
        Self { call }
    }

    pub(crate) fn is_waiting(&self) -> bool {
        !self.call.is_finished()
    }

    /// The lease that it gets, for which it waits no longer than that.
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
