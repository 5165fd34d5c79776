//! What servers answer about locks: their status, holders and waiters, and pages of the list.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::Fence;

/// The state of a lock when the server answered.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "WireStatus")]
#[non_exhaustive]
pub enum LockStatus {
    /// At least one lease holds it.
    Held(LockInfo),
    /// No lease holds it.
    Free {
        /// How many wait for it. If any do, it is reserved for the first one, which still waits for another key.
        waiters: usize,
    },
}

impl LockStatus {
    /// Who holds it, if it is held.
    pub fn held(self) -> Option<LockInfo> {
        match self {
            Self::Held(info) => Some(info),
            Self::Free { .. } => None,
        }
    }

    /// Whether a lease holds it.
    pub fn is_held(&self) -> bool {
        matches!(self, Self::Held(_))
    }

    /// How many wait for it.
    pub fn waiters(&self) -> usize {
        match self {
            Self::Held(info) => info.waiters,
            Self::Free { waiters } => *waiters,
        }
    }
}

#[derive(Deserialize)]
struct WireStatus {
    locked: bool,
    #[serde(flatten)]
    rest: serde_json::Value,
}

impl TryFrom<WireStatus> for LockStatus {
    type Error = serde_json::Error;

    fn try_from(status: WireStatus) -> Result<Self, Self::Error> {
        if status.locked {
            return LockInfo::deserialize(status.rest).map(Self::Held);
        }
        let waiters = match status.rest.get("waiters") {
            Some(waiters) => usize::deserialize(waiters)?,
            None => 0,
        };
        Ok(Self::Free { waiters })
    }
}

/// A lock that is held, and by whom.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(from = "WireLock")]
#[non_exhaustive]
pub struct LockInfo {
    /// The full key of the lock.
    pub full_key: String,
    /// How it is held.
    pub kind: LockKind,
    /// The leases, the smallest fence first; 100 at most.
    pub holders: Vec<Holder>,
    /// How many leases there are.
    pub holder_count: usize,
    /// How many wait for it.
    pub waiters: usize,
}

/// A server with only the bare extension names one holder, and does not count.
#[derive(Deserialize)]
struct WireLock {
    key: String,
    #[serde(flatten)]
    kind: LockKind,
    #[serde(flatten)]
    first: Holder,
    #[serde(default)]
    holders: Vec<Holder>,
    holder_count: Option<usize>,
    #[serde(default)]
    waiters: usize,
}

impl From<WireLock> for LockInfo {
    fn from(lock: WireLock) -> Self {
        let holders = if lock.holders.is_empty() {
            vec![lock.first]
        } else {
            lock.holders
        };
        Self {
            full_key: lock.key,
            kind: lock.kind,
            holder_count: lock.holder_count.unwrap_or(holders.len()),
            holders,
            waiters: lock.waiters,
        }
    }
}

/// How a lock is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "WireKind")]
#[non_exhaustive]
pub enum LockKind {
    /// By one lease.
    Exclusive,
    /// By any number of shared leases.
    Shared,
    /// By at most `limit` leases.
    Limit {
        /// How many leases may hold it.
        limit: u32,
        /// How many more may hold it now.
        available: u32,
    },
}

#[derive(Deserialize)]
struct WireKind {
    mode: Option<String>,
    limit: Option<u32>,
    available: Option<u32>,
}

impl TryFrom<WireKind> for LockKind {
    type Error = String;

    fn try_from(kind: WireKind) -> Result<Self, Self::Error> {
        match (kind.mode.as_deref(), kind.limit) {
            (Some("exclusive") | None, None) => Ok(Self::Exclusive),
            (Some("shared"), None) => Ok(Self::Shared),
            (None, Some(limit)) => Ok(Self::Limit {
                limit,
                available: kind.available.unwrap_or_default(),
            }),
            (mode, limit) => Err(format!(
                "{mode:?} with the limit {limit:?} is not a kind of lock"
            )),
        }
    }
}

/// One lease on a lock.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(from = "WireHolder")]
#[non_exhaustive]
pub struct Holder {
    /// The owner token; or a hash of it, which only tells owners apart, for callers that may not see it.
    pub owner: String,
    /// Its fencing token; `None` where the server has only the bare extension.
    pub fence: Option<Fence>,
    /// The caller that took it, where the server knows its callers.
    pub caller: Option<String>,
    /// The note that its holder has given.
    pub note: Option<String>,
    /// When it was taken, by the server's clock.
    pub acquired_at: SystemTime,
    /// When it ends, by the server's clock.
    pub expires_at: SystemTime,
    /// How much time is left.
    pub ttl_remaining: Duration,
    /// The keys of a lock on several, as far as the caller may see them; empty for a lock on one.
    pub full_keys: Vec<String>,
}

