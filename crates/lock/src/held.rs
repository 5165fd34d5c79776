//! The leases that guards of this process hold, so that a guard is notified when its lease ends early.
//!
//! A lease can end before its guard expects it: by force-release, or by a release or a shorter `extend` with its owner's token.
//! The service learns of that from an answer of the store, or from a notification about another process, and finds the guards
//! of the lease here.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldhash::quality::RandomState;

use crate::event::{EventKind, Reporter};
use crate::tenure::{Tenure, Term};
use crate::{Fence, Lease, LockName, Locks, Ticket};

/// Enough that threads seldom contend, and that a preempted thread blocks few others.
const SHARDS: usize = 64;

/// How many ended leases of a key are kept for calls under way. A guard that misses one is lost at its local deadline.
const MAX_ENDED: usize = 64;

/// The registry. A grant costs three short critical sections, and no allocation beyond the growth of the maps.
#[derive(Debug)]
pub(crate) struct HeldLeases {
    shards: [Mutex<Shard>; SHARDS],
    hasher: RandomState,
    reporter: Arc<Reporter>,
}

/// The keys that have guards, or calls under way.
#[derive(Debug, Default)]
struct Shard(HashMap<LockName, KeyGuards, RandomState>);

#[derive(Debug, Default)]
struct KeyGuards {
    guards: Guards,
    /// How many calls are under way.
    calls: usize,
    /// The end of a lease may be known here before its grant. So changes are kept as long as calls are under way.
    early: Option<Box<EarlyChanges>>,
}

/// The changes of the leases of a key that may have overtaken their grants.
#[derive(Debug, Default)]
struct EarlyChanges {
    /// The last leases that have ended.
    ended: VecDeque<Fence>,
    extended: Option<(Fence, Term)>,
}

/// With the ticket, because the calls of a repeated attempt are granted the same lease.
type GuardId = (Fence, Ticket);

/// The guards of one key. A single guard, the usual case, is not on the heap.
#[derive(Debug, Default)]
struct Guards {
    one: Option<(GuardId, Tenure)>,
    others: BTreeMap<GuardId, Tenure>,
}

impl HeldLeases {
    pub(crate) fn new(reporter: Arc<Reporter>) -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            hasher: RandomState::default(),
            reporter,
        }
    }

    /// A call for these keys is under way.
    pub(crate) fn call_began(&self, locks: &Locks) {
        for name in locks.names() {
            let mut shard = self.shard(name);
            shard.0.entry(name.clone()).or_default().calls += 1;
        }
    }

    /// A call for these keys has ended without a lease.
    pub(crate) fn call_ended(&self, locks: &Locks) {
        for name in locks.names() {
            self.shard(name).change(name, KeyGuards::call_ended);
        }
    }

    /// A call has ended with this lease, which a guard holds from now on.
    pub(crate) fn add_guard(&self, lease: &Lease, ticket: Ticket, tenure: &Tenure) {
        for name in lease.locks.names() {
            self.shard(name).change(name, |key| {
                if let Some(early) = &key.early {
                    if let Some((_, term)) =
                        early.extended.filter(|(fence, _)| *fence == lease.fence)
                    {
                        tenure.extend(&term);
                    }
                    if early.ended.contains(&lease.fence) && tenure.lose() {
                        self.report_lost(lease.name(), lease.fence);
                    }
                }
                key.guards.insert((lease.fence, ticket), tenure.clone());
                key.call_ended();
            });
        }
    }

    /// The guard has released its lease, or is about to.
    pub(crate) fn remove_guard(&self, lease: &Lease, ticket: Ticket) {
        for name in lease.locks.names() {
            let mut shard = self.shard(name);
            shard.change(name, |key| key.guards.remove((lease.fence, ticket)));
        }
    }

    /// The lease of this key and fence has ended.
    pub(crate) fn ended(&self, name: &LockName, fence: Fence) {
        let mut lost = 0;
        self.shard(name).change(name, |key| {
            if let Some(early) = key.early_changes() {
                if early.ended.len() == MAX_ENDED {
                    early.ended.pop_front();
                }
                early.ended.push_back(fence);
            }
            lost = key
                .guards
                .with_fence(fence)
                .filter(|guard| guard.lose())
                .count();
        });
        for _ in 0..lost {
            self.report_lost(name, fence);
        }
    }

    /// The expiry of the lease of this key and fence was moved.
    pub(crate) fn extended(&self, name: &LockName, fence: Fence, term: &Term) {
        self.shard(name).change(name, |key| {
            if let Some(early) = key.early_changes() {
                early.extended = Some((fence, *term));
            }
            for guard in key.guards.with_fence(fence) {
                guard.extend(term);
            }
        });
    }

    fn report_lost(&self, name: &LockName, fence: Fence) {
        self.reporter
            .report(EventKind::Lost, name, Some(fence), None);
    }

    /// A poisoned shard is consistent, because no critical section can panic half-way.
    fn shard(&self, name: &LockName) -> MutexGuard<'_, Shard> {
        // The low bits choose the bucket in the shard's own map.
        let high_bits = self.hasher.hash_one(name) >> 32;
        let index = usize::try_from(high_bits).unwrap_or_default() % SHARDS;
        self.shards[index]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        let is_empty = |shard: &Mutex<Shard>| {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.0.is_empty()
        };
        self.shards.iter().all(is_empty)
    }
}

