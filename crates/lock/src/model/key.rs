//! The state of one key: its leases, its queue, and the releases and withdrawals that it remembers.
//!
//! A lease or a waiting claim of several keys is stored in full in each of them, so every key can be read, stored and restored
//! by itself.

mod rollback;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};

use self::rollback::RollbackLog;
use super::share::Taken;
use super::{Claim, NotHeld, Share};
use crate::{Attempt, Fence, Lease, LockName, NodeId, Owner, Ticket, Timestamp};

/// How many releases a key remembers. Beyond that, the oldest are forgotten early.
pub const REMEMBERED_RELEASES: usize = 16;

/// How many withdrawn attempts a key remembers. At this limit no more can be withdrawn until the oldest expires, because each is
/// a promise to refuse a call that is still under way.
pub const MAX_WITHDRAWALS: usize = 1024;

/// How many calls of one attempt a key tracks. No more can wait, and a lease that was granted to more is never rolled back.
pub const MAX_CALLS: usize = 64;

/// One key. [`step`](super::step) changes it; stores read, write and restore it.
#[derive(Debug, Clone)]
pub struct Key {
    name: LockName,
    holders: Holders,
    taken: Taken,
    queue: VecDeque<Waiting>,
    /// How many of the leases and waiting claims here have several keys.
    sets: usize,
    releases: Releases,
    withdrawals: Vec<Withdrawal>,
    /// `Some` while changes are recorded.
    rollback: Option<Box<RollbackLog>>,
}

/// A single release, the usual case, is not on the heap.
type Releases = SmallVec<[Release; 1]>;

/// A lease on a key. A lease of several keys is stored in each of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The lease.
    pub lease: Lease,
    /// The attempt that it was granted to. A repetition of the attempt receives the same lease.
    pub attempt: Option<Attempt>,
    /// The calls that it was granted to. When all of them are rolled back, the lease ends; if empty, it cannot be rolled back.
    pub calls: SmallVec<[Ticket; 1]>,
    /// When the lease ends, unless the node of its call confirms the grant before.
    pub confirm_by: Option<Timestamp>,
}

impl Holder {
    /// When it ends: at its expiry, or earlier if its grant is not confirmed.
    pub fn due(&self) -> Timestamp {
        let expires_at = self.lease.expires_at;
        self.confirm_by.map_or(expires_at, |at| at.min(expires_at))
    }

    /// The lease was granted to one more call.
    pub(super) fn add_call(&mut self, ticket: Ticket) {
        if self.calls.is_empty() || self.calls.contains(&ticket) {
            return;
        }
        if self.calls.len() >= MAX_CALLS {
            self.calls.clear();
        } else {
            self.calls.push(ticket);
        }
    }
}

/// A claim in a queue, with all calls that wait for it. A claim of several keys is in the queue of each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// Its position in each of its queues.
    pub position: Position,
    /// The lease that it waits for.
    pub claim: Arc<Claim>,
    /// The calls that wait for it: more than one if the attempt was repeated.
    pub calls: SmallVec<[Call; 1]>,
    /// When it began to wait.
    pub since: Timestamp,
}

impl Waiting {
    /// When the last of its calls times out.
    pub fn until(&self) -> Timestamp {
        let until = self.calls.iter().map(|call| call.until);
        until.max().unwrap_or(self.since)
    }
}

/// The position of a claim, the same in each of its queues. The smallest is served first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Position {
    /// The time of arrival in microseconds, or more, so that it is larger than that of every earlier claim.
    pub arrival: u64,
    /// The ticket of the first call. Two claims may have the same arrival after one of them has rejoined.
    pub ticket: Ticket,
}

/// A call that waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// Its ticket.
    pub ticket: Ticket,
    /// The node that made it; `None` if the store has only one.
    pub node: Option<NodeId>,
    /// When it times out.
    pub until: Timestamp,
}

/// A remembered release.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Release {
    /// The owner of the lease.
    pub owner: Owner,
    /// The attempt that the lease was granted to. A call of it that rejoins its queues is refused.
    pub attempt: Option<Attempt>,
    /// The fence of the lease.
    pub fence: Fence,
    /// Until when it is remembered.
    pub until: Timestamp,
    /// Whether it was a force-release.
    pub forced: bool,
    /// Whether this was its owner's newest lease of this key. A command without a fence means the newest lease, so only this
    /// release answers it.
    pub is_newest: bool,
}