#[derive(Deserialize)]
struct WireHolder {
    owner: String,
    fence: Option<Fence>,
    caller: Option<String>,
    note: Option<String>,
    #[serde(deserialize_with = "crate::wire_time::deserialize")]
    acquired_at: SystemTime,
    #[serde(deserialize_with = "crate::wire_time::deserialize")]
    expires_at: SystemTime,
    /// Whole seconds.
    ttl_remaining: u64,
    ttl_remaining_ms: Option<u64>,
    #[serde(default)]
    full_keys: Vec<String>,
}

impl From<WireHolder> for Holder {
    fn from(holder: WireHolder) -> Self {
        let exact = holder.ttl_remaining_ms.map(Duration::from_millis);
        Self {
            owner: holder.owner,
            fence: holder.fence,
            caller: holder.caller,
            note: holder.note,
            acquired_at: holder.acquired_at,
            expires_at: holder.expires_at,
            ttl_remaining: exact.unwrap_or(Duration::from_secs(holder.ttl_remaining)),
            full_keys: holder.full_keys,
        }
    }
}

impl LockInfo {
    /// The holder with the smallest fence: the only one, unless the lock is shared.
    pub fn holder(&self) -> Option<&Holder> {
        self.holders.first()
    }
}

/// A claim that waits for a lock.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct Waiter {
    /// Its position in the queue; 1 is next.
    pub position: usize,
    /// The owner token, or a hash of it.
    pub owner: String,
    /// The caller that asked, where the server knows its callers.
    pub caller: Option<String>,
    /// The note that its owner has given.
    pub note: Option<String>,
    /// Since when it waits, by the server's clock.
    #[serde(deserialize_with = "crate::wire_time::deserialize")]
    pub since: SystemTime,
    /// When it gives up, by the server's clock.
    #[serde(deserialize_with = "crate::wire_time::deserialize")]
    pub until: SystemTime,
}

/// What a withdrawn attempt had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Withdrawn {
    /// The lock, which is released now.
    Held,
    /// A position in the queue.
    Waiting,
    /// Nothing that the server knows of. A request of the attempt that arrives later is refused.
    Unknown,
}

/// A page of the list of held locks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Page<L = LockInfo> {
    /// The locks, in the order in which the server's store has them.
    pub locks: Vec<L>,
    /// Where the next page starts; `None` on the last one.
    pub cursor: Option<String>,
}

/// A lock that was extended.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct Extended {
    /// When it ends now, by the server's clock.
    #[serde(deserialize_with = "crate::wire_time::deserialize")]
    pub expires_at: SystemTime,
    /// Its fencing token, which is the same as before.
    pub fence: Fence,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A server with only the bare extension sends no more.
    #[test]
    fn a_status_without_holders_and_counts_is_read() {
        let status = json!({
            "key": "lock:k", "locked": true, "owner": "me", "ttl_remaining": 25,
            "acquired_at": "2026-01-15T10:30:00Z", "expires_at": "2026-01-15T10:30:30Z",
        });
        let status: LockStatus = serde_json::from_value(status).unwrap();
        assert_eq!(status.waiters(), 0);
        let info = status.held().unwrap();
        assert_eq!((info.kind, info.holder_count), (LockKind::Exclusive, 1));
        let holder = info.holder().unwrap();
        assert_eq!((holder.owner.as_str(), holder.fence), ("me", None));
        assert_eq!(holder.ttl_remaining, Duration::from_secs(25));
    }

    #[test]
    fn a_free_lock_may_have_waiters() {
        for (status, waiters) in [
            (json!({"key": "lock:k", "locked": false}), 0),
            (json!({"key": "lock:k", "locked": false, "waiters": 2}), 2),
        ] {
            let status: LockStatus = serde_json::from_value(status).unwrap();
            assert_eq!(status, LockStatus::Free { waiters });
        }
    }

    #[test]
    fn a_held_lock_without_an_owner_is_not_read() {
        let status = json!({"key": "lock:k", "locked": true});
        assert!(serde_json::from_value::<LockStatus>(status).is_err());
    }
}
