//! A lease: one grant of a lock to one owner.

use serde::{Deserialize, Serialize};

use crate::model::Locks;
use crate::{Caller, Fence, LockName, Note, Owner, Timestamp};

/// The right to one or more keys, exclusive or shared, from `acquired_at` until `expires_at` by the store's clock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// The keys, each with its share.
    pub locks: Locks,
    /// The token that releases or extends it.
    pub owner: Owner,
    /// The authenticated caller, if the server knows it.
    pub caller: Option<Caller>,
    /// What it is for, for people.
    pub note: Option<Note>,
    /// Grows with every grant, and is checked by the protected resource.
    pub fence: Fence,
    /// When it was granted.
    pub acquired_at: Timestamp,
    /// When it expires.
    pub expires_at: Timestamp,
}

impl Lease {
    /// The only predicate of liveness (property S4).
    pub fn is_live(&self, now: Timestamp) -> bool {
        self.expires_at > now
    }

    /// Its first key, for a lease of one key, or where any of its keys will do.
    pub fn name(&self) -> &LockName {
        self.locks.first()
    }
}
