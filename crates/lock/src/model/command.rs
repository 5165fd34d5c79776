//! The commands of a store, and their answers.
//!
//! Each command is one atomic step. The outcomes are data, not errors: a refusal says what blocks the claim, or why there is no
//! lease to act on.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Locks, Position};
use crate::{Attempt, Caller, Fence, Lease, LockName, NodeId, Note, Owner, Ticket, Timestamp, Ttl};

/// What one [`step`](super::step) does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// Asks for a lease: see [`Acquired`].
    Acquire(Acquire),
    /// Rolls back a call whose caller is gone. It leaves its queues, or its lease ends: see [`Abandoned`].
    Abandon {
        /// Any one key of the call.
        name: LockName,
        /// The call.
        ticket: Ticket,
    },
    /// Releases a lease.
    Release(LeaseRef),
    /// Lets a lease expire `ttl` from now, whatever its remaining time.
    Extend(LeaseRef, Ttl),
    /// Ends every lease on a key.
    ForceRelease {
        /// The key.
        name: LockName,
        /// Only the leases with these fences; all leases if empty.
        fences: Vec<Fence>,
    },
    /// Cancels an attempt whose outcome its caller does not know: see [`Withdrawn`].
    Withdraw {
        /// Any one key of the attempt.
        name: LockName,
        /// Its owner.
        owner: Owner,
        /// The attempt.
        attempt: Attempt,
    },
    /// The node of a waiting call has received a grant that another node made.
    Confirm {
        /// Any one key of the lease.
        name: LockName,
        /// The fence of the lease.
        fence: Fence,
    },
    /// Only what every step does: expired leases end, and claims that can be granted are granted.
    Settle(LockName),
}

/// Names a lease: by a key, its owner, and perhaps its fence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRef {
    /// Any one of its keys.
    pub name: LockName,
    /// The owner's token.
    pub owner: Owner,
    /// Needed if the owner has several leases on that key.
    pub fence: Option<Fence>,
}

/// The lease that a call asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// The keys, each with its share.
    pub locks: Locks,
    /// The owner of the lease.
    pub owner: Owner,
    /// The authenticated caller, if the server knows it.
    pub caller: Option<Caller>,
    /// What the lease is for, for people.
    pub note: Option<Note>,
    /// Repeated by a caller that did not receive the answer.
    pub attempt: Option<Attempt>,
    /// How long the lease lasts from its grant.
    pub ttl: Ttl,
}

/// One call for a lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acquire {
    /// The lease that it asks for.
    pub claim: Claim,
    /// Unique to this call.
    pub ticket: Ticket,
    /// The node that makes the call; `None` if the store has only one.
    pub node: Option<NodeId>,
    /// How to wait if it cannot be granted at once; `None` to be refused.
    pub wait: Option<Wait>,
}

/// How to wait.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wait {
    /// The longest wait.
    #[serde(with = "crate::serial::millis")]
    pub timeout: Duration,
    /// The most claims in each of its queues, this one included.
    pub max_queue: usize,
    /// Its former position and the end of its wait, for a call that rejoins its queues after they lost it.
    pub rejoin: Option<(Position, Timestamp)>,
}

/// The answer to [`Command::Acquire`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Acquired {
    /// It was free, or the call repeats the attempt that holds it.
    Granted(Lease),
    /// It cannot be granted now, and the call does not wait.
    Held(Obstacle),
    /// It cannot be granted now, and the call waits from now on.
    Queued {
        /// What blocks it.
        obstacle: Obstacle,
        /// Its position, with which it can rejoin.
        position: Position,
        /// When its wait ends.
        until: Timestamp,
    },
    /// It cannot be granted now, and the queue is full.
    QueueFull(Obstacle),
    /// The attempt was withdrawn before this call arrived; or this call rejoins, and a lease of its attempt has been granted and
    /// released meanwhile.
    Withdrawn,
    /// It rejoins after the end of its wait.
    TimedOut,
    /// The attempt was made before, with other keys or other kinds.
    AttemptMismatch,
    /// There are no fences left.
    FencesExhausted,
}

/// What blocks a claim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Obstacle {
    /// The keys that are held, or reserved for an earlier claim.
    pub blocked_by: Vec<LockName>,
    /// When it is worth trying again: no later than the first end of a blocking lease.
    pub retry_at: Timestamp,
}

/// The answer to [`Command::Abandon`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Abandoned {
    /// It held the lease, which has ended. The release is not remembered, because the owner never received the lease.
    Returned(Lease),
    /// It has left the queue, where this blocked it.
    LeftQueue(Obstacle),
    /// It had nothing, or shares its lease or position with another call of its attempt.
    Nothing,
}

/// The answer to [`Command::Withdraw`]: what the attempt had until then.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Withdrawn {
    /// A lease, which is now released.
    Held(Lease),
    /// A position in the queue, which it has left.
    Waiting,
    /// Nothing that is known. A call of it that arrives later is refused.
    Unknown,
    /// Nothing was done, because a [key](super::MAX_WITHDRAWALS) or the store remembers no more withdrawals.
    TooMany,
}

/// Why there is no lease to act on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NotHeld {
    /// It was never held, or has expired.
    NotFound,
    /// This owner's lease was released a short time ago, and the owner holds no other. Another owner may hold the lock.
    AlreadyReleased {
        /// Whether it was ended by force-release.
        forced: bool,
    },
    /// Another owner holds the lock, or the same owner with another fence.
    OwnedByAnother,
    /// The owner has several leases on this key, and no fence was named.
    Ambiguous,
}

/// How the wait of a call ended. Sent once for each call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wake {
    /// With a lease, whose ttl counts from this moment.
    Granted(Lease),
    /// Its timeout has passed, and this still blocked it.
    TimedOut(Obstacle),
    /// Its attempt was withdrawn.
    Withdrawn,
    /// There are no fences left, so nothing can be granted.
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
    /// When the first of them can be granted at the earliest, unless a lease ends early.
    pub retry_at: Timestamp,
}

impl Command {
    /// The keys that the command names.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &LockName> {
        let one = self.single();
        let several = match self {
            Self::Acquire(acquire) if one.is_none() => acquire.claim.locks.as_slice(),
            _ => &[],
        };
        let count = usize::from(one.is_some()) + several.len();
        (0..count).map(move |index| one.unwrap_or_else(|| &several[index].0))
    }

    /// The only key that the command names; `None` if there are several.
    pub fn single(&self) -> Option<&LockName> {
        match self {
            Self::Acquire(acquire) => match acquire.claim.locks.as_slice() {
                [(name, _)] => Some(name),
                _ => None,
            },
            Self::Release(lease_ref) | Self::Extend(lease_ref, _) => Some(&lease_ref.name),
            Self::Abandon { name, .. }
            | Self::ForceRelease { name, .. }
            | Self::Withdraw { name, .. }
            | Self::Confirm { name, .. }
            | Self::Settle(name) => Some(name),
        }
    }
}
