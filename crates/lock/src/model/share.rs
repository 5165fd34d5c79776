//! Kinds of locks, as one idea: how much of a key a claim takes.

use std::fmt;
use std::sync::Arc;

use crate::LockName;

/// How much of a key a lease takes, and of how much.
///
/// Leases fit together on a key when they divide it alike (the same `of`) and take no more than all of it. So every kind
/// of lock is one arithmetic: exclusive takes all of very many, shared one of very many, a limit of `n` one of `n`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Share {
    take: u32,
    of: u32,
}

/// What a [`Share`] is called on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// One lease, and no other beside it.
    Exclusive,
    /// Any number of shared leases.
    Shared,
    /// At most so many leases.
    Limit(u32),
}

impl Share {
    /// All of the key.
    pub const EXCLUSIVE: Self = Self {
        take: u32::MAX,
        of: u32::MAX,
    };
    /// A part of the key, of which there are enough for everybody.
    pub const SHARED: Self = Self {
        take: 1,
        of: u32::MAX,
    };
    /// The largest limit.
    pub const MAX_LIMIT: u32 = 10_000;

    /// One of `limit` leases; none when that is not from 1 to [`MAX_LIMIT`](Self::MAX_LIMIT).
    pub const fn limit(limit: u32) -> Option<Self> {
        if limit >= 1 && limit <= Self::MAX_LIMIT {
            Some(Self { take: 1, of: limit })
        } else {
            None
        }
    }

    /// How the wire names it.
    pub const fn kind(self) -> Kind {
        match (self.take, self.of) {
            (u32::MAX, _) => Kind::Exclusive,
            (_, u32::MAX) => Kind::Shared,
            (_, limit) => Kind::Limit(limit),
        }
    }
}

/// What the leases on one key take together.
#[derive(Debug, Clone, Copy)]
pub(super) struct Taken {
    sum: u32,
    of: u32,
}

impl Taken {
    pub(super) const NOTHING: Self = Self { sum: 0, of: 0 };

    pub(super) fn has_room_for(self, share: Share) -> bool {
        let is_alike = self.of == share.of;
        self.sum == 0 || (is_alike && self.of - self.sum >= share.take)
    }

    pub(super) fn add(&mut self, share: Share) {
        debug_assert!(self.has_room_for(share), "{share:?} beside {self:?}");
        self.of = share.of;
        self.sum += share.take;
    }

    pub(super) fn remove(&mut self, share: Share) {
        self.sum -= share.take;
    }

    /// Whether both leave the same room.
    pub(super) fn is_as(self, other: Self) -> bool {
        self.sum == other.sum && (self.sum == 0 || self.of == other.of)
    }
}

/// What a claim or a lease is about: one key, or up to [`MAX`](Self::MAX) different ones, each with its share.
///
/// In the order of their names. Cheap to clone, and one key takes no room on the heap.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Locks(Set);

#[derive(Clone, PartialEq, Eq, Hash)]
enum Set {
    One([(LockName, Share); 1]),
    Several(Arc<[(LockName, Share)]>),
}

/// Why some keys are not a set that can be locked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidLocks {
    /// None at all.
    #[error("must name at least one key")]
    Empty,
    /// More than [`Locks::MAX`].
    #[error("must name at most {max} keys, but there are {0}", max = Locks::MAX)]
    TooMany(usize),
    /// The same key twice.
    #[error("names `{0}` twice")]
    Twice(LockName),
}

impl Locks {
    /// How many keys one claim can have.
    pub const MAX: usize = 16;

    /// One key.
    pub const fn one(name: LockName, share: Share) -> Self {
        Self(Set::One([(name, share)]))
    }

    /// One key of which everything is taken.
    pub const fn exclusive(name: LockName) -> Self {
        Self::one(name, Share::EXCLUSIVE)
    }

    /// A set of different keys, in any order.
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
            Ok(one) => Ok(Self(Set::One(one))),
            Err(locks) if locks.is_empty() => Err(InvalidLocks::Empty),
            Err(locks) => Ok(Self(Set::Several(locks.into()))),
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
            Set::One(one) => one,
            Set::Several(several) => several,
        }
    }

    /// Whether there is more than one key.
    pub fn is_set(&self) -> bool {
        matches!(self.0, Set::Several(_))
    }

    /// What is taken of this key.
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
    fn kinds_fit_together_as_they_should() {
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
    fn a_key_that_was_left_takes_any_kind() {
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