/// A remembered withdrawal of an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Withdrawal {
    /// The owner of the attempt.
    pub owner: Owner,
    /// The attempt.
    pub attempt: Attempt,
    /// Until when it is remembered.
    pub until: Timestamp,
}

/// What a durable store writes of a key.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KeySnapshot {
    /// The leases.
    pub holders: Vec<Holder>,
    /// The releases that are remembered, the newest last.
    pub releases: Vec<Release>,
    /// The withdrawn attempts that are remembered, the newest last.
    pub withdrawals: Vec<Withdrawal>,
    /// The claims that wait, the next one first. Empty in a store of one process: after a restart, their callers have lost the
    /// connection.
    pub queue: Vec<Waiting>,
}

impl Key {
    /// A key that has never been held.
    pub fn new(name: LockName) -> Self {
        Self {
            name,
            holders: Holders::None,
            taken: Taken::NOTHING,
            queue: VecDeque::new(),
            sets: 0,
            releases: Releases::new(),
            withdrawals: Vec::new(),
            rollback: None,
        }
    }

    /// Restores a key; `None` if its leases are not compatible, or its queue is not in order.
    pub fn restored(name: LockName, snapshot: KeySnapshot) -> Option<Self> {
        let mut key = Self::new(name);
        for holder in snapshot.holders {
            let is_new = key.holder(holder.lease.fence).is_none();
            if !is_new || !key.has_room_for(key.share(&holder.lease)) {
                return None;
            }
            key.insert(holder);
        }
        let is_sorted = |one: &Waiting, next: &Waiting| one.position < next.position;
        if !snapshot.queue.is_sorted_by(is_sorted) {
            return None;
        }
        let sets = snapshot.queue.iter().filter(|it| it.claim.locks.is_set());
        key.sets += sets.count();
        key.queue = snapshot.queue.into();
        key.releases = snapshot.releases.into();
        key.withdrawals = snapshot.withdrawals;
        Some(key)
    }

    /// The name of the key.
    pub fn name(&self) -> &LockName {
        &self.name
    }

    /// The leases as of the last step, the smallest fence first. Some may have expired since: see [`Lease::is_live`].
    pub fn holders(&self) -> impl Iterator<Item = &Holder> {
        self.holders.iter()
    }

    /// How many leases there are.
    pub fn holder_count(&self) -> usize {
        self.holders.len()
    }

    /// How many leases are live at the time `now`.
    pub fn live_count(&self, now: Timestamp) -> usize {
        match self.first_due() {
            Some((due, _)) if due <= now => {
                let leases = self.holders().map(|holder| &holder.lease);
                leases.filter(|lease| lease.is_live(now)).count()
            }
            _ => self.holder_count(),
        }
    }

    /// The claims that wait, the next one first.
    pub fn queue(&self) -> &VecDeque<Waiting> {
        &self.queue
    }

    /// The releases that are remembered, the newest last. Some may have expired.
    pub fn releases(&self) -> &[Release] {
        &self.releases
    }

    /// The withdrawn attempts that are remembered, the newest last. Some may have expired.
    pub fn withdrawals(&self) -> &[Withdrawal] {
        &self.withdrawals
    }

    /// Whether a lease or a waiting claim here has several keys, so that a step on this key may change others.
    pub fn has_sets(&self) -> bool {
        self.sets > 0
    }

    /// Until when any release or withdrawal is remembered; `None` if there is none.
    pub fn remembers_until(&self) -> Option<Timestamp> {
        let releases = self.releases.last().map(|release| release.until);
        let withdrawals = self.withdrawals.last().map(|withdrawal| withdrawal.until);
        releases.max(withdrawals)
    }

    /// Forgets all releases early. Withdrawals stay, because they are promises.
    pub fn forget_releases(&mut self) {
        self.releases = Releases::new();
    }

    /// Forgets the releases and withdrawals that have expired.
    pub fn forget_old(&mut self, now: Timestamp) {
        self.releases.retain(|release| release.until > now);
        self.withdrawals.retain(|withdrawal| withdrawal.until > now);
    }

