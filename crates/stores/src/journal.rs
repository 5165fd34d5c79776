//! The journal engine: what every durable store is made of.
//!
//! The [model](forrst_lock::model) runs in memory, on one thread, ahead of a [`Journal`]. Whatever has arrived while the last
//! commit ran is applied together and written in one transaction; then callers are answered and waiters woken. So many callers
//! share one commit, and nobody is notified of what a crash could take back (ADR 10).
//!
//! - [`Engine`] is the thread: applies, writes, commits, answers, wakes.
//! - [`Calls`] is the callers' side of it: a bounded queue, and a time limit for each call.

mod calls;
mod engine;
mod failures;

use forrst_lock::model::{Holder, Withdrawal};
use forrst_lock::{Fence, LockName, Timestamp};

pub(crate) use self::calls::{Calls, Limits};
pub(crate) use self::engine::{Engine, Start};

/// Where the engine writes. One thread uses it.
///
/// The engine has all keys in memory: a journal reads them when it is opened, into [`Start`]. One with more keys than fit into
/// memory would need a `load` of one key here.
pub(crate) trait Journal: Send + 'static {
    /// Why it could not do its work.
    type Error: std::error::Error;

    /// The store's time. It never runs backwards.
    fn now(&self) -> Timestamp;

    /// Writes all of it with the present time, which is returned, and only then lets anybody see it. After an error nothing of it
    /// is visible, although a crash may bring it back.
    fn commit(&mut self, changes: &Changes<'_>) -> Result<Timestamp, Self::Error>;

    /// Whether a commit could be made, as far as can be said without making one or waiting for the disk.
    fn probe(&mut self) -> Result<(), Self::Error>;

    /// Forgets withdrawals whose time is over, and gives room back that is no longer needed. Called about once a second.
    fn tidy(&mut self);
}

/// What one transaction writes.
#[derive(Debug)]
pub(crate) struct Changes<'a> {
    /// Leases as they are now; `None` for one that has ended.
    pub(crate) leases: Vec<(&'a LeaseId, Option<&'a Holder>)>,
    /// Attempts that were withdrawn, each at one key.
    pub(crate) withdrawals: &'a [(LockName, Withdrawal)],
    /// The largest fence that was ever given out.
    pub(crate) last_fence: Option<Fence>,
}

/// A lease: its first key, and its fence. Leases of different keys may have the same fence.
pub(crate) type LeaseId = (LockName, Fence);

#[cfg(test)]
mod tests;
