//! One grant of a lock to one owner.

use crate::{Caller, Fence, LockName, Owner, Timestamp};

/// The right to be the only one, from `acquired_at` until `expires_at` by the store's clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// Which lock.
    pub name: LockName,
    /// Whose token it takes to release or extend it.
    pub owner: Owner,
    /// Who took it, where the server knows its callers.
    pub caller: Option<Caller>,
    /// Grows with every grant: what the protected resource checks.
    pub fence: Fence,
    /// When it was granted.
    pub acquired_at: Timestamp,
    /// When it ends by itself.
    pub expires_at: Timestamp,
}

impl Lease {
    /// The one predicate that decides liveness everywhere (property S4).
    pub fn is_live(&self, now: Timestamp) -> bool {
        self.expires_at > now
    }

    /// Whether this is the lease that a caller means by its owner and, where given, its fence (property S3).
    pub(crate) fn belongs_to(&self, owner: &Owner, fence: Option<Fence>) -> bool {
        self.owner == *owner && fence.is_none_or(|fence| fence == self.fence)
    }
}