    /// Whether the key has no state, so that it can be dropped.
    pub fn is_vacant(&self, now: Timestamp) -> bool {
        self.holders.len() == 0
            && self.queue.is_empty()
            && self.rollback.is_none()
            && self.remembers_until().is_none_or(|until| until <= now)
    }

    /// The lease with this fence.
    pub fn holder(&self, fence: Fence) -> Option<&Holder> {
        self.holders.get(fence)
    }

    pub(super) fn change_holder(&mut self, fence: Fence, change: impl FnOnce(&mut Holder)) {
        self.record_lease(fence);
        self.holders.change(fence, change);
    }

    fn insert(&mut self, holder: Holder) {
        self.record_no_lease(holder.lease.fence);
        self.sets += usize::from(holder.lease.locks.is_set());
        self.taken.add(self.share(&holder.lease));
        self.holders.insert(holder);
    }

    #[inline]
    pub(super) fn remove(&mut self, fence: Fence) -> Option<Holder> {
        self.record_lease(fence);
        let holder = self.holders.remove(fence)?;
        self.sets -= usize::from(holder.lease.locks.is_set());
        self.taken.remove(self.share(&holder.lease));
        Some(holder)
    }

    fn share(&self, lease: &Lease) -> Share {
        match lease.locks.as_slice() {
            [(_, share)] => *share,
            // A lease is only stored in its own keys.
            _ => lease.locks.share_of(&self.name).unwrap_or(Share::EXCLUSIVE),
        }
    }

    /// The lease that is due first, and when.
    pub(super) fn first_due(&self) -> Option<(Timestamp, Fence)> {
        self.holders.first_due()
    }

    pub(super) fn has_room_for(&self, share: Share) -> bool {
        self.taken.has_room_for(share)
    }

    pub(super) fn next(&self) -> Option<&Waiting> {
        self.queue.front()
    }

    /// When the last claim in this queue arrived.
    pub(super) fn last_arrival(&self) -> Option<u64> {
        self.queue.back().map(|waiting| waiting.position.arrival)
    }

    /// Whether a claim waits before this position, which is behind all others if it is `None`.
    pub(super) fn has_before(&self, position: Option<Position>) -> bool {
        match (self.queue.front(), position) {
            (None, _) => false,
            (Some(_), None) => true,
            (Some(first), Some(position)) => first.position < position,
        }
    }

    pub(super) fn count_before(&self, position: Position) -> usize {
        self.queue
            .partition_point(|waiting| waiting.position < position)
    }

    pub(super) fn enqueue(&mut self, waiting: Waiting) {
        self.record_no_claim(waiting.position);
        self.sets += usize::from(waiting.claim.locks.is_set());
        let index = self.count_before(waiting.position);
        self.queue.insert(index, waiting);
    }

    pub(super) fn dequeue(&mut self, position: Position) -> Option<Waiting> {
        let index = self.find(position)?;
        self.record_claim(index);
        let waiting = self.queue.remove(index)?;
        self.sets -= usize::from(waiting.claim.locks.is_set());
        Some(waiting)
    }

    pub(super) fn waiting(&self, position: Position) -> Option<&Waiting> {
        self.queue.get(self.find(position)?)
    }

    pub(super) fn waiting_mut(&mut self, position: Position) -> Option<&mut Waiting> {
        let index = self.find(position)?;
        self.record_claim(index);
        self.queue.get_mut(index)
    }

    fn find(&self, position: Position) -> Option<usize> {
        let by_position = |waiting: &Waiting| waiting.position.cmp(&position);
        self.queue.binary_search_by(by_position).ok()
    }

    /// The lease that was granted to this attempt.
    pub(super) fn held_by_attempt(&self, owner: &Owner, attempt: &Attempt) -> Option<&Holder> {
        self.holders
            .iter()
            .find(|holder| holder.attempt.as_ref() == Some(attempt) && holder.lease.owner == *owner)
    }

    /// The claim of this attempt, if it waits.
    pub(super) fn awaited_by_attempt(&self, owner: &Owner, attempt: &Attempt) -> Option<&Waiting> {
        self.queue.iter().find(|waiting| {
            waiting.claim.attempt.as_ref() == Some(attempt) && waiting.claim.owner == *owner
        })
    }

