//! The specification: what each command does to the locks.
//!
//! [`step`] is pure. Time is an argument, fences come from outside, and what has happened comes out as a list of
//! [`Transition`]s, from which waiters are notified and events, metrics and watches are made. The memory and embedded
//! stores run it as it stands; every other store is another spelling of it, and the model test of [`crate::contract`]
//! compares the two.
//!
//! A claim takes a [`Share`] of one key or of several. It is **granted when it is first in the queue of every one of its
//! keys, and fits beside the leases of each**. It enters all its queues in one step, and all queues have one order, so the oldest
//! claim is first everywhere: no deadlock, no starvation, arrival order for every kind of lock. One grant is one lease with one
//! fence, whatever the number of keys; it is extended, released and lost as a whole.
//!
//! Four rules hold in every step:
//!
//! 1. A lease whose time has come has ended before the command is applied (S4, L1).
//! 2. What can be granted to waiting claims is granted before a new one is considered (L2).
//! 3. What acts on a lease acts on none that was granted in the same step: no caller can have meant it.
//! 4. Every grant takes a fresh fence, and only a grant does (S2).
//!
//! **Invariants**, between two steps: the leases of a key fit together; no claim that could be granted waits; a claim is in all
//! its queues, or in none. They are checked after each step in debug builds.

mod acquire;
mod command;
mod key;
mod share;
mod turn;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use self::command::{
    Abandoned, Acquire, Acquired, Claim, Command, Held, NotHeld, Obstacle, Outcome, Settled, Wait,
    Wake, Withdrawn,
};
pub use self::key::{
    Call, Holder, Kept, Key, MAX_CALLS, MAX_WITHDRAWALS, Position, REMEMBERED_RELEASES, Release,
    Waiting, Withdrawal,
};
pub use self::share::{InvalidLocks, Kind, Locks, Share};
use self::turn::Turn;
use crate::{Fence, Lease, LockName, NodeId, Timestamp};

/// How long a key remembers that a lease was released, and whose.
///
/// Long enough for a caller whose answer was lost to ask again, and short, because every released key costs
/// memory for as long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReleaseMemory(Duration);

impl ReleaseMemory {
    /// The shortest: less would be over before a caller can ask again.
    pub const MIN: Self = Self(Duration::from_secs(1));
    /// The longest: more would fill a Redis with keys that nobody holds.
    pub const MAX: Self = Self(Duration::from_secs(3600));

    /// Takes what is between [`MIN`](Self::MIN) and [`MAX`](Self::MAX).
    pub fn new(duration: Duration) -> Option<Self> {
        let range = Self::MIN.0..=Self::MAX.0;
        range.contains(&duration).then_some(Self(duration))
    }

    /// As a duration.
    pub const fn as_duration(self) -> Duration {
        self.0
    }
}

/// Half a minute.
impl Default for ReleaseMemory {
    fn default() -> Self {
        Self(Duration::from_secs(30))
    }
}

/// How long a key remembers that an attempt was withdrawn: a call of it that was on its way comes to nothing.
pub const WITHDRAWAL_TTL: Duration = Duration::from_secs(60);

/// How long the node of a waiter has to confirm a grant that another node made.
pub const CONFIRM_WITHIN: Duration = Duration::from_secs(5);

/// Where a step finds its keys.
///
/// A step begins with the keys that its command [names](Command::names). It asks for others only through those of them that
/// [have sets](Key::has_sets).
pub trait Keys {
    /// The key of this name; a new one when nothing is known of it.
    fn key(&mut self, name: &LockName) -> &mut Key;
}

/// A single key without sets is all that a step on it needs.
#[derive(Debug)]
pub struct OneKey<'a>(pub &'a mut Key);

impl Keys for OneKey<'_> {
    fn key(&mut self, name: &LockName) -> &mut Key {
        debug_assert_eq!(self.0.name(), name, "another key is not at hand");
        self.0
    }
}

/// What a step needs to know of the world.
pub struct Env<'a> {
    /// The store's time.
    pub now: Timestamp,
    /// Mints a fence that is larger than every earlier one of these keys; none when there are no more.
    pub mint: &'a mut dyn FnMut(&Locks) -> Option<Fence>,
    /// The node that runs the step, and learns of its own grants by the answer.
    pub node: Option<&'a NodeId>,
    /// Whether a node is alive.
    pub is_alive: &'a dyn Fn(&NodeId) -> bool,
    /// For how long releases are remembered.
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

    /// Whether the node of a call has gone.
    fn is_gone(&self, call: &Call) -> bool {
        let node = call.node.as_ref();
        node.is_some_and(|node| Some(node) != self.node && !(self.is_alive)(node))
    }

    /// Whether a call goes on waiting.
    fn stays(&self, call: &Call) -> bool {
        call.until > self.now && !self.is_gone(call)
    }
}

/// Something that happened in a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transition {
    /// A lease began.
    Granted {
        /// The lease.
        lease: Lease,
        /// Since when it was waited for; none when it was had at once.
        waited_since: Option<Timestamp>,
        /// When it is taken back unless it is confirmed.
        confirm_by: Option<Timestamp>,
    },
    /// A grant was confirmed by the node of its waiter.
    Confirmed {
        /// The lease.
        lease: Lease,
        /// When it would have been taken back.
        confirm_by: Timestamp,
    },
    /// The end of a lease was put off, or brought forward.
    Extended {
        /// The lease as it is now.
        lease: Lease,
        /// When something would have had to be done about it before: [`Holder::due`].
        before: Timestamp,
    },
    /// A lease ended.
    Ended {
        /// The lease.
        lease: Lease,
        /// Why.
        cause: End,
        /// When something would have had to be done about it: [`Holder::due`].
        due: Timestamp,
    },
    /// A call has left the queue, and is to be told why.
    Woken {
        /// The call.
        call: Call,
        /// How its wait ended.
        wake: Wake,
    },
}

impl Transition {
    /// The lease that it is about.
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
    /// Its owner gave it back.
    Released,
    /// An operator ended it.
    Forced,
    /// Its time was over.
    Expired,
    /// The call that got it was given up, and its owner never knew.
    Abandoned,
    /// The node of its waiter did not confirm it.
    Unconfirmed,
}

/// Applies one command. What happens is added to `transitions`.
pub fn step<K: Keys>(
    keys: &mut K,
    command: &Command,
    env: &mut Env<'_>,
    transitions: &mut Vec<Transition>,
) -> Outcome {
    Turn::new(keys, env, transitions).run(command)
}

#[cfg(test)]
mod tests;
