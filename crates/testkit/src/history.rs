//! Histories of locks: records what tasks of a test requested from a store and what was answered, and checks that this is consistent.
//!
//! The recorder uses no type of the stores or of the lock crate, so that it does not share their bugs. The check is based on this: a
//! holder *knows for certain* that it holds a lease from the answer that granted it until it sends a release, or until an expiry that
//! it has counted from before it sent its request. No fault of a network, a process or a clock justifies two of these intervals that
//! conflict, or a fence that is not larger than one that was known before.
//!
//! ```
//! use std::time::{Duration, Instant};
//! use forrst_testkit::history::{History, Sharing};
//!
//! let history = History::default();
//! let ttl = Duration::from_secs(10);
//! // Before the request is sent. An attempt that is repeated is one operation.
//! let request = history.acquires("task 1", ["orders:1"], Sharing::Exclusive);
//! let sent = Instant::now();
//! // … `request.refused()` or `request.unknown()` or, when the store has granted it:
//! let lease = request.granted(1, sent + ttl);
//!
//! let request = lease.extends(ttl);
//! request.unknown();
//!
//! let request = lease.releases();
//! request.released();
//!
//! history.heals();
//! let summary = history.check().unwrap();
//! assert_eq!((summary.granted, summary.unknown), (1, 1));
//! history.nothing_stuck().unwrap();
//! ```

mod check;
mod leases;
mod log;
mod report;
#[cfg(test)]
mod tests;

use std::marker::PhantomData;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use log::{Action, Log, OperationId, Outcome};

pub use report::{Rule, Summary, Violation, Violations};

/// Which other leases may exist on the keys of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Sharing {
    /// No others.
    Exclusive,
    /// Any number of shared leases.
    Shared,
    /// Leases with the same limit, this many in total.
    Limit(u32),
}

/// Records operations as they happen. All clones share one record.
#[derive(Debug, Clone)]
pub struct History {
    start: Instant,
    log: Arc<Mutex<Log>>,
}

impl Default for History {
    fn default() -> Self {
        Self {
            start: now(),
            log: Arc::default(),
        }
    }
}

impl History {
    /// A lease on these keys is about to be requested. A request and its repetitions, which are answered with the same lease, are one
    /// operation: it ends with the last of them.
    pub fn acquires<K: Into<String>>(
        &self,
        owner: &str,
        keys: impl IntoIterator<Item = K>,
        sharing: Sharing,
    ) -> Operation<Acquire> {
        let keys: Vec<String> = keys.into_iter().map(Into::into).collect();
        assert!(!keys.is_empty(), "a lease has keys");
        self.begin(owner, |log| {
            let mut keys: Vec<_> = keys.into_iter().map(|key| log.key(key)).collect();
            keys.sort_unstable();
            keys.dedup();
            Action::Acquire { keys, sharing }
        })
    }

    /// An operator is about to end the leases on a key: those with these fences, or all if none is given.
    ///
    /// Until it is known when this took effect, every lease on the key may have ended at any time, and is not checked for overlaps. So
    /// name a fence, or repeat the operation until it is answered.
    pub fn forces(&self, operator: &str, key: &str, fences: &[u64]) -> Operation<Release> {
        self.begin(operator, |log| Action::Force {
            key: log.key(key.to_owned()),
            fences: fences.to_vec(),
        })
    }

    /// The last fault was repaired: from now on, every operation has to end with an answer.
    pub fn heals(&self) {
        let at = self.now();
        self.log().heal(at);
    }

    /// Checks that fences grow, and that certain leases do not conflict.
    pub fn check(&self) -> Result<Summary, Violations> {
        check::check(&self.log())
    }

    /// Checks that every operation has ended, and with an answer if it began after the last fault was repaired. An operation that was
    /// dropped without an outcome has not ended.
    pub fn nothing_stuck(&self) -> Result<(), Violations> {
        check::nothing_stuck(&self.log())
    }

    fn begin<A>(&self, owner: &str, action: impl FnOnce(&mut Log) -> Action) -> Operation<A> {
        let mut log = self.log();
        let action = action(&mut log);
        // Read under the mutex: the order of the log is that of its times.
        let id = log.begin(self.now(), owner, action);
        Operation {
            history: self.clone(),
            id,
            action: PhantomData,
        }
    }

    fn now(&self) -> Duration {
        self.since_start(now())
    }

    fn since_start(&self, instant: Instant) -> Duration {
        instant.saturating_duration_since(self.start)
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The time by tokio's clock, which may be paused.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// Marks an operation that acquires a lease.
#[derive(Debug)]
pub enum Acquire {}

/// Marks an operation that extends a lease.
#[derive(Debug)]
pub enum Extend {}

/// Marks an operation that releases leases, as their holder or by force.
#[derive(Debug)]
pub enum Release {}

/// An operation that has begun, and has to be ended with its outcome.
#[derive(Debug)]
#[must_use = "an operation that is dropped without an outcome counts as stuck"]
pub struct Operation<A> {
    history: History,
    id: OperationId,
    action: PhantomData<A>,
}

impl<A> Operation<A> {
    /// The store has answered, and nothing was done. A release or an extension that is refused means that the lease has ended.
    pub fn refused(self) {
        self.end(Outcome::Refused);
    }

    /// There was no answer: the operation may have taken effect, or may still do so, or neither.
    pub fn unknown(self) {
        self.end(Outcome::Unknown);
    }

    fn end(&self, outcome: Outcome) {
        let mut log = self.history.log();
        log.end(self.id, self.history.now(), outcome);
    }
}

impl Operation<Acquire> {
    /// The store has answered with a lease. Its holder knows for certain that it lasts until `until`.
    pub fn granted(self, fence: u64, until: impl Into<Instant>) -> RecordedLease {
        let until = self.history.since_start(until.into());
        self.end(Outcome::Granted { fence, until });
        RecordedLease {
            history: self.history,
            acquired: self.id,
        }
    }
}

impl Operation<Extend> {
    /// The store has answered. The holder knows for certain that the lease lasts until `until`.
    pub fn extended(self, until: impl Into<Instant>) {
        let until = self.history.since_start(until.into());
        self.end(Outcome::Extended { until });
    }
}

impl Operation<Release> {
    /// The store has answered: the lease has ended, or those that were forced have.
    pub fn released(self) {
        self.end(Outcome::Released);
    }
}

/// A lease that was granted, to record the operations on it.
#[derive(Debug, Clone)]
pub struct RecordedLease {
    history: History,
    acquired: OperationId,
}

impl RecordedLease {
    /// Its holder is about to extend it, to this ttl from the moment when the store does so.
    pub fn extends(&self, ttl: Duration) -> Operation<Extend> {
        let of = self.acquired;
        let owner = self.history.log().owner(of);
        self.history.begin(&owner, |_| Action::Extend { of, ttl })
    }

    /// Its holder is about to release it, and does not rely on it any more.
    pub fn releases(&self) -> Operation<Release> {
        let of = self.acquired;
        let owner = self.history.log().owner(of);
        self.history.begin(&owner, |_| Action::Release { of })
    }
}
