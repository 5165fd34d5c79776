//! Those who wait in this process, for locks of a queue that is in Redis.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use forrst_lock::state::Claim;
use forrst_lock::{LockName, Ticket, Timestamp, Waiter};

#[derive(Debug, Default)]
pub(super) struct Waiters {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    by_ticket: HashMap<Ticket, Entry>,
    /// In the order of arrival.
    by_name: HashMap<LockName, BTreeSet<(u64, Ticket)>>,
}

#[derive(Debug)]
struct Entry {
    name: LockName,
    claim: Claim,
    waiter: Waiter,
    place: Option<Place>,
    /// Somebody is asking Redis about it. What others hear of it meanwhile may be older, and does not count.
    is_asked_about: bool,
}

/// Where a waiter stands in its queue.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) seq: u64,
    pub(super) until: Timestamp,
}

impl Waiters {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Before Redis is asked: its grant may be here before its answer.
    pub(super) fn add(&self, name: &LockName, claim: Claim, waiter: Waiter) {
        let entry = Entry {
            name: name.clone(),
            claim,
            waiter,
            place: None,
            is_asked_about: false,
        };
        self.table().by_ticket.insert(entry.claim.ticket, entry);
    }

    pub(super) fn set_place(&self, ticket: Ticket, place: Place) {
        let mut table = self.table();
        let Table { by_ticket, by_name } = &mut *table;
        if let Some(entry) = by_ticket.get_mut(&ticket) {
            entry.place = Some(place);
            let queue = by_name.entry(entry.name.clone()).or_default();
            queue.insert((place.seq, ticket));
        }
    }

    /// Takes it out of the table, to be told or forgotten.
    pub(super) fn remove(&self, ticket: Ticket) -> Option<Waiter> {
        self.table().remove(ticket)
    }

    /// As [`Waiters::remove`], unless somebody else is just asking about it.
    pub(super) fn remove_if_idle(&self, ticket: Ticket) -> Option<Waiter> {
        let mut table = self.table();
        let entry = table.by_ticket.get(&ticket)?;
        if entry.is_asked_about {
            return None;
        }
        table.remove(ticket)
    }

    /// From now on only the caller tells this waiter anything, until [`Waiters::answered`].
    pub(super) fn ask_about(&self, ticket: Ticket) -> Option<(Claim, Option<Place>)> {
        let mut table = self.table();
        let entry = table.by_ticket.get_mut(&ticket)?;
        if std::mem::replace(&mut entry.is_asked_about, true) {
            return None;
        }
        Some((entry.claim.clone(), entry.place))
    }

    pub(super) fn has(&self, ticket: Ticket) -> bool {
        self.table().by_ticket.contains_key(&ticket)
    }

    /// It still waits.
    pub(super) fn answered(&self, ticket: Ticket) {
        if let Some(entry) = self.table().by_ticket.get_mut(&ticket) {
            entry.is_asked_about = false;
        }
    }

    /// Those who wait for `name`, in the order of arrival.
    pub(super) fn of(&self, name: &LockName) -> Vec<Ticket> {
        let table = self.table();
        let queue = table.by_name.get(name).into_iter().flatten();
        queue.map(|(_, ticket)| *ticket).collect()
    }

    pub(super) fn count(&self, name: &LockName) -> usize {
        self.table().by_name.get(name).map_or(0, BTreeSet::len)
    }
}

impl Table {
    fn remove(&mut self, ticket: Ticket) -> Option<Waiter> {
        let entry = self.by_ticket.remove(&ticket)?;
        if let Some(place) = entry.place
            && let Some(queue) = self.by_name.get_mut(&entry.name)
        {
            queue.remove(&(place.seq, ticket));
            if queue.is_empty() {
                self.by_name.remove(&entry.name);
            }
        }
        Some(entry.waiter)
    }
}
