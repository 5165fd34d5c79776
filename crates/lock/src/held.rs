//! The leases that guards of this process hold, so that a guard is notified when one of them ends early.
//!
//! A lease can end while its guard believes in it: by force-release, or by a release or a shorter `extend` that names its
//! owner's token. The service learns of that from the answer of the store, or from the store that another process did it, and looks here
//! whose guard it concerns.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldhash::quality::RandomState;

use crate::event::{EventKind, Reporter};
use crate::tenure::{Tenure, Term};
use crate::{Fence, Lease, LockName, Locks, Ticket};

/// Enough that threads seldom meet, and that one which is not running holds up few others.
const SHARDS: usize = 64;

/// How many ended leases of a key are kept for calls on their way. A guard that misses one is lost by its own clock.
const MAX_ENDED: usize = 64;

/// All of them. A grant costs three short critical sections, and no allocation beyond the growth of the maps.
#[derive(Debug)]
pub(crate) struct HeldLeases {
    shards: [Mutex<Shard>; SHARDS],
    hasher: RandomState,
    reporter: Arc<Reporter>,
}

/// The keys that have guards, or calls on their way.
#[derive(Debug, Default)]
struct Shard(HashMap<LockName, KeyGuards, RandomState>);

#[derive(Debug, Default)]
struct KeyGuards {
    guards: Guards,
    /// How many calls are on their way.
    calls: usize,
    /// The answer to one call may overtake the grant that it is about. So what concerns a key is kept as long as calls
    /// for it are on their way.
    news: Option<Box<News>>,
}

/// What has happened to the leases of a key.
#[derive(Debug, Default)]
struct News {
    /// The last leases that have ended.
    ended: VecDeque<Fence>,
    extended: Option<(Fence, Term)>,
}

/// By ticket, too: the calls of a repeated attempt are granted the same lease.
type GuardId = (Fence, Ticket);

/// The guards of one key. The usual one takes no room on the heap.
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

    /// A call for these keys is on its way.
    pub(crate) fn call_began(&self, locks: &Locks) {
        for name in locks.names() {
            let mut shard = self.shard(name);
            shard.0.entry(name.clone()).or_default().calls += 1;
        }
    }

    /// It has its outcome, which is not a lease.
    pub(crate) fn call_ended(&self, locks: &Locks) {
        for name in locks.names() {
            self.shard(name).change(name, KeyGuards::call_ended);
        }
    }

    /// A call has its outcome: a guard has this lease from now on.
    pub(crate) fn hold(&self, lease: &Lease, ticket: Ticket, tenure: &Tenure) {
        for name in lease.locks.names() {
            self.shard(name).change(name, |key| {
                if let Some(news) = &key.news {
                    if let Some((_, term)) =
                        news.extended.filter(|(fence, _)| *fence == lease.fence)
                    {
                        tenure.extend(&term);
                    }
                    if news.ended.contains(&lease.fence) && tenure.lose() {
                        self.report_lost(lease.name(), lease.fence);
                    }
                }
                key.guards.insert((lease.fence, ticket), tenure.clone());
                key.call_ended();
            });
        }
    }

    /// The guard has given its lease back, or is about to.
    pub(crate) fn let_go(&self, lease: &Lease, ticket: Ticket) {
        for name in lease.locks.names() {
            let mut shard = self.shard(name);
            shard.change(name, |key| key.guards.remove((lease.fence, ticket)));
        }
    }

    /// The store says that the lease of this key and fence is over.
    pub(crate) fn ended(&self, name: &LockName, fence: Fence) {
        let mut lost = 0;
        self.shard(name).change(name, |key| {
            if let Some(news) = key.news() {
                if news.ended.len() == MAX_ENDED {
                    news.ended.pop_front();
                }
                news.ended.push_back(fence);
            }
            lost = key.guards.of(fence).filter(|guard| guard.lose()).count();
        });
        for _ in 0..lost {
            self.report_lost(name, fence);
        }
    }

    /// The store says that the lease of this key and fence has another end.
    pub(crate) fn extended(&self, name: &LockName, fence: Fence, term: &Term) {
        self.shard(name).change(name, |key| {
            if let Some(news) = key.news() {
                news.extended = Some((fence, *term));
            }
            for guard in key.guards.of(fence) {
                guard.extend(term);
            }
        });
    }

    fn report_lost(&self, name: &LockName, fence: Fence) {
        self.reporter
            .report(EventKind::Lost, name, Some(fence), None);
    }

    /// No critical section can panic half-way, so a poisoned shard is as good as any.
    fn shard(&self, name: &LockName) -> MutexGuard<'_, Shard> {
        // The low bits choose the place inside the shard's own map.
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
    /// Changes a key that has anything, and forgets it when nothing is left.
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
    /// Where to keep what happens; none when no call is on its way, so that nothing need be kept.
    fn news(&mut self) -> Option<&mut News> {
        (self.calls > 0).then(|| &mut **self.news.get_or_insert_default())
    }

    fn call_ended(&mut self) {
        self.calls -= 1;
        if self.calls == 0 {
            self.news = None;
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

    fn of(&self, fence: Fence) -> impl Iterator<Item = &Tenure> {
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
            ends: until,
            until,
            expires_at: Timestamp::from_millis(seconds * 1_000),
            sent: Instant::now(),
            read: Timestamp::from_millis(1),
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
    async fn what_overtakes_a_grant_is_remembered_until_its_call_has_ended() {
        let held = leases();
        let (locks, name) = (lease(1).locks, lease(1).name().clone());
        held.call_began(&locks);
        held.call_began(&locks);
        held.extended(&name, lease(7).fence, &term(5));
        let tenure = Tenure::new(term(60), Instant::now());
        held.hold(&lease(7), Ticket(1), &tenure);
        assert_eq!(tenure.term().expires_at, Timestamp::from_millis(5_000));
        held.ended(&name, lease(8).fence);
        let next = Tenure::new(term(60), Instant::now());
        held.hold(&lease(8), Ticket(2), &next);
        assert!(next.is_lost());
        held.let_go(&lease(7), Ticket(1));
        held.let_go(&lease(8), Ticket(2));
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
        held.hold(&lease(7), Ticket(1), &first);
        held.hold(&lease(7), Ticket(u128::MAX), &second);
        held.hold(&lease(8), Ticket(2), &other);
        held.ended(lease(7).name(), lease(7).fence);
        let lost = [&first, &second, &other].map(Tenure::is_lost);
        assert_eq!(lost, [true, true, false]);
        assert_eq!(held.reporter.stats().count(EventKind::Lost), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_guard_is_found_whatever_others_of_its_key_have_come_and_gone() {
        let held = leases();
        let tenures: Vec<Tenure> = (0..5)
            .map(|_| Tenure::new(term(60), Instant::now()))
            .collect();
        let hold = |fence: u64| {
            held.call_began(&lease(fence).locks);
            let tenure = &tenures[usize::try_from(fence).unwrap() - 1];
            held.hold(&lease(fence), Ticket(fence.into()), tenure);
        };
        hold(1);
        hold(2);
        hold(3);
        held.let_go(&lease(1), Ticket(1));
        hold(4);
        held.let_go(&lease(3), Ticket(3));
        hold(5);
        for fence in 1..=5 {
            held.ended(lease(fence).name(), lease(fence).fence);
        }
        let lost: Vec<bool> = tenures.iter().map(Tenure::is_lost).collect();
        assert_eq!(lost, [false, true, false, true, true]);
        for fence in [2, 4, 5] {
            held.let_go(&lease(fence), Ticket(fence.into()));
        }
        assert!(held.is_empty(), "{held:?}");
    }
}
