//! The calls of this process that wait for a lock.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::model::Wake;
use crate::{Reading, Ticket};

/// Enough that two cores seldom meet.
const SHARDS: usize = 16;

/// How a wait ended, and the clock by which that is to be read.
type End = (Wake, Reading);

/// All of them, by ticket.
#[derive(Debug, Default)]
pub(crate) struct Waiters([Mutex<HashMap<Ticket, oneshot::Sender<End>>>; SHARDS]);

impl Waiters {
    /// Where a call is notified of the end of its wait. To be called before the store knows of it.
    pub(crate) fn add(&self, ticket: Ticket) -> oneshot::Receiver<End> {
        let (sender, receiver) = oneshot::channel();
        self.shard(ticket).insert(ticket, sender);
        receiver
    }

    pub(crate) fn remove(&self, ticket: Ticket) {
        self.shard(ticket).remove(&ticket);
    }

    /// Whether the call was still there to be told.
    pub(crate) fn wake(&self, ticket: Ticket, wake: Wake, reading: Reading) -> bool {
        let waiter = self.shard(ticket).remove(&ticket);
        waiter.is_some_and(|waiter| waiter.send((wake, reading)).is_ok())
    }

    fn shard(&self, ticket: Ticket) -> MutexGuard<'_, HashMap<Ticket, oneshot::Sender<End>>> {
        // Tickets of one thread are consecutive.
        let index = usize::try_from(ticket.0 % SHARDS as u128).unwrap_or_default();
        self.0[index].lock().unwrap_or_else(PoisonError::into_inner)
    }
}
