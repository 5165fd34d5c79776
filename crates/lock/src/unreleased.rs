//! The leases whose release failed and is retried in the background, so that a shutdown can roll them back instead.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::{LockName, Ticket};

/// A key of each lease, by the ticket that rolls it back.
#[derive(Debug, Default)]
pub(crate) struct Unreleased(Mutex<HashMap<Ticket, LockName>>);

impl Unreleased {
    pub(crate) fn add(&self, name: &LockName, ticket: Ticket) {
        self.leases().insert(ticket, name.clone());
    }

    pub(crate) fn remove(&self, ticket: Ticket) {
        self.leases().remove(&ticket);
    }

    /// Removes and returns all of them.
    pub(crate) fn take(&self) -> HashMap<Ticket, LockName> {
        std::mem::take(&mut *self.leases())
    }

    fn leases(&self) -> MutexGuard<'_, HashMap<Ticket, LockName>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
