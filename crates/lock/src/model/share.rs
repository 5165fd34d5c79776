//! How much of a key a claim takes.
//!
//! Exclusive, shared and limited locks share one arithmetic: a lease takes some units of a capacity. So the rest of the model
//! does not distinguish kinds.

use std::fmt;
use std::sync::Arc;

use crate::LockName;

/// The units that a lease takes of the capacity of a key.
///
/// Leases on a key are compatible if they have the same capacity and their units do not exceed it. An exclusive lease takes
/// all of `u32::MAX` units, a shared one takes one of them, and a limit of `n` takes one of `n`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Share {
    units: u32,
    capacity: u32,
}

/// The kind of a [`Share`], as the wire names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// One lease, and no other at the same time.
    Exclusive,
    /// Any number of shared leases.
    Shared,
    /// At most this many leases.
    Limit(u32),
}

impl Share {
    /// All of the key.
    pub const EXCLUSIVE: Self = Self {
        units: u32::MAX,
        capacity: u32::MAX,
    };
    /// One unit of a key that has enough for every caller.
    pub const SHARED: Self = Self {
        units: 1,
        capacity: u32::MAX,
    };
    /// The largest limit.
    pub const MAX_LIMIT: u32 = 10_000;

    /// One of `limit` leases; `None` unless the limit is from 1 to [`MAX_LIMIT`](Self::MAX_LIMIT).
    pub const fn limit(limit: u32) -> Option<Self> {
        if limit >= 1 && limit <= Self::MAX_LIMIT {
            Some(Self {
                units: 1,
                capacity: limit,
            })
        } else {
            None
        }
    }

    /// Its name on the wire.
    pub const fn kind(self) -> Kind {
        match (self.units, self.capacity) {
            (u32::MAX, _) => Kind::Exclusive,
            (_, u32::MAX) => Kind::Shared,
            (_, limit) => Kind::Limit(limit),
        }
    }
}

/// The units that the leases on one key take together.
#[derive(Debug, Clone, Copy)]
pub(super) struct Taken {
    units: u32,
    capacity: u32,
}

impl Taken {
    pub(super) const NOTHING: Self = Self {
        units: 0,
        capacity: 0,
    };

    pub(super) fn has_room_for(self, share: Share) -> bool {
        let is_same_kind = self.capacity == share.capacity;
        self.units == 0 || (is_same_kind && self.capacity - self.units >= share.units)
    }

    pub(super) fn add(&mut self, share: Share) {
        debug_assert!(self.has_room_for(share), "{share:?} does not fit {self:?}");
        self.capacity = share.capacity;
        self.units += share.units;
    }

    pub(super) fn remove(&mut self, share: Share) {
        self.units -= share.units;
    }

    /// Whether both have room for the same shares.
    pub(super) fn is_equivalent(self, other: Self) -> bool {
        self.units == other.units && (self.units == 0 || self.capacity == other.capacity)
    }
}

/// The keys of a claim or a lease: one, or up to [`MAX`](Self::MAX) different ones, each with its share.
///
/// Sorted by name. Cheap to clone; a single key is not on the heap.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Locks(Repr);

#[derive(Clone, PartialEq, Eq, Hash)]
enum Repr {
    One([(LockName, Share); 1]),
    Several(Arc<[(LockName, Share)]>),
}

/// Why a list of keys is not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidLocks {
    /// It is empty.
    #[error("must name at least one key")]
    Empty,
    /// More than [`Locks::MAX`].
    #[error("must name at most {max} keys, but there are {0}", max = Locks::MAX)]
    TooMany(usize),
    /// It has the same key twice.
    #[error("names `{0}` twice")]
    Twice(LockName),
}

impl Locks {
    /// The most keys of one claim.
    pub const MAX: usize = 16;

    /// One key.
    pub const fn one(name: LockName, share: Share) -> Self {
        Self(Repr::One([(name, share)]))
    }

    /// One key, exclusively.
    pub const fn exclusive(name: LockName) -> Self {
        Self::one(name, Share::EXCLUSIVE)
    }

    /// Different keys, in any order.
    pub fn new(mut locks: Vec<(LockName, Share)>) -> Result<Self, InvalidLocks> {
        if locks.len() > Self::MAX {
            return Err(InvalidLocks::TooMany(locks.len()));
        }
        locks.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        let twice = locks.windows(2).find(|pair| pair[0].0 == pair[1].0);
        if let Some([(name, _), _]) = twice {
            return Err(InvalidLocks::Twice(name.clone()));
        }
        match <[_; 1]>::try_from(locks) {
            Ok(one) => Ok(Self(Repr::One(one))),
            Err(locks) if locks.is_empty() => Err(InvalidLocks::Empty),
            Err(locks) => Ok(Self(Repr::Several(locks.into()))),
        }
    }

