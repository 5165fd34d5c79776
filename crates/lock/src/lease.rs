//! One grant of a lock to one owner.

use serde::{Deserialize, Serialize};

use crate::model::Locks;
use crate::{Caller, Fence, LockName, Note, Owner, Timestamp};

/// The right to one key or several, as the only one or beside others, from `acquired_at` until `expires_at` by the store's clock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Which keys, and how much of each.
    pub locks: Locks,
    /// Whose token it takes to release or extend it.
    pub owner: Owner,
    /// Who took it, where the server knows its callers.
    pub caller: Option<Caller>,
    /// What it is for, for people.
    pub note: Option<Note>,
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

    /// Its first key: that of a lease with one key, and any one where that is enough.
    pub fn name(&self) -> &LockName {
        self.locks.first()
    }
}
