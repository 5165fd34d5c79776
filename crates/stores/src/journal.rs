//! The journal engine, on which durable stores are built.
//!
//! The [model](forrst_lock::model) runs in memory, on one thread, ahead of a [`Journal`]. All commands that arrived during the last
//! commit are one batch: they are applied together and written in one transaction; then callers are answered and waiters woken.
//! So many callers share one commit, and no node is notified of a change that a crash could undo (ADR 10).
//!
//! - [`Engine`] runs on the thread: it applies, commits, answers and wakes.
//! - [`Calls`] is the side of the callers: a bounded queue, and a timeout for each call.

mod calls;
mod engine;
mod failures;

use forrst_lock::model::{Holder, Withdrawal};
use forrst_lock::{Fence, LockName, Timestamp};

pub(crate) use self::calls::{Calls, Limits};
pub(crate) use self::engine::{Engine, Start};

/// What the engine writes to. Only its thread uses it.
///
/// The engine has all keys in memory: a journal reads them into [`Start`] when it is opened. A journal with more keys than fit into
/// memory would need a `load` of one key here.
pub(crate) trait Journal: Send + 'static {
    /// Why a commit or a probe failed.
    type Error: std::error::Error;

    /// The store's time. It never runs backwards.
    fn now(&self) -> Timestamp;

    /// Writes all changes and the current time, which it returns, in one transaction. After an error none of them is visible,
    /// although a crash may bring them back.
    fn commit(&mut self, changes: &Changes<'_>) -> Result<Timestamp, Self::Error>;

    /// Whether a commit would succeed, as far as that is known without making one or waiting for the disk.
    fn probe(&mut self) -> Result<(), Self::Error>;

    /// Deletes expired withdrawals, and gives unused space back to the disk. Called about once a second.
    fn tidy(&mut self);
}

/// What one transaction writes.
#[derive(Debug)]
pub(crate) struct Changes<'a> {
    /// Leases as they are now; `None` for one that has ended.
    pub(crate) leases: Vec<(&'a LeaseId, Option<&'a Holder>)>,
    /// Withdrawn attempts, each with one key.
    pub(crate) withdrawals: &'a [(LockName, Withdrawal)],
    /// The largest fence that was ever granted.
    pub(crate) last_fence: Option<Fence>,
}

/// A lease: its first key, and its fence. Leases of different keys may have the same fence.
pub(crate) type LeaseId = (LockName, Fence);

#[cfg(test)]
mod tests;
