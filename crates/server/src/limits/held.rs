//! The limit of locks for each caller: how many it holds, or waits for, through this node.
//!
//! A call reserves permits for its keys before it asks the store. A grant turns them into held keys, which count until their lease
//! ends.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forrst_lock::{Attempt, Caller as CallerName, Fence, Lease, LockName, Locks, Owner, Share};
use tokio::time::Instant;

/// The locks that each caller has acquired through this node. A lease counts once for each of its keys.
///
/// A lock that is released through another node counts until its lease would have expired, or until the caller takes that key
/// exclusively again.
#[derive(Debug)]
pub(crate) struct HeldLocks {
    max: Option<usize>,
    callers: Mutex<CallerTallies>,
}

#[derive(Debug, Default)]
struct CallerTallies {
    tallies: HashMap<Option<CallerName>, Tally>,
    /// How many calls have reserved permits since the last eviction.
    calls: u32,
}

/// How many calls reserve permits between two evictions.
const EVICT_EVERY: u32 = 1024;

impl CallerTallies {
    fn tally(&mut self, caller: Option<&CallerName>) -> &mut Tally {
        self.tallies.entry(caller.cloned()).or_default()
    }

    /// Changes the tally of a caller, if it has one, and removes it when it is empty.
    fn change(&mut self, caller: &Option<CallerName>, change: impl FnOnce(&mut Tally)) {
        if let Some(tally) = self.tallies.get_mut(caller) {
            change(tally);
            if tally.is_empty() {
                self.tallies.remove(caller);
            }
        }
    }

    /// Periodically removes expired leases, and callers without anything else.
    fn evict(&mut self) {
        self.calls += 1;
        if self.calls < EVICT_EVERY {
            return;
        }
        self.calls = 0;
        let now = Instant::now();
        self.tallies.retain(|_, tally| {
            tally.forget_expired(now);
            !tally.is_empty()
        });
    }
}

#[derive(Debug, Default)]
struct Tally {
    /// The number of keys that calls have reserved, and not been granted yet.
    reserved: usize,
    /// The attempts with calls under way.
    attempts: HashMap<AttemptId, PendingAttempt>,
    /// Each key of each lease.
    held: BTreeMap<(LockName, Fence), HeldKey>,
}

/// What identifies an attempt in the store.
type AttemptId = (Locks, Owner, Attempt);

/// The calls of an attempt share one queue position, so its keys are reserved once, until the last call has ended.
#[derive(Debug, Default)]
struct PendingAttempt {
    calls: usize,
    reserved: usize,
}

#[derive(Debug)]
struct HeldKey {
    locks: Locks,
    owner: Owner,
    attempt: Option<Attempt>,
    until: Instant,
}

impl Tally {
    fn is_empty(&self) -> bool {
        self.reserved == 0 && self.attempts.is_empty() && self.held.is_empty()
    }

    fn has_room_for(&self, keys: usize, max: usize) -> bool {
        self.reserved + self.held.len() + keys <= max
    }

    /// The leases on a key.
    fn leases_on(&self, name: &LockName) -> impl Iterator<Item = (Fence, &HeldKey)> {
        let all = (name.clone(), Fence::FIRST)..=(name.clone(), Fence::MAX);
        let on_it = self.held.range(all);
        on_it.map(|((_, fence), held)| (*fence, held))
    }

    fn knows(&self, attempt: &AttemptId) -> bool {
        let (locks, owner, name) = attempt;
        let is_it = |held: &HeldKey| {
            held.attempt.as_ref() == Some(name) && held.owner == *owner && held.locks == *locks
        };
        let mut held = self.leases_on(locks.first());
        self.attempts.contains_key(attempt) || held.any(|(_, held)| is_it(held))
    }

    /// Reserves the keys of a call, if there is room for them. A call that repeats an attempt needs no room.
    fn reserve(&mut self, mut keys: usize, attempt: Option<&AttemptId>, max: usize) -> bool {
        if attempt.is_some_and(|attempt| self.knows(attempt)) {
            keys = 0;
        } else if !self.has_room_for(keys, max) {
            self.forget_expired(Instant::now());
            if !self.has_room_for(keys, max) {
                return false;
            }
        }
        self.reserved += keys;
        if let Some(attempt) = attempt {
            let pending = self.attempts.entry(attempt.clone()).or_default();
            pending.calls += 1;
            pending.reserved += keys;
        }
        true
    }

    /// Ends a call, and its reservation if no other call of its attempt is under way.
    fn end_call(&mut self, keys: usize, attempt: Option<&AttemptId>) {
        let Some(attempt) = attempt else {
            self.reserved -= keys;
            return;
        };
        if let Some(pending) = self.attempts.get_mut(attempt) {
            pending.calls -= 1;
            if pending.calls == 0 {
                self.reserved -= pending.reserved;
                self.attempts.remove(attempt);
            }
        }
    }

