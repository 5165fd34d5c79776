//! The calls of this process that wait in a queue in Postgres, with what is needed to put them back at their positions.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use forrst_lock::model::{Acquire, Command, Position, Wait};
use forrst_lock::{LockName, Ticket, Timestamp};
use tokio::time::Instant;

#[derive(Debug, Default)]
pub(super) struct Waiting {
    by_ticket: Mutex<HashMap<Ticket, WaitingCall>>,
}

#[derive(Debug, Clone)]
pub(super) struct WaitingCall {
    pub(super) acquire: Acquire,
    pub(super) position: Position,
    /// When its wait times out, by the clock of this process.
    pub(super) deadline: Instant,
}

impl WaitingCall {
    /// The command that puts the call back at its position if it lost it, and otherwise finds out what has become of it. `deadline` is
    /// the end of its wait by the clock of the server.
    pub(super) fn rejoin(&self, deadline: Timestamp) -> Command {
        let wait = self.acquire.wait.as_ref();
        let wait = wait.map(|wait| Wait {
            timeout: self.deadline.saturating_duration_since(Instant::now()),
            max_queue: wait.max_queue,
            rejoin: Some((self.position, deadline)),
        });
        Command::Acquire(Acquire {
            wait,
            ..self.acquire.clone()
        })
    }
}

impl Waiting {
    fn calls(&self) -> MutexGuard<'_, HashMap<Ticket, WaitingCall>> {
        self.by_ticket
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, call: WaitingCall) {
        self.calls().insert(call.acquire.ticket, call);
    }

    pub(super) fn get(&self, ticket: Ticket) -> Option<WaitingCall> {
        self.calls().get(&ticket).cloned()
    }

    /// A call that has rejoined may share the position of another call of its attempt.
    pub(super) fn set_position(&self, ticket: Ticket, position: Position) {
        if let Some(call) = self.calls().get_mut(&ticket) {
            call.position = position;
        }
    }

    /// Returns when its wait times out, if it waited.
    pub(super) fn remove(&self, ticket: Ticket) -> Option<Instant> {
        self.calls().remove(&ticket).map(|call| call.deadline)
    }

    /// When its wait times out, if it waits.
    pub(super) fn deadline(&self, ticket: Ticket) -> Option<Instant> {
        self.calls().get(&ticket).map(|call| call.deadline)
    }

    /// All calls, in the order of arrival.
    pub(super) fn tickets(&self) -> Vec<Ticket> {
        let calls = self.calls();
        let mut tickets: Vec<(Position, Ticket)> = calls
            .values()
            .map(|call| (call.position, call.acquire.ticket))
            .collect();
        tickets.sort_unstable();
        tickets.into_iter().map(|(_, ticket)| ticket).collect()
    }

    /// The calls by the first of their keys.
    pub(super) fn by_name(&self) -> HashMap<LockName, Vec<(Position, Ticket)>> {
        let mut by_name: HashMap<LockName, Vec<(Position, Ticket)>> = HashMap::new();
        for call in self.calls().values() {
            let name = call.acquire.claim.locks.first().clone();
            let calls = by_name.entry(name).or_default();
            calls.push((call.position, call.acquire.ticket));
        }
        by_name
    }

    /// The keys that calls wait for.
    pub(super) fn names(&self) -> Vec<LockName> {
        let calls = self.calls();
        let names = calls
            .values()
            .flat_map(|call| call.acquire.claim.locks.names());
        let mut names: Vec<LockName> = names.cloned().collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}
