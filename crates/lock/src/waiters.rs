//! The calls of this process that wait for a lock, each with the channel that ends its wait.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::model::Wake;
use crate::{Reading, Ticket};

/// Enough that threads seldom contend.
const SHARDS: usize = 16;

/// How a wait ended, and the reading of the clock that its times are by.
type WakeUp = (Wake, Reading);

/// The waiting calls, by ticket.
#[derive(Debug, Default)]
pub(crate) struct Waiters([Mutex<HashMap<Ticket, oneshot::Sender<WakeUp>>>; SHARDS]);

impl Waiters {
    /// Returns the receiver of the end of a wait. Must be called before the store receives the call.
    pub(crate) fn add(&self, ticket: Ticket) -> oneshot::Receiver<WakeUp> {
        let (sender, receiver) = oneshot::channel();
        self.shard(ticket).insert(ticket, sender);
        receiver
    }

    pub(crate) fn remove(&self, ticket: Ticket) {
        self.shard(ticket).remove(&ticket);
    }

    /// Ends the wait of a call. Returns `false` if it no longer waits.
    pub(crate) fn wake(&self, ticket: Ticket, wake: Wake, reading: Reading) -> bool {
        let waiter = self.shard(ticket).remove(&ticket);
        waiter.is_some_and(|waiter| waiter.send((wake, reading)).is_ok())
    }

    fn shard(&self, ticket: Ticket) -> MutexGuard<'_, HashMap<Ticket, oneshot::Sender<WakeUp>>> {
        // Tickets of one thread are consecutive.
        let index = usize::try_from(ticket.0 % SHARDS as u128).unwrap_or_default();
        self.0[index].lock().unwrap_or_else(PoisonError::into_inner)
    }
}