impl Shard {
    /// Changes a key that is present, and removes it when it becomes empty.
    fn change(&mut self, name: &LockName, change: impl FnOnce(&mut KeyGuards)) {
        if let Some(key) = self.0.get_mut(name) {
            change(key);
            if key.calls == 0 && key.guards.is_empty() {
                self.0.remove(name);
            }
        }
    }
}

impl KeyGuards {
    /// Where to record a change; `None` if no call is under way, so that none could miss it.
    fn early_changes(&mut self) -> Option<&mut EarlyChanges> {
        (self.calls > 0).then(|| &mut **self.early.get_or_insert_default())
    }

    fn call_ended(&mut self) {
        self.calls -= 1;
        if self.calls == 0 {
            self.early = None;
        }
    }
}

impl Guards {
    fn is_empty(&self) -> bool {
        self.one.is_none() && self.others.is_empty()
    }

    fn insert(&mut self, id: GuardId, tenure: Tenure) {
        if self.one.is_none() {
            self.one = Some((id, tenure));
        } else {
            self.others.insert(id, tenure);
        }
    }

    fn remove(&mut self, id: GuardId) {
        if self.one.as_ref().is_some_and(|(own, _)| *own == id) {
            self.one = None;
        } else {
            self.others.remove(&id);
        }
    }

    fn with_fence(&self, fence: Fence) -> impl Iterator<Item = &Tenure> {
        let one = self.one.iter().filter(move |((own, _), _)| *own == fence);
        let ids = (fence, Ticket(u128::MIN))..=(fence, Ticket(u128::MAX));
        let others = self.others.range(ids).map(|(_, guard)| guard);
        one.map(|(_, guard)| guard).chain(others)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::*;
    use crate::event::KeyStyle;
    use crate::{LockKey, Owner, Secret, Timestamp};

    fn lease(fence: u64) -> Lease {
        Lease {
            locks: Locks::exclusive(LockName::global(&LockKey::parse("k").unwrap())),
            owner: Owner::parse("a").unwrap(),
            caller: None,
            note: None,
            fence: Fence::new(fence).unwrap(),
            acquired_at: Timestamp::from_millis(0),
            expires_at: Timestamp::from_millis(60_000),
        }
    }

    fn term(seconds: u64) -> Term {
        let until = Instant::now() + Duration::from_secs(seconds);
        Term {
            ends_at: until,
            lost_at: until,
            expires_at: Timestamp::from_millis(seconds * 1_000),
            sent: Instant::now(),
            store_time: Timestamp::from_millis(1),
        }
    }

    fn leases() -> HeldLeases {
        HeldLeases::new(Arc::new(Reporter::new(
            KeyStyle::Plain,
            Secret::random(),
            None,
        )))
    }

    #[tokio::test(start_paused = true)]
    async fn changes_that_overtake_a_grant_are_remembered_until_its_call_has_ended() {
        let held = leases();
        let (locks, name) = (lease(1).locks, lease(1).name().clone());
        held.call_began(&locks);
        held.call_began(&locks);
        held.extended(&name, lease(7).fence, &term(5));
        let tenure = Tenure::new(term(60), Instant::now());
        held.add_guard(&lease(7), Ticket(1), &tenure);
        assert_eq!(tenure.term().expires_at, Timestamp::from_millis(5_000));
        held.ended(&name, lease(8).fence);
        let next = Tenure::new(term(60), Instant::now());
        held.add_guard(&lease(8), Ticket(2), &next);
        assert!(next.is_lost());
        held.remove_guard(&lease(7), Ticket(1));
        held.remove_guard(&lease(8), Ticket(2));
        assert!(held.is_empty(), "{held:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn all_guards_of_a_lease_are_notified_and_no_others() {
        let held = leases();
        let (first, second, other) = (
            Tenure::new(term(60), Instant::now()),
            Tenure::new(term(60), Instant::now()),
            Tenure::new(term(60), Instant::now()),
        );
        for _ in 0..3 {
            held.call_began(&lease(7).locks);
        }
        held.add_guard(&lease(7), Ticket(1), &first);
        held.add_guard(&lease(7), Ticket(u128::MAX), &second);
        held.add_guard(&lease(8), Ticket(2), &other);
        held.ended(lease(7).name(), lease(7).fence);
        let lost = [&first, &second, &other].map(Tenure::is_lost);
        assert_eq!(lost, [true, true, false]);
        assert_eq!(held.reporter.stats().count(EventKind::Lost), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_guard_is_found_after_others_of_its_key_were_added_and_removed() {
        let held = leases();
        let tenures: Vec<Tenure> = (0..5)
            .map(|_| Tenure::new(term(60), Instant::now()))
            .collect();
        let hold = |fence: u64| {
            held.call_began(&lease(fence).locks);
            let tenure = &tenures[usize::try_from(fence).unwrap() - 1];
            held.add_guard(&lease(fence), Ticket(fence.into()), tenure);
        };
        hold(1);
        hold(2);
        hold(3);
        held.remove_guard(&lease(1), Ticket(1));
        hold(4);
        held.remove_guard(&lease(3), Ticket(3));
        hold(5);
        for fence in 1..=5 {
            held.ended(lease(fence).name(), lease(fence).fence);
        }
        let lost: Vec<bool> = tenures.iter().map(Tenure::is_lost).collect();
        assert_eq!(lost, [false, true, false, true, true]);
        for fence in [2, 4, 5] {
            held.remove_guard(&lease(fence), Ticket(fence.into()));
        }
        assert!(held.is_empty(), "{held:?}");
    }
}
