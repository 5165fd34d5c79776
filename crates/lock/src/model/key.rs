//! All that is known of one key: its leases, its queue, and what it remembers.
//!
//! A lease or a waiting claim of several keys is written in each of them, and alike: every key can be read, stored and
//! restored by itself.

mod undo;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};

use self::undo::Undo;
use super::share::Taken;
use super::{Claim, NotHeld, Share};
use crate::{Attempt, Fence, Lease, LockName, NodeId, Owner, Ticket, Timestamp};

/// How many releases a key remembers. Of more the oldest are forgotten sooner.
pub const REMEMBERED_RELEASES: usize = 16;

/// How many withdrawn attempts a key remembers. With so many, no more can be withdrawn until the oldest is forgotten: each is a
/// promise that a call that is still on its way comes to nothing.
pub const MAX_WITHDRAWALS: usize = 1024;

/// How many calls of one attempt are told apart. No more can wait; a lease that was handed to more is never rolled back.
pub const MAX_CALLS: usize = 64;

/// One key. [`step`](super::step) changes it; stores read, write and restore it.
#[derive(Debug, Clone)]
pub struct Key {
    name: LockName,
    holders: Holders,
    taken: Taken,
    queue: VecDeque<Waiting>,
    /// How many leases and waiting claims here are of several keys.
    sets: usize,
    releases: Releases,
    withdrawals: Vec<Withdrawal>,
    /// Kept by stores that write what their steps did.
    undo: Option<Box<Undo>>,
}

/// The usual one takes no room on the heap.
type Releases = SmallVec<[Release; 1]>;

/// A lease on a key. One of several keys is here in each of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The lease.
    pub lease: Lease,
    /// The attempt that got it, which a repetition gets again.
    pub attempt: Option<Attempt>,
    /// The calls that were given it and can be rolled back; when the last of them is, so is the lease. None: it stays.
    pub calls: SmallVec<[Ticket; 1]>,
    /// When the grant is taken back, unless the node of its waiter has confirmed it.
    pub confirm_by: Option<Timestamp>,
}

impl Holder {
    /// When something has to be done about it.
    pub fn due(&self) -> Timestamp {
        let expires_at = self.lease.expires_at;
        self.confirm_by.map_or(expires_at, |at| at.min(expires_at))
    }

    /// One more call was given this lease.
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

/// A claim in a queue, with all calls that wait for it. One of several keys is here in the queue of each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// Where it stands.
    pub position: Position,
    /// What it asks for.
    pub claim: Arc<Claim>,
    /// Who waits for it: more than one when an attempt was repeated.
    pub calls: SmallVec<[Call; 1]>,
    /// Since when.
    pub since: Timestamp,
}

impl Waiting {
    /// When the last of its calls gives up.
    pub fn until(&self) -> Timestamp {
        let until = self.calls.iter().map(|call| call.until);
        until.max().unwrap_or(self.since)
    }
}

/// Where a claim stands in every one of its queues. The smaller one is served first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Position {
    /// Grows with every arrival; the time in microseconds where that is later.
    pub arrival: u64,
    /// The first call. Two claims may have the same arrival after one has asked for its position again.
    pub ticket: Ticket,
}

/// One call that waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// The call.
    pub ticket: Ticket,
    /// The node that made it; none where a store has only one.
    pub node: Option<NodeId>,
    /// When it gives up.
    pub until: Timestamp,
}

/// The memory of one release.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Release {
    /// Whose lease was released.
    pub owner: Owner,
    /// The attempt that had got it: a call of it that asks again for its position comes to nothing.
    pub attempt: Option<Attempt>,
    /// Which of them.
    pub fence: Fence,
    /// Until when that is remembered.
    pub until: Timestamp,
    /// Whether force-release took it away.
    pub forced: bool,
    /// Whether this was its owner's newest lease of this key. A call without a fence means the newest, so only that release
    /// answers it.
    pub is_newest: bool,
}

/// The memory of an attempt that was taken back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Withdrawal {
    /// Who made it.
    pub owner: Owner,
    /// Which one.
    pub attempt: Attempt,
    /// Until when that is remembered.
    pub until: Timestamp,
}

/// What a durable store keeps of a key. Waiting claims are not kept: their callers saw the connection break.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Kept {
    /// The leases.
    pub holders: Vec<Holder>,
    /// The releases that are remembered, the newest last.
    pub releases: Vec<Release>,
    /// The withdrawn attempts that are remembered, the newest last.
    pub withdrawals: Vec<Withdrawal>,
}

impl Key {
    /// A key that nobody has ever held.
    pub fn new(name: LockName) -> Self {
        Self {
            name,
            holders: Holders::None,
            taken: Taken::NOTHING,
            queue: VecDeque::new(),
            sets: 0,
            releases: Releases::new(),
            withdrawals: Vec::new(),
            undo: None,
        }
    }

