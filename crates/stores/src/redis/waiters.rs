//! The calls of this process that wait in a queue in Redis, with what is needed to put them back at their positions.
//!
//! A call may be woken by the answer to a command, by a message, or by a recheck: whichever comes first counts.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forrst_lock::model::{Acquire, Position, Wait};
use forrst_lock::{LockName, Ticket};
use tokio::time::Instant;

/// For how long a call that was granted a lease is remembered: another message about it may still come.
const REMEMBERED: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(super) struct Waiters {
    table: Mutex<WaiterTable>,
}

#[derive(Debug, Default)]
struct WaiterTable {
    by_ticket: HashMap<Ticket, WaitingCall>,
    /// In the order of arrival.
    by_name: HashMap<LockName, BTreeSet<(Position, Ticket)>>,
    /// Calls that were granted a lease recently.
    granted: HashMap<Ticket, Instant>,
    /// The same, the oldest first.
    granted_in_order: VecDeque<(Instant, Ticket)>,
}

#[derive(Debug)]
struct WaitingCall {
    acquire: Acquire,
    /// `None` until Redis has answered.
    position: Option<Position>,
    /// When its wait times out, by the clock of this process.
    deadline: Instant,
    /// A command that determines its state is under way. Messages that come meanwhile may be older than its answer, and are ignored.
    is_resolving: bool,
    /// A message was ignored. It may be newer than the answer: if the answer says that the call still waits, it has to be rechecked.
    needs_recheck: bool,
}

impl WaitingCall {
    fn name(&self) -> &LockName {
        self.acquire.claim.locks.first()
    }
}

/// What to do with a message about a call.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Delivery {
    /// The call waits: act on it.
    Accepted,
    /// Ignore it: a command under way determines the state of the call, or the call was granted its lease before.
    Ignored,
    /// The call has ended, or never was a call of this process.
    UnknownCall,
}

/// A call that is put back at its position.
#[derive(Debug)]
pub(super) struct Rejoin {
    pub(super) acquire: Acquire,
    pub(super) position: Position,
    pub(super) deadline: Instant,
}

impl Waiters {
    fn table(&self) -> MutexGuard<'_, WaiterTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a call, unless it does not wait. Returns whether it does. Has to be called before the command is sent: the message about
    /// its grant may overtake the answer.
    pub(super) fn add(&self, acquire: &Acquire) -> bool {
        let Some(Wait { timeout, .. }) = acquire.wait else {
            return false;
        };
        let call = WaitingCall {
            acquire: acquire.clone(),
            position: None,
            deadline: Instant::now() + timeout,
            is_resolving: false,
            needs_recheck: false,
        };
        self.table().by_ticket.insert(acquire.ticket, call);
        true
    }

    pub(super) fn set_position(&self, ticket: Ticket, position: Position) {
        let mut table = self.table();
        let WaiterTable {
            by_ticket, by_name, ..
        } = &mut *table;
        if let Some(entry) = by_ticket.get_mut(&ticket) {
            let queue = by_name.entry(entry.name().clone()).or_default();
            if let Some(before) = entry.position.replace(position) {
                queue.remove(&(before, ticket));
            }
            queue.insert((position, ticket));
        }
    }

    pub(super) fn remove(&self, ticket: Ticket) {
        self.table().remove(ticket);
    }

    /// Removes the call that a message is about, if the message counts. If it was granted a lease, that is remembered in the same step,
    /// so that another message about the same grant is ignored.
    pub(super) fn take(&self, ticket: Ticket, is_granted: bool) -> Delivery {
        let mut table = self.table();
        let delivery = table.receive(ticket);
        if delivery == Delivery::Accepted {
            table.end(ticket, is_granted);
        }
        delivery
    }

    /// When the wait of this call times out; `None` if it does not wait here.
    pub(super) fn deadline(&self, ticket: Ticket) -> Option<Instant> {
        self.table()
            .by_ticket
            .get(&ticket)
            .map(|entry| entry.deadline)
    }

    /// Removes a call that has its outcome. As with [`take`](Self::take), that may be a lease.
    pub(super) fn end(&self, ticket: Ticket, is_granted: bool) {
        self.table().end(ticket, is_granted);
    }

    /// If this returns [`Delivery::Accepted`], only its caller may wake the call, until [`Waiters::end_resolving`].
    pub(super) fn start_resolving(&self, ticket: Ticket) -> Delivery {
        let mut table = self.table();
        let delivery = table.receive(ticket);
        if delivery == Delivery::Accepted
            && let Some(entry) = table.by_ticket.get_mut(&ticket)
        {
            entry.is_resolving = true;
        }
        delivery
    }

