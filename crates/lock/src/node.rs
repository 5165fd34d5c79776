//! Notifications from a store to the processes that use it: [`Node`] is the receiver, [`Nodes`] the list of receivers that a
//! store keeps.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, Weak};

use crate::model::{Transition, Wake};
use crate::{Fence, LockName, Reading, Ticket, Timestamp};

/// The process that uses a store: [`LockService`](crate::LockService) is one.
///
/// Called in the middle of a step, so it neither waits nor calls the store.
pub trait Node: fmt::Debug + Send + Sync + 'static {
    /// A call of this process has left the queue. Times in `wake` are by the clock of `reading`.
    ///
    /// A call may have waited for minutes, and its first answer may have come from another server with another clock. So the
    /// reading is of the step that woke the call, or of a later one.
    ///
    /// `false` if the call no longer waits. Then the store [abandons](crate::model::Command::Abandon) it, which ends the lease
    /// that it was granted.
    fn wake(&self, ticket: Ticket, wake: Wake, reading: Reading) -> bool;

    /// A step of this process has changed a lease, at this time of the store.
    ///
    /// Each such transition is reported once, before the answer to its command. [`Transition::Woken`] is not reported here.
    fn changed(&self, transition: &Transition, now: Timestamp);

    /// A step of another process has ended a lease that was granted through this one. `name` is any of its keys.
    ///
    /// The process that made the step reports the event; this one only notifies its guard. Such a notification may be lost: then
    /// the guard is lost at its local deadline.
    fn ended_elsewhere(&self, name: &LockName, fence: Fence) {
        let _ = (name, fence);
    }

    /// A step of another process has moved the expiry of a lease that was granted through this one. `name` is any of its keys,
    /// and `reading` that of the step.
    fn changed_elsewhere(
        &self,
        name: &LockName,
        fence: Fence,
        expires_at: Timestamp,
        reading: Reading,
    ) {
        let _ = (name, fence, expires_at, reading);
    }

    /// Another process may have changed this key, which is [watched](crate::LockStore::watch): it has to be read again.
    fn may_have_changed(&self, name: &LockName) {
        let _ = name;
    }
}

/// The processes that use a store; in a server, one.
#[derive(Debug, Default)]
pub struct Nodes {
    /// Apart from the others, so that the usual single node is notified without a lock.
    first: OnceLock<Weak<dyn Node>>,
    has_others: AtomicBool,
    others: RwLock<Vec<Weak<dyn Node>>>,
}

impl Nodes {
    /// Adds a node, which is notified as long as it lives.
    pub fn add(&self, node: Weak<dyn Node>) {
        let Err(node) = self.first.set(node) else {
            return;
        };
        let mut others = self.others.write().unwrap_or_else(PoisonError::into_inner);
        others.retain(|node| node.strong_count() > 0);
        others.push(node);
        self.has_others.store(true, Ordering::Release);
    }

    /// Calls [`Node::changed`] of every node.
    pub fn changed(&self, transition: &Transition, now: Timestamp) {
        self.any(|node| {
            node.changed(transition, now);
            false
        });
    }

    /// Calls [`Node::ended_elsewhere`] of every node.
    pub fn ended_elsewhere(&self, name: &LockName, fence: Fence) {
        self.any(|node| {
            node.ended_elsewhere(name, fence);
            false
        });
    }

    /// Calls [`Node::changed_elsewhere`] of every node.
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

    /// Calls [`Node::may_have_changed`] of every node.
    pub fn may_have_changed(&self, name: &LockName) {
        self.any(|node| {
            node.may_have_changed(name);
            false
        });
    }

    /// Notifies the node that made the call. `false` if the call no longer waits.
    #[must_use]
    pub fn wake(&self, ticket: Ticket, wake: &Wake, reading: Reading) -> bool {
        self.any(|node| node.wake(ticket, wake.clone(), reading))
    }

    fn any(&self, mut notify: impl FnMut(Arc<dyn Node>) -> bool) -> bool {
        if self
            .first
            .get()
            .and_then(Weak::upgrade)
            .is_some_and(&mut notify)
        {
            return true;
        }
        if !self.has_others.load(Ordering::Acquire) {
            return false;
        }
        let others = self.others.read().unwrap_or_else(PoisonError::into_inner);
        others.iter().filter_map(Weak::upgrade).any(&mut notify)
    }
}