    /// A key as a durable store finds it again, with nobody waiting. None if its leases do not fit together.
    pub fn restored(name: LockName, kept: Kept) -> Option<Self> {
        let mut key = Self::new(name);
        for holder in kept.holders {
            let is_new = key.holder(holder.lease.fence).is_none();
            if !is_new || !key.has_room_for(key.share(&holder.lease)) {
                return None;
            }
            key.insert(holder);
        }
        key.releases = kept.releases.into();
        key.withdrawals = kept.withdrawals;
        Some(key)
    }

    /// The name of the key.
    pub fn name(&self) -> &LockName {
        &self.name
    }

    /// The leases as of the last step, the smallest fence first. Some may have run out since: see [`Lease::is_live`].
    pub fn holders(&self) -> impl Iterator<Item = &Holder> {
        self.holders.iter()
    }

    /// How many leases there are.
    pub fn holder_count(&self) -> usize {
        self.holders.len()
    }

    /// How many leases have not run out at the time `now`.
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

    /// The releases that are remembered, the newest last. Some may be past their time.
    pub fn releases(&self) -> &[Release] {
        &self.releases
    }

    /// The withdrawn attempts that are remembered, the newest last. Some may be past their time.
    pub fn withdrawals(&self) -> &[Withdrawal] {
        &self.withdrawals
    }

    /// Whether a lease or a waiting claim here is of several keys, so that a step on this key can concern others.
    pub fn has_sets(&self) -> bool {
        self.sets > 0
    }

    /// Until when there is something to remember; none when there is nothing.
    pub fn remembers_until(&self) -> Option<Timestamp> {
        let releases = self.releases.last().map(|release| release.until);
        let withdrawals = self.withdrawals.last().map(|withdrawal| withdrawal.until);
        releases.max(withdrawals)
    }

    /// Forgets releases before their time. Withdrawals are promises, and stay.
    pub fn forget_releases(&mut self) {
        self.releases = Releases::new();
    }

    /// Forgets the releases and withdrawals whose time is over.
    pub fn forget_old(&mut self, now: Timestamp) {
        self.releases.retain(|release| release.until > now);
        self.withdrawals.retain(|withdrawal| withdrawal.until > now);
    }

    /// Whether nothing would be lost by forgetting this key.
    pub fn is_vacant(&self, now: Timestamp) -> bool {
        self.holders.len() == 0
            && self.queue.is_empty()
            && self.undo.is_none()
            && self.remembers_until().is_none_or(|until| until <= now)
    }

    /// The lease of this fence.
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
            // A lease is only ever kept under its own keys.
            _ => lease.locks.share_of(&self.name).unwrap_or(Share::EXCLUSIVE),
        }
    }

    /// The lease that something has to be done about first, and when.
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

    /// Whether a claim waits before this position.
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

    /// The lease that this attempt has.
    pub(super) fn held_by_attempt(&self, owner: &Owner, attempt: &Attempt) -> Option<&Holder> {
        self.holders
            .iter()
            .find(|holder| holder.attempt.as_ref() == Some(attempt) && holder.lease.owner == *owner)
    }

    /// The position that this attempt has.
    pub(super) fn awaited_by_attempt(&self, owner: &Owner, attempt: &Attempt) -> Option<&Waiting> {
        self.queue.iter().find(|waiting| {
            waiting.claim.attempt.as_ref() == Some(attempt) && waiting.claim.owner == *owner
        })
    }

    /// The lease that this call was given and can still roll back.
    pub(super) fn held_by_call(&self, ticket: Ticket) -> Option<&Holder> {
        self.holders
            .iter()
            .find(|holder| holder.calls.contains(&ticket))
    }

    /// The position at which this call waits.
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

    /// A lease begins.
    pub(super) fn begin(&mut self, holder: Holder) {
        // An owner whose new lease runs out must learn that, and not that an older one was released.
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

    /// Whether a lease that this attempt had was released, as far as that is remembered.
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

    /// What must be true of a key between two steps, as far as it shows in this key alone. Of a crowd, only its head is
    /// checked: a step must not cost more the more hold or wait.
    pub(super) fn check(&self) {
        if self.holders.len() <= 64 {
            let shares = self.holders.iter().map(|holder| self.share(&holder.lease));
            let mut taken = Taken::NOTHING;
            shares.for_each(|share| taken.add(share));
            debug_assert!(taken.is_as(self.taken), "{self:?}");
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

/// The leases on a key, by their fences. The usual one takes no room on the heap.
#[derive(Debug, Clone)]
enum Holders {
    None,
    One(Holder),
    Several(Box<Several>),
}

#[derive(Debug, Clone, Default)]
struct Several {
    by_fence: BTreeMap<Fence, Holder>,
    by_due: BTreeSet<(Timestamp, Fence)>,
}

impl Several {
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
                let mut several = Box::<Several>::default();
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
