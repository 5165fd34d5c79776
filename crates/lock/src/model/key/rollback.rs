//! The changes of a key, recorded so that they can be rolled back.
//!
//! A durable store runs its steps in memory and then writes them. If the write fails, it restores the keys. A copy of each key
//! would cost as much as its leases and waiters; this log costs as much as has changed.

use super::{Holder, Key, Position, Releases, Waiting, Withdrawal};
use crate::Fence;

/// The changes since [`Key::record`].
#[derive(Debug, Clone, Default)]
pub(super) struct RollbackLog {
    /// The oldest first.
    changes: Vec<Previous>,
    has_releases: bool,
    has_withdrawals: bool,
}

/// The state of a part of a key before it changed.
#[derive(Debug, Clone)]
enum Previous {
    NoLease(Fence),
    Lease(Holder),
    NoClaim(Position),
    Claim(Waiting),
    Releases(Releases),
    Withdrawals(Vec<Withdrawal>),
}

impl Key {
    /// Begins to record changes, so that they can be [rolled back](Self::roll_back). Until then the key is not
    /// [vacant](Self::is_vacant). `false` if changes are recorded already.
    pub fn record(&mut self) -> bool {
        let is_new = self.rollback.is_none();
        if is_new {
            self.rollback = Some(Box::default());
        }
        is_new
    }

    /// Keeps the recorded changes, and stops recording.
    pub fn commit(&mut self) {
        self.rollback = None;
    }

    /// Reverts all changes since [`record`](Self::record), and stops recording.
    pub fn roll_back(&mut self) {
        let Some(log) = self.rollback.take() else {
            return;
        };
        for before in log.changes.into_iter().rev() {
            match before {
                Previous::NoLease(fence) => {
                    self.remove(fence);
                }
                Previous::Lease(holder) => {
                    self.remove(holder.lease.fence);
                    self.insert(holder);
                }
                Previous::NoClaim(position) => {
                    self.dequeue(position);
                }
                Previous::Claim(waiting) => {
                    self.dequeue(waiting.position);
                    self.enqueue(waiting);
                }
                Previous::Releases(releases) => self.releases = releases,
                Previous::Withdrawals(withdrawals) => self.withdrawals = withdrawals,
            }
        }
    }

    pub(super) fn record_no_lease(&mut self, fence: Fence) {
        if let Some(log) = &mut self.rollback {
            log.changes.push(Previous::NoLease(fence));
        }
    }

    pub(super) fn record_lease(&mut self, fence: Fence) {
        if let Some(log) = &mut self.rollback
            && let Some(holder) = self.holders.get(fence)
        {
            log.changes.push(Previous::Lease(holder.clone()));
        }
    }

    pub(super) fn record_no_claim(&mut self, position: Position) {
        if let Some(log) = &mut self.rollback {
            log.changes.push(Previous::NoClaim(position));
        }
    }

    pub(super) fn record_claim(&mut self, index: usize) {
        if let Some(log) = &mut self.rollback
            && let Some(waiting) = self.queue.get(index)
        {
            log.changes.push(Previous::Claim(waiting.clone()));
        }
    }

    pub(super) fn record_releases(&mut self) {
        if let Some(log) = &mut self.rollback
            && !log.has_releases
        {
            log.has_releases = true;
            log.changes.push(Previous::Releases(self.releases.clone()));
        }
    }

    pub(super) fn record_withdrawals(&mut self) {
        if let Some(log) = &mut self.rollback
            && !log.has_withdrawals
        {
            log.has_withdrawals = true;
            let withdrawals = self.withdrawals.clone();
            log.changes.push(Previous::Withdrawals(withdrawals));
        }
    }
}
