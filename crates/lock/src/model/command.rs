//! What a store can be told to do, and what it answers.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Locks, Position};
use crate::{Attempt, Caller, Fence, Lease, LockName, NodeId, Note, Owner, Ticket, Timestamp, Ttl};

/// One step: what [`step`](super::step) applies to the keys.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// Asks for a lease: see [`Acquired`].
    Acquire(Acquire),
    /// Rolls back a call that nobody waits for any more: it leaves its queues, or returns the lease that it was just given:
    /// see [`Abandoned`].
    Abandon {
        /// Any one key of the call.
        name: LockName,
        /// The call.
        ticket: Ticket,
    },
    /// Gives a lease back.
    Release(Held),
    /// Lets a lease end `ttl` from now, whatever it had left.
    Extend(Held, Ttl),
    /// Ends every lease on a key.
    ForceRelease {
        /// The key.
        name: LockName,
        /// Only the leases of these fences; all of them when none is named.
        fences: Vec<Fence>,
    },
    /// Takes back an attempt whose outcome its caller does not know: see [`Withdrawn`].
    Withdraw {
        /// Any one key of the attempt.
        name: LockName,
        /// Who made it.
        owner: Owner,
        /// Which one.
        attempt: Attempt,
    },
    /// The node of a waiter that was granted a lease by another node knows of it.
    Confirm {
        /// Any one key of the lease.
        name: LockName,
        /// The lease.
        fence: Fence,
    },
    /// Nothing of its own: leases that are over end, and what can be granted is granted, as in every step.
    Settle(LockName),
}

/// Which lease of which owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// Any one of its keys.
    pub name: LockName,
    /// The token of the lease.
    pub owner: Owner,
    /// Which of the owner's leases on that key; needed if there are several.
    pub fence: Option<Fence>,
}

/// Who asks for which lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// The keys, and how much of each.
    pub locks: Locks,
    /// Whose lease it becomes.
    pub owner: Owner,
    /// Who asks, where the server knows its callers.
    pub caller: Option<Caller>,
    /// What it is for, for people.
    pub note: Option<Note>,
    /// Repeated by a caller who did not get the answer.
    pub attempt: Option<Attempt>,
    /// How long the lease lasts from its grant.
    pub ttl: Ttl,
}

/// One call for a lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acquire {
    /// What it asks for.
    pub claim: Claim,
    /// This call, and no other.
    pub ticket: Ticket,
    /// The node that made it; none where a store has only one.
    pub node: Option<NodeId>,
    /// Wait if it cannot be had at once.
    pub wait: Option<Wait>,
}

/// How to wait.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wait {
    /// How long at most.
    #[serde(with = "crate::serial::millis")]
    pub timeout: Duration,
    /// How many may wait in each of its queues, this one included.
    pub max_queue: usize,
    /// Where it waited before its queue lost it, and until when: it asks again for its old position.
    pub again: Option<(Position, Timestamp)>,
}

/// The answer to [`Command::Acquire`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Acquired {
    /// It was free, or the caller repeated the attempt that holds it.
    Granted(Lease),
    /// It cannot be had now, and the caller does not want to wait.
    Held(Obstacle),
    /// It cannot be had now, and the caller waits from now on.
    Queued {
        /// What is in the way.
        obstacle: Obstacle,
        /// Its position, for asking again.
        position: Position,
        /// When its wait ends.
        until: Timestamp,
    },
    /// It cannot be had now, and too many wait already.
    QueueFull(Obstacle),
    /// The attempt was withdrawn before this call arrived; or this call asked again for its old position, and its attempt has
    /// been granted and released meanwhile.
    Withdrawn,
    /// It asked again for its old position, and its time is over.
    TimedOut,
    /// The attempt is known, with other keys or other kinds.
    AnotherAttempt,
    /// There are no fences left.
    FencesExhausted,
}

/// What stands between a claim and its lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Obstacle {
    /// The keys that are held, or reserved for an earlier claim.
    pub blocked_by: Vec<LockName>,
    /// When it is worth looking again: not after the first end of a lease in the way.
    pub look_at: Timestamp,
}

/// The answer to [`Command::Abandon`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Abandoned {
    /// It had the lease, which has ended. The release is not remembered: its owner never knew of it.
    Returned(Lease),
    /// It waited, and has left. What was in its way.
    LeftQueue(Obstacle),
    /// It had nothing, or shares it with another call of its attempt.
    Nothing,
}

/// The answer to [`Command::Withdraw`]: what the attempt had.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Withdrawn {
    /// The lease, which is released now.
    Held(Lease),
    /// A position in the queue, which it has left.
    Waiting,
    /// Nothing that is known. Should a call of it arrive later, it comes to nothing.
    Unknown,
    /// Nothing was done: as many attempts as a [key](super::MAX_WITHDRAWALS) or the store remembers were withdrawn lately.
    TooMany,
}

/// Why there is no lease to act on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NotHeld {
    /// Never held, or the lease has run out.
    NotFound,
    /// This owner's lease was released a short while ago, and the owner holds no other. Another owner may hold the lock.
    AlreadyReleased {
        /// Whether force-release took it away.
        forced: bool,
    },
    /// Another owner holds it, or the same owner by another fence.
    OwnedByAnother,
    /// The owner has several leases on this key, and has named none of them.
    Ambiguous,
}

/// How the wait of a call ended; sent once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wake {
    /// The lease is its own from now on; the ttl counts from this moment.
    Granted(Lease),
    /// Its time was over, and this was still in its way.
    TimedOut(Obstacle),
    /// Its attempt was withdrawn.
    Withdrawn,
    /// There are no fences left, so nothing can be granted any more.
    FencesExhausted,
}

/// The answer to a [`Command`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// To [`Command::Acquire`].
    Acquired(Acquired),
    /// To [`Command::Abandon`].
    Abandoned(Abandoned),
    /// To [`Command::Release`], [`Command::Extend`] and [`Command::Confirm`]: the lease, as it is or was.
    Lease(Result<Lease, NotHeld>),
    /// To [`Command::ForceRelease`]: the leases that have ended, at least one.
    Forced(Result<Vec<Lease>, NotHeld>),
    /// To [`Command::Withdraw`].
    Withdrawn(Withdrawn),
    /// To [`Command::Settle`].
    Settled(Settled),
}

/// A key after [`Command::Settle`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settled {
    /// How many claims wait.
    pub waiters: usize,
    /// When the first of them may be granted something, unless a lease ends early.
    pub look_at: Timestamp,
}

impl Command {
    /// The keys that it names.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &LockName> {
        let one = self.single();
        let several = match self {
            Self::Acquire(acquire) if one.is_none() => acquire.claim.locks.as_slice(),
            _ => &[],
        };
        let count = usize::from(one.is_some()) + several.len();
        (0..count).map(move |index| one.unwrap_or_else(|| &several[index].0))
    }

    /// The one key that it is about; none when there are several.
    pub fn single(&self) -> Option<&LockName> {
        match self {
            Self::Acquire(acquire) => match acquire.claim.locks.as_slice() {
                [(name, _)] => Some(name),
                _ => None,
            },
            Self::Release(held) | Self::Extend(held, _) => Some(&held.name),
            Self::Abandon { name, .. }
            | Self::ForceRelease { name, .. }
            | Self::Withdraw { name, .. }
            | Self::Confirm { name, .. }
            | Self::Settle(name) => Some(name),
        }
    }
}
