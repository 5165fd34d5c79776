//! Leases whose release failed, as long as it is tried again in the background.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::{LockName, Ticket};

/// By the ticket that rolls each of them back.
#[derive(Debug, Default)]
pub(crate) struct Unreleased(Mutex<HashMap<Ticket, LockName>>);

impl Unreleased {
    pub(crate) fn add(&self, name: &LockName, ticket: Ticket) {
        self.leases().insert(ticket, name.clone());
    }

    pub(crate) fn remove(&self, ticket: Ticket) {
        self.leases().remove(&ticket);
    }

    /// All of them, which from now on are the caller's concern.
    pub(crate) fn take(&self) -> HashMap<Ticket, LockName> {
        std::mem::take(&mut *self.leases())
    }

    fn leases(&self) -> MutexGuard<'_, HashMap<Ticket, LockName>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
