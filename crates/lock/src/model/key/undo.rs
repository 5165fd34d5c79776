//! What steps have changed of a key, so that a store can take it back.
//!
//! A store that writes what its steps did runs them first and writes then. Should that fail, the keys have to be as they were.
//! A copy of each key would cost as much as there are leases and waiters on it; this costs as much as has changed.

use super::{Holder, Key, Position, Releases, Waiting, Withdrawal};
use crate::Fence;

/// The changes since [`Key::record`], the oldest first.
#[derive(Debug, Clone, Default)]
pub(super) struct Undo {
    changes: Vec<Before>,
    has_releases: bool,
    has_withdrawals: bool,
}

/// How something was before it changed.
#[derive(Debug, Clone)]
enum Before {
    NoLease(Fence),
    Lease(Holder),
    NoClaim(Position),
    Claim(Waiting),
    Releases(Releases),
    Withdrawals(Vec<Withdrawal>),
}

impl Key {
    /// From now on changes can be [undone](Self::undo), and the key is not [vacant](Self::is_vacant). `false` if that is so
    /// already.
    pub fn record(&mut self) -> bool {
        let is_new = self.undo.is_none();
        if is_new {
            self.undo = Some(Box::default());
        }
        is_new
    }

    /// Lets the recorded changes stand.
    pub fn accept(&mut self) {
        self.undo = None;
    }

    /// Takes back everything that was changed since [`record`](Self::record).
    pub fn undo(&mut self) {
        let Some(undo) = self.undo.take() else {
            return;
        };
        for before in undo.changes.into_iter().rev() {
            match before {
                Before::NoLease(fence) => {
                    self.remove(fence);
                }
                Before::Lease(holder) => {
                    self.remove(holder.lease.fence);
                    self.insert(holder);
                }
                Before::NoClaim(position) => {
                    self.dequeue(position);
                }
                Before::Claim(waiting) => {
                    self.dequeue(waiting.position);
                    self.enqueue(waiting);
                }
                Before::Releases(releases) => self.releases = releases,
                Before::Withdrawals(withdrawals) => self.withdrawals = withdrawals,
            }
        }
    }

    pub(super) fn record_no_lease(&mut self, fence: Fence) {
        if let Some(undo) = &mut self.undo {
            undo.changes.push(Before::NoLease(fence));
        }
    }

    pub(super) fn record_lease(&mut self, fence: Fence) {
        if let Some(undo) = &mut self.undo
            && let Some(holder) = self.holders.get(fence)
        {
            undo.changes.push(Before::Lease(holder.clone()));
        }
    }

    pub(super) fn record_no_claim(&mut self, position: Position) {
        if let Some(undo) = &mut self.undo {
            undo.changes.push(Before::NoClaim(position));
        }
    }

    pub(super) fn record_claim(&mut self, index: usize) {
        if let Some(undo) = &mut self.undo
            && let Some(waiting) = self.queue.get(index)
        {
            undo.changes.push(Before::Claim(waiting.clone()));
        }
    }

    pub(super) fn record_releases(&mut self) {
        if let Some(undo) = &mut self.undo
            && !undo.has_releases
        {
            undo.has_releases = true;
            undo.changes.push(Before::Releases(self.releases.clone()));
        }
    }

    pub(super) fn record_withdrawals(&mut self) {
        if let Some(undo) = &mut self.undo
            && !undo.has_withdrawals
        {
            undo.has_withdrawals = true;
            let withdrawals = self.withdrawals.clone();
            undo.changes.push(Before::Withdrawals(withdrawals));
        }
    }
}
