//! The specification: what each command does to the locks.
//!
//! [`step`] is pure. Time and fences are arguments, and the changes come out as a list of [`Transition`]s, from which
//! notifications, events and metrics are made. The memory and embedded stores run this code; other stores implement it in
//! another language, and the model test of [`crate::contract`] compares them with it.
//!
//! A claim takes a [`Share`] of one or more keys. It is **granted when it is first in the queue of each of its keys, and
//! is compatible with the leases of each**. It enters all its queues in one step, and all queues have the same order, so the
//! oldest claim is first in each: no deadlock, no starvation, arrival order for every kind of lock. One grant is one lease with
//! one fence, whatever the number of keys; it is extended, released and lost as a whole.
//!
//! Four rules hold in every step:
//!
//! 1. Leases that have expired end before the command is applied (S4, L1).
//! 2. Waiting claims that can be granted are granted before a new one is considered (L2).
//! 3. A command never acts on a lease that was granted in the same step, because its caller cannot have meant that lease.
//! 4. Every grant takes a fresh fence, and only a grant does (S2).
//!
//! **Invariants**, between two steps: the leases of a key are compatible; no claim waits that could be granted; a claim is in
//! all its queues, or in none. Debug builds check them after each step.

mod acquire;
mod command;
mod executor;
mod key;
mod share;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use self::command::{
    Abandoned, Acquire, Acquired, Claim, Command, LeaseRef, NotHeld, Obstacle, Outcome, Settled,
    Wait, Wake, Withdrawn,
};
use self::executor::Executor;
pub use self::key::{
    Call, Holder, Key, KeySnapshot, MAX_CALLS, MAX_WITHDRAWALS, Position, REMEMBERED_RELEASES,
    Release, Waiting, Withdrawal,
};
pub use self::share::{InvalidLocks, Kind, Locks, Share};
use crate::{Fence, Lease, LockName, NodeId, Timestamp};

/// How long a key remembers a released lease and its owner.
///
/// Long enough for a caller whose answer was lost to retry, but short, because every released key takes memory until then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReleaseMemory(Duration);

impl ReleaseMemory {
    /// The shortest: anything less would end before a caller can retry.
    pub const MIN: Self = Self(Duration::from_secs(1));
    /// The longest: anything more would fill Redis with keys that are free.
    pub const MAX: Self = Self(Duration::from_secs(3600));

    /// `None` unless the duration is between [`MIN`](Self::MIN) and [`MAX`](Self::MAX).
    pub fn new(duration: Duration) -> Option<Self> {
        let range = Self::MIN.0..=Self::MAX.0;
        range.contains(&duration).then_some(Self(duration))
    }

    /// As a duration.
    pub const fn as_duration(self) -> Duration {
        self.0
    }
}

/// 30 seconds.
impl Default for ReleaseMemory {
    fn default() -> Self {
        Self(Duration::from_secs(30))
    }
}

/// How long the end of a [call](LockName::call) is remembered, whatever the [`ReleaseMemory`] of the store.
pub const CALL_MEMORY: Duration = Duration::from_secs(60);

/// How long a key remembers a withdrawn attempt, so that a call of it that arrives late is refused.
pub const WITHDRAWAL_TTL: Duration = Duration::from_secs(60);

/// How long the node of a waiting call has to confirm a grant that another node made.
pub const CONFIRM_WITHIN: Duration = Duration::from_secs(5);

/// The keys that a step reads and changes.
///
/// A step begins with the keys that its command [names](Command::names). It asks for others only if one of these
/// [has sets](Key::has_sets).
pub trait Keys {
    /// The key of this name, created if it does not exist.
    fn key(&mut self, name: &LockName) -> &mut Key;

    /// Whether this key is at hand. A store that loads keys only when a step asks for them discards that step, and repeats it with
    /// the keys loaded. So debug builds check the invariants only at keys that are at hand.
    fn is_loaded(&self, name: &LockName) -> bool {
        let _ = name;
        true
    }

