//! Histories of locks: what tasks of a test requested from a store and were answered, and whether all of that fits together.
//!
//! The recorder knows no store and no lock type, so that a mistake of theirs is not repeated here. The one idea of the check: a
//! holder *knows for certain* that it holds a lease from the answer that granted it until it sends a release, or until the end
//! that it has counted from before it sent its request. No fault of a link, a process or a clock excuses two of these
//! intervals that do not fit together, or a fence that is not larger than one that was known before.
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

use log::{Act, Log, OperationId, Outcome};

pub use report::{Rule, Summary, Violation, Violations};

/// Which other leases a lease leaves room for on its keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Sharing {
    /// None.
    Exclusive,
    /// Any number of shared ones.
    Shared,
    /// Others with the same limit, so many with this one.
    Limit(u32),
}

/// Records operations as they happen. All clones are one.
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
    /// A lease of these keys is about to be requested. Attempts that repeat a request, so that they are answered with the same
    /// lease, are one operation: it ends with the last of them.
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
            Act::Acquire { keys, sharing }
        })
    }

    /// An operator is about to end the leases of a key: those with these fences, or all when none is given.
    ///
    /// As long as it is not known when it took effect, every lease of the key may be gone at any time, and is not checked
    /// for overlaps. So name a fence, or repeat it until it is answered.
    pub fn forces(&self, operator: &str, key: &str, fences: &[u64]) -> Operation<Release> {
        self.begin(operator, |log| Act::Force {
            key: log.key(key.to_owned()),
            fences: fences.to_vec(),
        })
    }

    /// From now on every operation has to end, and with an answer: the last fault was repaired.
    pub fn heals(&self) {
        let at = self.now();
        self.log().heal(at);
    }

    /// Whether fences grow, and certain leases fit together.
    pub fn check(&self) -> Result<Summary, Violations> {
        check::check(&self.log())
    }

    /// Whether every operation has ended, and with an answer where it began after the last fault was repaired. One that was
    /// dropped without an outcome has not ended.
    pub fn nothing_stuck(&self) -> Result<(), Violations> {
        check::nothing_stuck(&self.log())
    }

    fn begin<A>(&self, owner: &str, act: impl FnOnce(&mut Log) -> Act) -> Operation<A> {
        let mut log = self.log();
        let act = act(&mut log);
        // Read under the mutex: the order of the log is that of its times.
        let id = log.begin(self.now(), owner, act);
        Operation {
            history: self.clone(),
            id,
            act: PhantomData,
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

/// Follows a paused clock of tokio's.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// To acquire a lease.
#[derive(Debug)]
pub enum Acquire {}

/// To extend a lease.
#[derive(Debug)]
pub enum Extend {}

/// To release leases, one's own or by force.
#[derive(Debug)]
pub enum Release {}

/// An operation that has begun, and is to be ended with its outcome.
#[derive(Debug)]
#[must_use = "an operation that is dropped without an outcome counts as stuck"]
pub struct Operation<A> {
    history: History,
    id: OperationId,
    act: PhantomData<A>,
}

impl<A> Operation<A> {
    /// The store has answered, and nothing was done. A release or an extension that is refused says that the lease is gone.
    pub fn refused(self) {
        self.end(Outcome::Refused);
    }

    /// It may have been done, may not, and may still be.
    pub fn unknown(self) {
        self.end(Outcome::Unknown);
    }

    fn end(&self, outcome: Outcome) {
        let mut log = self.history.log();
        log.end(self.id, self.history.now(), outcome);
    }
}

impl Operation<Acquire> {
    /// The store has answered with a lease. Its holder knows for certain that it lasts until then.
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
    /// The store has answered. The holder knows for certain that the lease lasts until then.
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

/// A lease that was granted, to record what becomes of it.
#[derive(Debug, Clone)]
pub struct RecordedLease {
    history: History,
    acquired: OperationId,
}

impl RecordedLease {
    /// Its holder is about to extend it to this time from the moment when the store does so.
    pub fn extends(&self, ttl: Duration) -> Operation<Extend> {
        let of = self.acquired;
        let owner = self.history.log().owner(of);
        self.history.begin(&owner, |_| Act::Extend { of, ttl })
    }

    /// Its holder is about to release it, and does not count on it any more.
    pub fn releases(&self) -> Operation<Release> {
        let of = self.acquired;
        let owner = self.history.log().owner(of);
        self.history.begin(&owner, |_| Act::Release { of })
    }
}
