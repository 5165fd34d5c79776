//! What a durable store needs of a table: to load keys from a journal, and to roll back steps that could not be written.

use std::time::Duration;

use forrst_lock::model::{Key, Transition};
use forrst_lock::{Fence, Timestamp};

use super::{Due, Slot, Table, due_change, replace};

const MILLISECOND: Duration = Duration::from_millis(1);

impl Table {
    /// Adds a key that was read from a journal.
    pub(crate) fn put(&mut self, key: Key, now: Timestamp) {
        let name = key.name().clone();
        self.indexes.due.extend(due_at(&key));
        self.slots.insert(name.clone(), Slot::new(key));
        self.after_step(&name, now);
    }

    /// From now on steps can be rolled back until they are accepted.
    pub(crate) fn enable_rollback(&mut self) {
        self.touched = Some(Vec::new());
    }

    /// Makes all steps final.
    pub(crate) fn accept(&mut self, now: Timestamp) {
        self.end_steps(now, Key::commit);
    }

    /// Rolls back all steps since the last [`accept`](Self::accept); `transitions` are theirs, in order.
    pub(crate) fn roll_back<'a>(
        &mut self,
        transitions: impl DoubleEndedIterator<Item = &'a Transition>,
        now: Timestamp,
    ) {
        for transition in transitions.rev() {
            let (before, after) = due_change(transition);
            replace(&mut self.indexes.due, after, before);
        }
        self.end_steps(now, Key::roll_back);
    }

    fn end_steps(&mut self, now: Timestamp, end: fn(&mut Key)) {
        let touched = self.touched.as_mut().map(std::mem::take);
        for name in touched.into_iter().flatten() {
            if let Some(slot) = self.slots.get_mut(&name) {
                end(&mut slot.key);
            }
            self.after_step(&name, now);
        }
    }

    /// Whether a lease that is still here expired after `since` and not after `now`.
    pub(crate) fn has_expired(&self, since: Timestamp, now: Timestamp) -> bool {
        let Some((_, _, any_name)) = self.indexes.due.first() else {
            return false;
        };
        let later = (now + MILLISECOND, Fence::FIRST, any_name.clone());
        let mut expired = self.indexes.due.range(..later).rev();
        let last = expired.find(|(at, ..)| *at <= now);
        last.is_some_and(|(at, ..)| *at > since)
    }
}

/// The leases whose first key this is.
fn due_at(key: &Key) -> impl Iterator<Item = Due> {
    let name = key.name();
    let leases = key.holders().filter(move |it| it.lease.name() == name);
    leases.map(move |it| (it.due(), it.lease.fence, name.clone()))
}