    /// The lease that was granted to this call, if the call can still be rolled back.
    pub(super) fn held_by_call(&self, ticket: Ticket) -> Option<&Holder> {
        self.holders
            .iter()
            .find(|holder| holder.calls.contains(&ticket))
    }

    /// The claim that this call waits for.
    pub(super) fn awaited_by_call(&self, ticket: Ticket) -> Option<&Waiting> {
        let has = |waiting: &&Waiting| waiting.calls.iter().any(|call| call.ticket == ticket);
        self.queue.iter().find(has)
    }

    /// The lease that an owner means (property S3).
    pub(super) fn held_by(
        &self,
        owner: &Owner,
        fence: Option<Fence>,
        now: Timestamp,
    ) -> Result<&Lease, NotHeld> {
        if let Some(fence) = fence {
            let holder = self.holders.get(fence);
            let holder = holder.filter(|holder| holder.lease.owner == *owner);
            return match holder {
                Some(holder) => Ok(&holder.lease),
                None => Err(self.why_not_held(owner, Some(fence), now)),
            };
        }
        let leases = self.holders.iter().map(|holder| &holder.lease);
        let mut own = leases.filter(|lease| lease.owner == *owner);
        match (own.next(), own.next()) {
            (Some(lease), None) => Ok(lease),
            (Some(_), Some(_)) => Err(NotHeld::Ambiguous),
            (None, _) => Err(self.why_not_held(owner, None, now)),
        }
    }

    fn why_not_held(&self, owner: &Owner, fence: Option<Fence>, now: Timestamp) -> NotHeld {
        let mut owners = self.holders.iter().map(|holder| &holder.lease.owner);
        if owners.any(|holder| holder == owner) {
            return NotHeld::OwnedByAnother;
        }
        let is_meant = |release: &&Release| {
            release.until > now
                && release.owner == *owner
                && fence.map_or(release.is_newest, |fence| fence == release.fence)
        };
        match self.releases.iter().rfind(is_meant) {
            Some(&Release { forced, .. }) => NotHeld::AlreadyReleased { forced },
            None if self.holders.len() > 0 => NotHeld::OwnedByAnother,
            None => NotHeld::NotFound,
        }
    }

    pub(super) fn add_lease(&mut self, holder: Holder) {
        // If the new lease expires, its owner must learn that, and not that an older one was released.
        let owner = &holder.lease.owner;
        let is_outdated = |release: &Release| release.is_newest && release.owner == *owner;
        if self.releases.iter().any(is_outdated) {
            self.record_releases();
            for release in &mut self.releases {
                release.is_newest &= release.owner != *owner;
            }
        }
        self.insert(holder);
    }

    pub(super) fn remember_release(&mut self, mut release: Release, now: Timestamp) {
        self.record_releases();
        self.releases.retain(|release| release.until > now);
        let is_newer = |owner: &Owner, fence| *owner == release.owner && fence > release.fence;
        let mut held = self.holders.iter().map(|holder| &holder.lease);
        release.is_newest = !held.any(|lease| is_newer(&lease.owner, lease.fence))
            && !self.releases.iter().any(|it| is_newer(&it.owner, it.fence));
        if self.releases.len() == REMEMBERED_RELEASES {
            self.releases.remove(0);
        }
        self.releases.push(release);
    }

    /// Whether a remembered release is of a lease that was granted to this attempt.
    pub(super) fn is_released(&self, owner: &Owner, attempt: &Attempt, now: Timestamp) -> bool {
        self.releases.iter().any(|known| {
            known.until > now && known.attempt.as_ref() == Some(attempt) && known.owner == *owner
        })
    }

    pub(super) fn remember_withdrawal(&mut self, withdrawal: Withdrawal, now: Timestamp) {
        self.record_withdrawals();
        self.withdrawals.retain(|known| {
            known.until > now
                && (known.owner != withdrawal.owner || known.attempt != withdrawal.attempt)
        });
        self.withdrawals.push(withdrawal);
    }

    /// Whether one more attempt can be withdrawn.
    pub(super) fn can_withdraw(&mut self, now: Timestamp) -> bool {
        self.withdrawals.retain(|known| known.until > now);
        self.withdrawals.len() < MAX_WITHDRAWALS
    }

