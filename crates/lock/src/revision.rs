//! The revision of a key, by which a watcher says which state it knows.

use std::fmt;

use crate::LockStatus;

/// A digest of the live leases on a key, which changes whenever one begins or ends. All free keys have the same one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Revision(u64);

impl Revision {
    /// The revision of a free key.
    pub const FREE: Self = Self(0);

    /// The revision of a status. It does not depend on waiters, nor on when leases expire.
    ///
    /// The number of leases and the largest fence tell all states apart: a lease that begins has the largest fence, and without one
    /// that begins the number only falls.
    pub fn of(status: &LockStatus) -> Self {
        let Some(last_fence) = status.last_fence else {
            return Self::FREE;
        };
        let count = u64::try_from(status.holder_count).unwrap_or(u64::MAX);
        // Any odd factor: the result is opaque, and not taken for a number that means something.
        let mixed = last_fence.number().wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Self((mixed ^ count.rotate_left(48)).max(1))
    }

    /// Reads a revision as [`Display`](fmt::Display) writes it.
    pub fn parse(text: &str) -> Option<Self> {
        let is_digit = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let is_hex = text.len() == 16 && text.bytes().all(is_digit);
        is_hex.then(|| u64::from_str_radix(text, 16).ok().map(Self))?
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}
