//! Notifications from a store to the process that uses it.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, Weak};

use crate::model::{Transition, Wake};
use crate::{Fence, LockName, Reading, Ticket, Timestamp};

/// The process that uses a store: [`LockService`](crate::LockService) is one.
///
/// Called in the middle of a step, so it neither waits nor calls the store.
pub trait Node: fmt::Debug + Send + Sync + 'static {
    /// A call of this process has left the queue, and how; what the wake says is to be read by the clock of `reading`.
    ///
    /// A call may have waited for minutes, and its first answer may have come from another server with another clock. So a
    /// store gives a reading that is no older than the news: of the step that woke the call, or of a later one.
    ///
    /// `false` if nobody waits for it any more. A lease that it was granted is nobody's then, and the store
    /// [abandons](crate::model::Command::Abandon) the call.
    fn wake(&self, ticket: Ticket, wake: Wake, reading: Reading) -> bool;

    /// A step that this process made has changed a lease, at this time of the store.
    ///
    /// Every such transition is reported once, and before the answer to its command. [`Transition::Woken`] is not among them.
    fn changed(&self, transition: &Transition, now: Timestamp);

    /// A step of another process has ended a lease that was granted through this one. `name` is any of its keys.
    ///
    /// The process that made the step reports it; this one only has a guard to notify. A store that passes such notifications
    /// on may lose one: a guard that misses it is lost by its own clock.
    fn ended_elsewhere(&self, name: &LockName, fence: Fence) {
        let _ = (name, fence);
    }

    /// A step of another process has put off the end of a lease that was granted through this one, or brought it forward.
    /// `name` is any of its keys, and `reading` that of the step.
    fn changed_elsewhere(
        &self,
        name: &LockName,
        fence: Fence,
        expires_at: Timestamp,
        reading: Reading,
    ) {
        let _ = (name, fence, expires_at, reading);
    }

    /// A message that a process which uses the store has [sent](crate::LockStore::broadcast) to all of them.
    fn message(&self, message: &[u8]) {
        let _ = message;
    }
}

/// The processes that use a store; in a server, one.
#[derive(Debug, Default)]
pub struct Nodes {
    /// Apart from the others, because it is notified of every step, and a lock would be taken for that.
    first: OnceLock<Weak<dyn Node>>,
    has_others: AtomicBool,
    others: RwLock<Vec<Weak<dyn Node>>>,
}

impl Nodes {
    /// One more.
    pub fn add(&self, node: Weak<dyn Node>) {
        let Err(node) = self.first.set(node) else {
            return;
        };
        let mut others = self.others.write().unwrap_or_else(PoisonError::into_inner);
        others.retain(|node| node.strong_count() > 0);
        others.push(node);
        self.has_others.store(true, Ordering::Release);
    }

    /// Notifies all of them of what a step has changed, except of calls that were woken.
    pub fn changed(&self, transition: &Transition, now: Timestamp) {
        self.any(|node| {
            node.changed(transition, now);
            false
        });
    }

    /// Notifies all of them that another process has ended a lease.
    pub fn ended_elsewhere(&self, name: &LockName, fence: Fence) {
        self.any(|node| {
            node.ended_elsewhere(name, fence);
            false
        });
    }

    /// Notifies all of them that another process has put another end to a lease.
    pub fn changed_elsewhere(
        &self,
        name: &LockName,
        fence: Fence,
        expires_at: Timestamp,
        reading: Reading,
    ) {
        self.any(|node| {
            node.changed_elsewhere(name, fence, expires_at, reading);
            false
        });
    }

    /// Passes a message on to all of them.
    pub fn message(&self, message: &[u8]) {
        self.any(|node| {
            node.message(message);
            false
        });
    }

    /// Notifies the one whose call it is. `false` if no call waits.
    #[must_use]
    pub fn wake(&self, ticket: Ticket, wake: &Wake, reading: Reading) -> bool {
        self.any(|node| node.wake(ticket, wake.clone(), reading))
    }

    fn any(&self, mut tell: impl FnMut(Arc<dyn Node>) -> bool) -> bool {
        if self
            .first
            .get()
            .and_then(Weak::upgrade)
            .is_some_and(&mut tell)
        {
            return true;
        }
        if !self.has_others.load(Ordering::Acquire) {
            return false;
        }
        let others = self.others.read().unwrap_or_else(PoisonError::into_inner);
        others.iter().filter_map(Weak::upgrade).any(&mut tell)
    }
}