    pub(super) fn is_withdrawn(&self, owner: &Owner, attempt: &Attempt, now: Timestamp) -> bool {
        self.withdrawals
            .iter()
            .any(|known| known.until > now && known.attempt == *attempt && known.owner == *owner)
    }

    /// Checks the invariants that concern this key alone. Only the first leases and claims are checked, so that the cost of a
    /// step does not grow with their number.
    pub(super) fn check(&self) {
        if self.holders.len() <= 64 {
            let shares = self.holders.iter().map(|holder| self.share(&holder.lease));
            let mut taken = Taken::NOTHING;
            shares.for_each(|share| taken.add(share));
            debug_assert!(taken.is_equivalent(self.taken), "{self:?}");
        }
        let head = || self.queue.iter().take(64);
        let is_sorted = head().is_sorted_by(|one, next| one.position < next.position);
        debug_assert!(is_sorted, "{self:?}");
        debug_assert!(head().all(|waiting| !waiting.calls.is_empty()), "{self:?}");
    }
}

impl Waiting {
    pub(super) fn new(position: Position, claim: Claim, call: Call, since: Timestamp) -> Self {
        Self {
            position,
            claim: Arc::new(claim),
            calls: smallvec![call],
            since,
        }
    }
}

/// The leases on a key, by their fences. A single lease, the usual case, is not on the heap.
#[derive(Debug, Clone)]
enum Holders {
    None,
    One(Holder),
    Several(Box<IndexedHolders>),
}

#[derive(Debug, Clone, Default)]
struct IndexedHolders {
    by_fence: BTreeMap<Fence, Holder>,
    by_due: BTreeSet<(Timestamp, Fence)>,
}

impl IndexedHolders {
    fn insert(&mut self, holder: Holder) {
        let fence = holder.lease.fence;
        self.by_due.insert((holder.due(), fence));
        self.by_fence.insert(fence, holder);
    }

    fn remove(&mut self, fence: Fence) -> Option<Holder> {
        let holder = self.by_fence.remove(&fence)?;
        self.by_due.remove(&(holder.due(), fence));
        Some(holder)
    }
}

impl Holders {
    fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::One(_) => 1,
            Self::Several(several) => several.by_fence.len(),
        }
    }

    fn iter(&self) -> impl Iterator<Item = &Holder> {
        let (one, several) = match self {
            Self::None => (None, None),
            Self::One(one) => (Some(one), None),
            Self::Several(several) => (None, Some(several.by_fence.values())),
        };
        one.into_iter().chain(several.into_iter().flatten())
    }

    fn get(&self, fence: Fence) -> Option<&Holder> {
        match self {
            Self::None => None,
            Self::One(one) => Some(one).filter(|one| one.lease.fence == fence),
            Self::Several(several) => several.by_fence.get(&fence),
        }
    }

    fn first_due(&self) -> Option<(Timestamp, Fence)> {
        match self {
            Self::None => None,
            Self::One(one) => Some((one.due(), one.lease.fence)),
            Self::Several(several) => several.by_due.first().copied(),
        }
    }

    fn change(&mut self, fence: Fence, change: impl FnOnce(&mut Holder)) {
        match self {
            Self::One(one) if one.lease.fence == fence => change(one),
            Self::None | Self::One(_) => {}
            Self::Several(several) => {
                if let Some(mut holder) = several.remove(fence) {
                    change(&mut holder);
                    several.insert(holder);
                }
            }
        }
    }

    fn insert(&mut self, holder: Holder) {
        match self {
            Self::None => *self = Self::One(holder),
            Self::One(_) => {
                let mut several = Box::<IndexedHolders>::default();
                if let Self::One(one) = std::mem::replace(self, Self::None) {
                    several.insert(one);
                }
                several.insert(holder);
                *self = Self::Several(several);
            }
            Self::Several(several) => several.insert(holder),
        }
    }

    fn remove(&mut self, fence: Fence) -> Option<Holder> {
        match self {
            Self::Several(several) => {
                let removed = several.remove(fence);
                if several.by_fence.is_empty() {
                    *self = Self::None;
                }
                removed
            }
            Self::One(one) if one.lease.fence == fence => {
                let Self::One(one) = std::mem::replace(self, Self::None) else {
                    return None;
                };
                Some(one)
            }
            Self::None | Self::One(_) => None,
        }
    }
}
