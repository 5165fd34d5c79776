//! The calls of this process that wait in a queue in Redis, and what it takes to ask for their positions again.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forrst_lock::model::{Acquire, Position, Wait};
use forrst_lock::{LockName, Ticket, Timestamp};

#[derive(Debug, Default)]
pub(super) struct Waiters {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    by_ticket: HashMap<Ticket, Entry>,
    /// In the order of arrival.
    by_name: HashMap<LockName, BTreeSet<Position>>,
}

#[derive(Debug)]
struct Entry {
    acquire: Acquire,
    /// Where it waits, and until when; none before Redis has answered.
    place: Option<(Position, Timestamp)>,
    /// Redis is being asked about it. What is heard of it meanwhile may be older, and does not count.
    is_asked_about: bool,
}

impl Entry {
    fn name(&self) -> &LockName {
        self.acquire.claim.locks.first()
    }
}

impl Waiters {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Before Redis is asked: its grant may be here before its answer.
    pub(super) fn add(&self, acquire: Acquire) {
        let entry = Entry {
            acquire,
            place: None,
            is_asked_about: false,
        };
        self.table().by_ticket.insert(entry.acquire.ticket, entry);
    }

    pub(super) fn set_place(&self, ticket: Ticket, position: Position, until: Timestamp) {
        let mut table = self.table();
        let Table { by_ticket, by_name } = &mut *table;
        if let Some(entry) = by_ticket.get_mut(&ticket) {
            entry.place = Some((position, until));
            let queue = by_name.entry(entry.name().clone()).or_default();
            queue.insert(position);
        }
    }

    /// Whether it was there.
    pub(super) fn remove(&self, ticket: Ticket) -> bool {
        self.table().remove(ticket)
    }

    /// As [`Waiters::remove`], unless Redis is just being asked about it.
    pub(super) fn remove_if_idle(&self, ticket: Ticket) -> bool {
        let mut table = self.table();
        let entry = table.by_ticket.get(&ticket);
        entry.is_some_and(|entry| !entry.is_asked_about) && table.remove(ticket)
    }

    /// The call to repeat for its old position. From now on only the caller wakes it, until [`Waiters::answered`].
    pub(super) fn ask_about(&self, ticket: Ticket) -> Option<Acquire> {
        let mut table = self.table();
        let entry = table.by_ticket.get_mut(&ticket)?;
        if std::mem::replace(&mut entry.is_asked_about, true) {
            return None;
        }
        // Without a position it must not join the queue: its first answer, which is on its way, says where it waits.
        let wait = Wait {
            timeout: Duration::ZERO,
            max_queue: 0,
            again: entry.place,
        };
        Some(Acquire {
            wait: Some(wait),
            ..entry.acquire.clone()
        })
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
        queue.map(|position| position.ticket).collect()
    }

    pub(super) fn count(&self, name: &LockName) -> usize {
        self.table().by_name.get(name).map_or(0, BTreeSet::len)
    }
}

impl Table {
    fn remove(&mut self, ticket: Ticket) -> bool {
        let Some(entry) = self.by_ticket.remove(&ticket) else {
            return false;
        };
        if let Some((position, _)) = entry.place
            && let Some(queue) = self.by_name.get_mut(entry.name())
        {
            queue.remove(&position);
            if queue.is_empty() {
                self.by_name.remove(entry.name());
            }
        }
        true
    }
}