    /// Whether the step has asked for a key that was not at hand, so that it is discarded.
    fn is_discarded(&self) -> bool {
        false
    }
}

/// One key without sets. A step on it needs no others.
#[derive(Debug)]
pub struct OneKey<'a>(pub &'a mut Key);

impl Keys for OneKey<'_> {
    fn key(&mut self, name: &LockName) -> &mut Key {
        debug_assert_eq!(self.0.name(), name, "the step asks for another key");
        self.0
    }
}

/// The environment of a step.
pub struct Env<'a> {
    /// The store's time.
    pub now: Timestamp,
    /// Mints a fence that is larger than every earlier one of these keys; `None` when they are exhausted.
    pub mint: &'a mut dyn FnMut(&Locks) -> Option<Fence>,
    /// The node that runs the step. It needs no confirmation of grants to its own calls.
    pub node: Option<&'a NodeId>,
    /// Whether a node is alive.
    pub is_alive: &'a dyn Fn(&NodeId) -> bool,
    /// How long releases are remembered.
    pub memory: ReleaseMemory,
}

impl<'a> Env<'a> {
    /// For a store that only one node uses.
    pub fn single_node(
        now: Timestamp,
        mint: &'a mut dyn FnMut(&Locks) -> Option<Fence>,
        memory: ReleaseMemory,
    ) -> Self {
        Self {
            now,
            mint,
            node: None,
            is_alive: &|_| true,
            memory,
        }
    }

    /// Whether the node of a call is dead.
    fn is_gone(&self, call: &Call) -> bool {
        let node = call.node.as_ref();
        node.is_some_and(|node| Some(node) != self.node && !(self.is_alive)(node))
    }

    /// Whether a call keeps waiting.
    fn stays(&self, call: &Call) -> bool {
        call.until > self.now && !self.is_gone(call)
    }
}

/// One change that a step made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transition {
    /// A lease began.
    Granted {
        /// The lease.
        lease: Lease,
        /// Since when its call has waited; `None` if it was granted at once.
        waited_since: Option<Timestamp>,
        /// When it ends unless it is confirmed.
        confirm_by: Option<Timestamp>,
    },
    /// A grant was confirmed by the node of its call.
    Confirmed {
        /// The lease.
        lease: Lease,
        /// When it would have ended otherwise.
        confirm_by: Timestamp,
    },
    /// The expiry of a lease was moved, to a later or an earlier time.
    Extended {
        /// The lease as it is now.
        lease: Lease,
        /// Its [`Holder::due`] before the step.
        before: Timestamp,
    },
    /// A lease ended.
    Ended {
        /// The lease.
        lease: Lease,
        /// Why.
        cause: End,
        /// Its last [`Holder::due`].
        due: Timestamp,
    },
    /// A call has left the queue, and has to be notified.
    Woken {
        /// The call.
        call: Call,
        /// How its wait ended.
        wake: Wake,
    },
}

impl Transition {
    /// The lease that has changed.
    pub fn lease(&self) -> Option<&Lease> {
        match self {
            Self::Granted { lease, .. }
            | Self::Confirmed { lease, .. }
            | Self::Extended { lease, .. }
            | Self::Ended { lease, .. } => Some(lease),
            Self::Woken { .. } => None,
        }
    }
}

/// Why a lease ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// Its owner released it.
    Released,
    /// An operator ended it.
    Forced,
    /// It expired.
    Expired,
    /// The call that it was granted to was abandoned, and its owner never received it.
    Abandoned,
    /// The node of its call did not confirm it in time.
    Unconfirmed,
}

/// Applies one command, and appends the changes to `transitions`.
pub fn step<K: Keys>(
    keys: &mut K,
    command: &Command,
    env: &mut Env<'_>,
    transitions: &mut Vec<Transition>,
) -> Outcome {
    Executor::new(keys, env, transitions).execute(command)
}

#[cfg(test)]
mod tests;