    fn grant(&mut self, lease: &Lease, attempt: Option<&AttemptId>, until: Instant) {
        // Its keys are held now, so the other calls of the attempt no longer reserve them.
        if let Some(pending) = attempt.and_then(|attempt| self.attempts.get_mut(attempt)) {
            self.reserved -= std::mem::take(&mut pending.reserved);
        }
        for (name, share) in lease.locks.as_slice() {
            if *share == Share::EXCLUSIVE {
                self.forget_others_on(name, lease.fence);
            }
            let held = HeldKey {
                locks: lease.locks.clone(),
                owner: lease.owner.clone(),
                attempt: attempt.map(|(_, _, attempt)| attempt.clone()),
                until,
            };
            self.held.insert((name.clone(), lease.fence), held);
        }
    }

    /// No other lease exists beside an exclusive one: earlier ones in the tally were released through another node.
    fn forget_others_on(&mut self, name: &LockName, fence: Fence) {
        let others = self.leases_on(name).filter(|(own, _)| *own < fence);
        let others: Vec<(Fence, Locks)> = others
            .map(|(fence, held)| (fence, held.locks.clone()))
            .collect();
        for (fence, locks) in others {
            self.remove(&locks, fence);
        }
    }

    fn remove(&mut self, locks: &Locks, fence: Fence) {
        for name in locks.names() {
            self.held.remove(&(name.clone(), fence));
        }
    }

    fn forget_expired(&mut self, now: Instant) {
        self.held.retain(|_, held| held.until > now);
    }
}

impl HeldLocks {
    pub(crate) fn new(max: Option<usize>) -> Self {
        Self {
            max,
            callers: Mutex::default(),
        }
    }

    /// Reserves permits for the keys of a call; `None` if the caller would have more than is allowed.
    ///
    /// A call that repeats an attempt needs none: it shares the queue position, or the lease, of the first.
    pub(crate) fn reserve(
        self: &Arc<Self>,
        caller: Option<&CallerName>,
        locks: &Locks,
        attempt: Option<(&Owner, &Attempt)>,
    ) -> Option<KeyPermits> {
        let keys = locks.names().len();
        let Some(max) = self.max else {
            return Some(KeyPermits(None));
        };
        let attempt =
            attempt.map(|(owner, attempt)| (locks.clone(), owner.clone(), attempt.clone()));
        let mut callers = self.callers();
        callers.evict();
        let tally = callers.tally(caller);
        if !tally.reserve(keys, attempt.as_ref(), max) {
            return None;
        }
        Some(KeyPermits(Some(CountedPermits {
            tallies: self.clone(),
            caller: caller.cloned(),
            keys,
            attempt,
        })))
    }

    /// Sets the remaining time of a lease.
    pub(crate) fn set_remaining(&self, lease: &Lease, time: Duration) {
        if self.max.is_none() {
            return;
        }
        self.callers().change(&lease.caller, |tally| {
            for name in lease.locks.names() {
                if let Some(held) = tally.held.get_mut(&(name.clone(), lease.fence)) {
                    held.until = Instant::now() + time;
                }
            }
        });
    }

    /// Removes a lease that has ended.
    pub(crate) fn ended(&self, lease: &Lease) {
        if self.max.is_none() {
            return;
        }
        self.callers().change(&lease.caller, |tally| {
            tally.remove(&lease.locks, lease.fence);
        });
    }

    fn callers(&self) -> MutexGuard<'_, CallerTallies> {
        self.callers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The permits of one call. They are freed when it is dropped.
#[derive(Debug)]
pub(crate) struct KeyPermits(Option<CountedPermits>);

/// Only if there is a limit, because all threads share the reference count of the tallies.
#[derive(Debug)]
struct CountedPermits {
    tallies: Arc<HeldLocks>,
    caller: Option<CallerName>,
    keys: usize,
    attempt: Option<AttemptId>,
}

impl KeyPermits {
    /// Counts the keys as held: by this lease, for this time from now on.
    pub(crate) fn granted(self, lease: impl FnOnce() -> (Lease, Duration)) {
        if let Some(CountedPermits {
            tallies,
            caller,
            attempt,
            ..
        }) = &self.0
        {
            let (lease, time) = lease();
            let mut callers = tallies.callers();
            let tally = callers.tally(caller.as_ref());
            tally.grant(&lease, attempt.as_ref(), Instant::now() + time);
        }
    }
}

impl Drop for CountedPermits {
    fn drop(&mut self) {
        let mut callers = self.tallies.callers();
        let attempt = self.attempt.as_ref();
        callers.change(&self.caller, |tally| tally.end_call(self.keys, attempt));
    }
}

#[cfg(test)]
mod tests {
    use forrst_lock::{LockKey, Timestamp};
    use tokio::time::advance;

    use super::*;

    fn caller(number: usize) -> Option<CallerName> {
        Some(CallerName::parse(&format!("caller {number}")).unwrap())
    }

    fn name(key: &str) -> LockName {
        LockName::global(&LockKey::parse(key).unwrap())
    }

    fn lease(number: usize, keys: &[&str], fence: u64) -> Lease {
        lease_of(Share::SHARED, number, keys, fence)
    }

