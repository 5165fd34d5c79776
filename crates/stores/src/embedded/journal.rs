//! What the store needs of an engine that writes things down.

use forrst_lock::state::{Holder, State, Tombstone};
use forrst_lock::{Fence, LockName, Timestamp, Waiter};

use super::EmbeddedError;
use super::clock::Reading;

/// Keeps the state of keys across the end of the process. One thread uses it.
pub(super) trait Journal: Send {
    /// All that was committed.
    fn load(&mut self) -> Result<Snapshot, EmbeddedError>;

    /// Writes all of it down, or nothing. After an error it is not known which; [`load`](Self::load) tells.
    fn commit(&mut self, changes: &Changes<'_>) -> Result<(), EmbeddedError>;

    /// Whether a commit could be made, as far as can be said without making one or waiting for the disk.
    fn probe(&mut self) -> Result<(), EmbeddedError>;

    /// Gives room back that is no longer needed. Called about once a second.
    fn tidy(&mut self);
}

/// What the journal knows.
#[derive(Debug)]
pub(super) struct Snapshot {
    pub(super) keys: Vec<Entry>,
    pub(super) last_fence: Option<Fence>,
    /// The clock at the last commit; none in a new store.
    pub(super) clock: Option<Reading>,
}

/// One key.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) name: LockName,
    pub(super) holder: Option<Holder>,
    /// The releases that are remembered, the newest last.
    pub(super) releases: Vec<Tombstone>,
}

/// What one transaction writes.
pub(super) struct Changes<'a> {
    /// Keys with their new state; none for one to be forgotten.
    pub(super) keys: Vec<(&'a LockName, Option<&'a State<Waiter>>)>,
    pub(super) last_fence: Option<Fence>,
    pub(super) clock: Reading,
}

impl Snapshot {
    /// Whether anything is held at `now`.
    pub(super) fn has_live_leases(&self, now: Timestamp) -> bool {
        let mut holders = self.keys.iter().filter_map(|entry| entry.holder.as_ref());
        holders.any(|holder| holder.lease.is_live(now))
    }
}