    /// The first key, by which the set is found.
    pub fn first(&self) -> &LockName {
        &self.as_slice()[0].0
    }

    /// The keys.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &LockName> + DoubleEndedIterator {
        self.as_slice().iter().map(|(name, _)| name)
    }

    /// The keys with their shares, in the order of their names.
    pub fn as_slice(&self) -> &[(LockName, Share)] {
        match &self.0 {
            Repr::One(one) => one,
            Repr::Several(several) => several,
        }
    }

    /// Whether there is more than one key.
    pub fn is_set(&self) -> bool {
        matches!(self.0, Repr::Several(_))
    }

    /// The share of this key; `None` if it is not among the keys.
    pub fn share_of(&self, name: &LockName) -> Option<Share> {
        let mut locks = self.as_slice().iter();
        locks.find(|(own, _)| own == name).map(|(_, share)| *share)
    }
}

impl fmt::Debug for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map()
            .entries(
                self.as_slice()
                    .iter()
                    .map(|(name, share)| (name.as_str(), share.kind())),
            )
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LockKey;

    fn name(key: &str) -> LockName {
        LockName::global(&LockKey::parse(key).unwrap())
    }

    fn fits(held: &[Share], share: Share) -> bool {
        let mut taken = Taken::NOTHING;
        for &held in held {
            taken.add(held);
        }
        taken.has_room_for(share)
    }

    #[test]
    fn only_leases_of_the_same_kind_are_compatible() {
        let (exclusive, shared) = (Share::EXCLUSIVE, Share::SHARED);
        let limit = |limit| Share::limit(limit).unwrap();
        for share in [exclusive, shared, limit(1), limit(3)] {
            assert!(fits(&[], share), "{share:?} on a free key");
            assert!(
                !fits(&[exclusive], share),
                "{share:?} beside an exclusive lease"
            );
        }
        assert!(fits(&[shared; 3], shared));
        assert!(!fits(&[shared], exclusive));
        assert!(!fits(&[shared], limit(3)));
        assert!(fits(&[limit(3); 2], limit(3)));
        assert!(!fits(&[limit(3); 3], limit(3)));
        assert!(!fits(&[limit(3)], limit(4)), "another limit");
        assert!(!fits(&[limit(3)], shared));
        assert!(!fits(&[limit(1)], limit(1)));
        assert!(!fits(&[limit(1)], exclusive));
    }

    #[test]
    fn a_key_that_is_free_again_takes_any_kind() {
        let mut taken = Taken::NOTHING;
        taken.add(Share::SHARED);
        taken.remove(Share::SHARED);
        assert!(taken.has_room_for(Share::EXCLUSIVE));
        assert!(taken.has_room_for(Share::limit(1).unwrap()));
    }

    #[test]
    fn shares_are_named_as_on_the_wire() {
        assert_eq!(Share::EXCLUSIVE.kind(), Kind::Exclusive);
        assert_eq!(Share::SHARED.kind(), Kind::Shared);
        assert_eq!(Share::limit(1).unwrap().kind(), Kind::Limit(1));
        assert_eq!(Share::limit(10_000).unwrap().kind(), Kind::Limit(10_000));
        assert_eq!(Share::limit(0), None);
        assert_eq!(Share::limit(10_001), None);
    }

    #[test]
    fn a_set_is_sorted_and_has_each_key_once() {
        let pair = |key: &str| (name(key), Share::EXCLUSIVE);
        let locks = Locks::new(vec![pair("b"), pair("a")]).unwrap();
        assert_eq!(locks, Locks::new(vec![pair("a"), pair("b")]).unwrap());
        assert_eq!(locks.first(), &name("a"));
        assert!(locks.is_set());
        let one = Locks::new(vec![pair("a")]).unwrap();
        assert_eq!(one, Locks::exclusive(name("a")));
        assert!(!one.is_set());
        assert_eq!(Locks::new(vec![]), Err(InvalidLocks::Empty));
        let twice = Locks::new(vec![pair("a"), pair("b"), pair("a")]);
        assert_eq!(twice, Err(InvalidLocks::Twice(name("a"))));
        let many = (0..17).map(|n| pair(&n.to_string())).collect();
        assert_eq!(Locks::new(many), Err(InvalidLocks::TooMany(17)));
    }
}