    fn lease_of(share: Share, number: usize, keys: &[&str], fence: u64) -> Lease {
        let locks = keys.iter().map(|key| (name(key), share));
        Lease {
            locks: Locks::new(locks.collect()).unwrap(),
            owner: Owner::parse("me").unwrap(),
            caller: caller(number),
            note: None,
            fence: Fence::new(fence).unwrap(),
            acquired_at: Timestamp::from_millis(0),
            expires_at: Timestamp::from_millis(1),
        }
    }

    const SECOND: Duration = Duration::from_secs(1);

    fn at_most(max: usize) -> Arc<HeldLocks> {
        Arc::new(HeldLocks::new(Some(max)))
    }

    fn reserve(tallies: &Arc<HeldLocks>, lease: &Lease) -> Option<KeyPermits> {
        tallies.reserve(lease.caller.as_ref(), &lease.locks, None)
    }

    fn attempt(tallies: &Arc<HeldLocks>, lease: &Lease, attempt: &str) -> Option<KeyPermits> {
        let attempt = Attempt::parse(attempt).unwrap();
        let attempt = Some((&lease.owner, &attempt));
        tallies.reserve(lease.caller.as_ref(), &lease.locks, attempt)
    }

    #[tokio::test(start_paused = true)]
    async fn callers_without_locks_are_evicted() {
        let tallies = at_most(10);
        for number in 0..5_000 {
            let lease = lease(number, &["k"], 1);
            let permits = attempt(&tallies, &lease, "one").unwrap();
            match number % 3 {
                0 => drop(permits),
                1 => {
                    permits.granted(|| (lease.clone(), SECOND));
                    tallies.ended(&lease);
                }
                // Never released.
                _ => permits.granted(|| (lease.clone(), SECOND)),
            }
            advance(Duration::from_millis(10)).await;
        }
        let kept = tallies.callers().tallies.len();
        assert!(kept <= EVICT_EVERY as usize, "{kept} tallies are kept");
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_counts_once_for_each_key() {
        let tallies = at_most(4);
        let set = lease(1, &["a", "b", "c"], 1);
        let pair = lease(1, &["d", "e"], 2);
        let single = lease(1, &["d"], 3);
        let permits = reserve(&tallies, &set).unwrap();
        assert!(
            reserve(&tallies, &pair).is_none(),
            "five keys, three of them waiting"
        );
        permits.granted(|| (set.clone(), SECOND));
        assert!(
            reserve(&tallies, &pair).is_none(),
            "five keys, three of them held"
        );
        reserve(&tallies, &single)
            .unwrap()
            .granted(|| (single.clone(), SECOND));
        assert!(reserve(&tallies, &single).is_none());
        tallies.ended(&set);
        reserve(&tallies, &pair)
            .unwrap()
            .granted(|| (pair.clone(), SECOND));
        advance(SECOND).await;
        assert!(
            reserve(&tallies, &set).is_some(),
            "all of them have expired"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn each_lease_on_a_shared_key_counts() {
        let tallies = at_most(2);
        let first = lease(1, &["a"], 1);
        let second = lease(1, &["a"], 2);
        for lease in [&first, &second] {
            reserve(&tallies, lease)
                .unwrap()
                .granted(|| (lease.clone(), SECOND));
        }
        assert!(reserve(&tallies, &first).is_none());
        tallies.ended(&first);
        assert!(reserve(&tallies, &first).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn an_exclusive_lease_removes_earlier_ones_of_its_key() {
        let tallies = at_most(4);
        let exclusive = |keys: &[&str], fence| lease_of(Share::EXCLUSIVE, 1, keys, fence);
        // Released through another node, both of them.
        for lease in [exclusive(&["a", "b"], 1), exclusive(&["b", "c"], 2)] {
            reserve(&tallies, &lease)
                .unwrap()
                .granted(|| (lease.clone(), SECOND));
        }
        let pair = exclusive(&["d", "e"], 3);
        reserve(&tallies, &pair)
            .unwrap()
            .granted(|| (pair.clone(), SECOND));
        assert!(reserve(&tallies, &exclusive(&["f"], 4)).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_repeated_attempt_needs_no_permits() {
        let tallies = at_most(2);
        let set = lease(1, &["a", "b"], 1);
        let first = attempt(&tallies, &set, "one").unwrap();
        let second = attempt(&tallies, &set, "one").expect("both share a queue position");
        assert!(attempt(&tallies, &set, "other").is_none());
        drop(first);
        assert!(
            reserve(&tallies, &set).is_none(),
            "the second call waits for it"
        );
        second.granted(|| (set.clone(), SECOND));
        let again = attempt(&tallies, &set, "one").expect("it has the lease");
        drop(again);
        assert!(attempt(&tallies, &set, "other").is_none());
        assert!(reserve(&tallies, &set).is_none());
        tallies.ended(&set);
        assert!(reserve(&tallies, &set).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempt_with_other_keys_is_not_a_repetition() {
        let tallies = at_most(2);
        let _waiting = attempt(&tallies, &lease(1, &["a"], 1), "one").unwrap();
        let more = lease(1, &["a", "b"], 1);
        assert!(attempt(&tallies, &more, "one").is_none());
    }
}