    /// As [`start_resolving`](Self::start_resolving), and returns the call to repeat. `None` if it is already being resolved, or has no
    /// position: then its first answer is still to come, and it must not join the queue again.
    pub(super) fn start_rejoining(&self, ticket: Ticket) -> Option<Rejoin> {
        let mut table = self.table();
        let entry = table.by_ticket.get_mut(&ticket)?;
        let position = entry.position?;
        if std::mem::replace(&mut entry.is_resolving, true) {
            return None;
        }
        Some(Rejoin {
            acquire: entry.acquire.clone(),
            position,
            deadline: entry.deadline,
        })
    }

    /// Ends what [`start_resolving`](Self::start_resolving) began, for a call that still waits. Returns whether a message came
    /// meanwhile, so that the call has to be rechecked.
    #[must_use]
    pub(super) fn end_resolving(&self, ticket: Ticket) -> bool {
        let mut table = self.table();
        table.by_ticket.get_mut(&ticket).is_some_and(|entry| {
            entry.is_resolving = false;
            std::mem::take(&mut entry.needs_recheck)
        })
    }

    /// The calls that wait for `name`, in the order of arrival.
    pub(super) fn tickets_for(&self, name: &LockName) -> Vec<Ticket> {
        let table = self.table();
        let queue = table.by_name.get(name).into_iter().flatten();
        queue.map(|(_, ticket)| *ticket).collect()
    }

    /// The `wanted` locks among those that calls of this process wait for.
    pub(super) fn names(&self, wanted: impl Fn(&LockName) -> bool) -> Vec<LockName> {
        let table = self.table();
        let names = table.by_name.keys().filter(|name| wanted(name));
        names.cloned().collect()
    }
}

impl WaiterTable {
    /// Decides what to do with a message about a call.
    fn receive(&mut self, ticket: Ticket) -> Delivery {
        match self.by_ticket.get_mut(&ticket) {
            Some(entry) if entry.is_resolving => {
                entry.needs_recheck = true;
                Delivery::Ignored
            }
            Some(_) => Delivery::Accepted,
            None if self.granted.contains_key(&ticket) => Delivery::Ignored,
            None => Delivery::UnknownCall,
        }
    }

    fn end(&mut self, ticket: Ticket, is_granted: bool) {
        self.remove(ticket);
        if is_granted {
            self.was_granted(ticket);
        }
    }

    fn was_granted(&mut self, ticket: Ticket) {
        let now = Instant::now();
        while let Some((at, oldest)) = self.granted_in_order.front().copied()
            && at + REMEMBERED < now
        {
            self.granted_in_order.pop_front();
            self.granted.remove(&oldest);
        }
        self.granted.insert(ticket, now);
        self.granted_in_order.push_back((now, ticket));
    }

    fn remove(&mut self, ticket: Ticket) {
        let Some(entry) = self.by_ticket.remove(&ticket) else {
            return;
        };
        if let Some(position) = entry.position
            && let Some(queue) = self.by_name.get_mut(entry.name())
        {
            queue.remove(&(position, ticket));
            if queue.is_empty() {
                self.by_name.remove(entry.name());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use forrst_lock::model::Claim;
    use forrst_lock::{LockKey, Locks, Owner, Ttl};

    use super::*;

    /// A call that waits, and its ticket.
    fn waiting() -> (Waiters, Ticket) {
        let name = LockName::global(&LockKey::parse("k").unwrap());
        let acquire = Acquire {
            claim: Claim {
                locks: Locks::exclusive(name),
                owner: Owner::parse("a").unwrap(),
                caller: None,
                note: None,
                attempt: None,
                ttl: Ttl::new(Duration::from_secs(60)).unwrap(),
            },
            ticket: Ticket::random(),
            node: None,
            wait: Some(Wait {
                timeout: Duration::from_secs(60),
                max_queue: 1,
                rejoin: None,
            }),
        };
        let (waiters, ticket) = (Waiters::default(), acquire.ticket);
        assert!(waiters.add(&acquire));
        let position = Position { arrival: 1, ticket };
        waiters.set_position(ticket, position);
        (waiters, ticket)
    }

    /// The second message finds no waiting call, and must not roll the lease back for that.
    #[tokio::test]
    async fn the_second_message_about_a_grant_is_ignored() {
        let (waiters, ticket) = waiting();
        assert_eq!(waiters.take(ticket, true), Delivery::Accepted);
        assert_eq!(waiters.take(ticket, true), Delivery::Ignored);
        assert_eq!(waiters.start_resolving(ticket), Delivery::Ignored);
        waiters.end(ticket, true);
        assert_eq!(waiters.start_resolving(ticket), Delivery::Ignored);
    }

    #[tokio::test]
    async fn a_message_that_comes_while_a_call_is_resolved_leads_to_a_recheck() {
        let (waiters, ticket) = waiting();
        for _ in 0..2 {
            waiters.start_rejoining(ticket).unwrap();
            assert!(!waiters.end_resolving(ticket));
            waiters.start_rejoining(ticket).unwrap();
            assert_eq!(waiters.start_resolving(ticket), Delivery::Ignored);
            assert!(waiters.end_resolving(ticket));
        }
    }
}
