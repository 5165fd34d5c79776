//! How many locks each caller holds through this node.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forrst_lock::{Attempt, Caller as CallerName, Fence, Lease, LockName, Locks, Owner, Share};
use tokio::time::Instant;

/// The locks of each caller that were taken here. A lease counts once for each of its keys.
///
/// A lock that is released through another node counts until its lease would have ended, or until the caller has taken it anew.
#[derive(Debug)]
pub(crate) struct HeldLocks {
    most: Option<usize>,
    callers: Mutex<Callers>,
}

#[derive(Debug, Default)]
struct Callers {
    tallies: HashMap<Option<CallerName>, Tally>,
    /// How often a tally was asked since the last eviction.
    asked: u32,
}

/// How many locks are asked for between two evictions.
const EVICT_EVERY: u32 = 1024;

impl Callers {
    fn tally(&mut self, caller: Option<&CallerName>) -> &mut Tally {
        self.tallies.entry(caller.cloned()).or_default()
    }

    /// Changes the tally of a caller that has one, and forgets it when nothing is left in it.
    fn change(&mut self, caller: &Option<CallerName>, change: impl FnOnce(&mut Tally)) {
        if let Some(tally) = self.tallies.get_mut(caller) {
            change(tally);
            if tally.is_empty() {
                self.tallies.remove(caller);
            }
        }
    }

    /// Forgets leases that have run out, and the callers that have nothing else, every so often.
    fn evict(&mut self) {
        self.asked += 1;
        if self.asked < EVICT_EVERY {
            return;
        }
        self.asked = 0;
        let now = Instant::now();
        self.tallies.retain(|_, tally| {
            tally.forget_expired(now);
            !tally.is_empty()
        });
    }
}

#[derive(Debug, Default)]
struct Tally {
    /// Keys that are asked for, and not granted yet.
    asked: usize,
    /// The attempts that have calls under way.
    attempts: HashMap<AttemptId, AskedAttempt>,
    /// Each key of each lease.
    held: BTreeMap<(LockName, Fence), Held>,
}

/// An attempt as the store tells it from others.
type AttemptId = (Locks, Owner, Attempt);

/// The calls of an attempt share one position, so its keys are asked for once, until the last of them has ended.
#[derive(Debug, Default)]
struct AskedAttempt {
    calls: usize,
    keys: usize,
}

#[derive(Debug)]
struct Held {
    locks: Locks,
    owner: Owner,
    attempt: Option<Attempt>,
    until: Instant,
}

impl Tally {
    fn is_empty(&self) -> bool {
        self.asked == 0 && self.attempts.is_empty() && self.held.is_empty()
    }

    fn has_room_for(&self, keys: usize, most: usize) -> bool {
        self.asked + self.held.len() + keys <= most
    }

    /// The leases on a key.
    fn on(&self, name: &LockName) -> impl Iterator<Item = (Fence, &Held)> {
        let all = (name.clone(), Fence::FIRST)..=(name.clone(), Fence::MAX);
        let on_it = self.held.range(all);
        on_it.map(|((_, fence), held)| (*fence, held))
    }

    fn knows(&self, attempt: &AttemptId) -> bool {
        let (locks, owner, name) = attempt;
        let is_it = |held: &Held| {
            held.attempt.as_ref() == Some(name) && held.owner == *owner && held.locks == *locks
        };
        let mut held = self.on(locks.first());
        self.attempts.contains_key(attempt) || held.any(|(_, held)| is_it(held))
    }

    /// Room for the keys of one more call. One that repeats an attempt needs none.
    fn ask(&mut self, mut keys: usize, attempt: Option<&AttemptId>, most: usize) -> bool {
        if attempt.is_some_and(|attempt| self.knows(attempt)) {
            keys = 0;
        } else if !self.has_room_for(keys, most) {
            self.forget_expired(Instant::now());
            if !self.has_room_for(keys, most) {
                return false;
            }
        }
        self.asked += keys;
        if let Some(attempt) = attempt {
            let asked = self.attempts.entry(attempt.clone()).or_default();
            asked.calls += 1;
            asked.keys += keys;
        }
        true
    }

    /// A call has ended.
    fn answered(&mut self, keys: usize, attempt: Option<&AttemptId>) {
        let Some(attempt) = attempt else {
            self.asked -= keys;
            return;
        };
        if let Some(asked) = self.attempts.get_mut(attempt) {
            asked.calls -= 1;
            if asked.calls == 0 {
                self.asked -= asked.keys;
                self.attempts.remove(attempt);
            }
        }
    }

    fn grant(&mut self, lease: &Lease, attempt: Option<&AttemptId>, until: Instant) {
        // Its keys are held now, and not asked for any more by those of its calls that have no answer yet.
        if let Some(asked) = attempt.and_then(|attempt| self.attempts.get_mut(attempt)) {
            self.asked -= std::mem::take(&mut asked.keys);
        }
        for (name, share) in lease.locks.as_slice() {
            if *share == Share::EXCLUSIVE {
                self.forget_others_on(name, lease.fence);
            }
            let held = Held {
                locks: lease.locks.clone(),
                owner: lease.owner.clone(),
                attempt: attempt.map(|(_, _, attempt)| attempt.clone()),
                until,
            };
            self.held.insert((name.clone(), lease.fence), held);
        }
    }

    /// There is no other lease beside an exclusive one: those that are still here were released through another node.
    fn forget_others_on(&mut self, name: &LockName, fence: Fence) {
        let others = self.on(name).filter(|(own, _)| *own < fence);
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
    pub(crate) fn new(most: Option<usize>) -> Self {
        Self {
            most,
            callers: Mutex::default(),
        }
    }

    /// Permits for the keys of one more lease; none when the caller would have more than is allowed.
    ///
    /// A call that repeats an attempt needs none: it shares the position, or the lease, of the first.
    pub(crate) fn ask(
        self: &Arc<Self>,
        caller: Option<&CallerName>,
        locks: &Locks,
        attempt: Option<(&Owner, &Attempt)>,
    ) -> Option<Asked> {
        let keys = locks.names().len();
        let Some(most) = self.most else {
            return Some(Asked(None));
        };
        let attempt =
            attempt.map(|(owner, attempt)| (locks.clone(), owner.clone(), attempt.clone()));
        let mut callers = self.callers();
        callers.evict();
        let tally = callers.tally(caller);
        if !tally.ask(keys, attempt.as_ref(), most) {
            return None;
        }
        Some(Asked(Some(Counted {
            tallies: self.clone(),
            caller: caller.cloned(),
            keys,
            attempt,
        })))
    }

    /// The lease now ends so much later than this moment.
    pub(crate) fn lasts(&self, lease: &Lease, time: Duration) {
        if self.most.is_none() {
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

    /// The lease has ended.
    pub(crate) fn ended(&self, lease: &Lease) {
        if self.most.is_none() {
            return;
        }
        self.callers().change(&lease.caller, |tally| {
            tally.remove(&lease.locks, lease.fence);
        });
    }

    fn callers(&self) -> MutexGuard<'_, Callers> {
        self.callers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A lease that was asked for. Dropped, it is asked for no more.
#[derive(Debug)]
pub(crate) struct Asked(Option<Counted>);

/// Only where there is a limit: all threads count the references to the tallies in one place.
#[derive(Debug)]
struct Counted {
    tallies: Arc<HeldLocks>,
    caller: Option<CallerName>,
    keys: usize,
    attempt: Option<AttemptId>,
}

impl Asked {
    /// It was granted: the lease, and how long that lasts from now on.
    pub(crate) fn granted(self, lease: impl FnOnce() -> (Lease, Duration)) {
        if let Some(Counted {
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

impl Drop for Counted {
    fn drop(&mut self) {
        let mut callers = self.tallies.callers();
        let attempt = self.attempt.as_ref();
        callers.change(&self.caller, |tally| tally.answered(self.keys, attempt));
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

    fn at_most(most: usize) -> Arc<HeldLocks> {
        Arc::new(HeldLocks::new(Some(most)))
    }

    fn ask(tallies: &Arc<HeldLocks>, lease: &Lease) -> Option<Asked> {
        tallies.ask(lease.caller.as_ref(), &lease.locks, None)
    }

    fn attempt(tallies: &Arc<HeldLocks>, lease: &Lease, attempt: &str) -> Option<Asked> {
        let attempt = Attempt::parse(attempt).unwrap();
        let by = Some((&lease.owner, &attempt));
        tallies.ask(lease.caller.as_ref(), &lease.locks, by)
    }

    #[tokio::test(start_paused = true)]
    async fn callers_that_have_no_locks_any_more_are_forgotten() {
        let tallies = at_most(10);
        for number in 0..5_000 {
            let lease = lease(number, &["k"], 1);
            let asked = attempt(&tallies, &lease, "one").unwrap();
            match number % 3 {
                0 => drop(asked),
                1 => {
                    asked.granted(|| (lease.clone(), SECOND));
                    tallies.ended(&lease);
                }
                // Never released.
                _ => asked.granted(|| (lease.clone(), SECOND)),
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
        let asked = ask(&tallies, &set).unwrap();
        assert!(
            ask(&tallies, &pair).is_none(),
            "five keys, three of them waiting"
        );
        asked.granted(|| (set.clone(), SECOND));
        assert!(
            ask(&tallies, &pair).is_none(),
            "five keys, three of them held"
        );
        ask(&tallies, &single)
            .unwrap()
            .granted(|| (single.clone(), SECOND));
        assert!(ask(&tallies, &single).is_none());
        tallies.ended(&set);
        ask(&tallies, &pair)
            .unwrap()
            .granted(|| (pair.clone(), SECOND));
        advance(SECOND).await;
        assert!(ask(&tallies, &set).is_some(), "all of them have run out");
    }

    #[tokio::test(start_paused = true)]
    async fn leases_that_share_a_key_count_each() {
        let tallies = at_most(2);
        let first = lease(1, &["a"], 1);
        let second = lease(1, &["a"], 2);
        for lease in [&first, &second] {
            ask(&tallies, lease)
                .unwrap()
                .granted(|| (lease.clone(), SECOND));
        }
        assert!(ask(&tallies, &first).is_none());
        tallies.ended(&first);
        assert!(ask(&tallies, &first).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn an_exclusive_lease_shows_that_earlier_ones_of_its_key_have_ended() {
        let tallies = at_most(4);
        let exclusive = |keys: &[&str], fence| lease_of(Share::EXCLUSIVE, 1, keys, fence);
        // Released through another node, both of them.
        for lease in [exclusive(&["a", "b"], 1), exclusive(&["b", "c"], 2)] {
            ask(&tallies, &lease)
                .unwrap()
                .granted(|| (lease.clone(), SECOND));
        }
        let pair = exclusive(&["d", "e"], 3);
        ask(&tallies, &pair)
            .unwrap()
            .granted(|| (pair.clone(), SECOND));
        assert!(ask(&tallies, &exclusive(&["f"], 4)).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_repeated_attempt_needs_no_room() {
        let tallies = at_most(2);
        let set = lease(1, &["a", "b"], 1);
        let first = attempt(&tallies, &set, "one").unwrap();
        let second = attempt(&tallies, &set, "one").expect("they share a position");
        assert!(attempt(&tallies, &set, "other").is_none());
        drop(first);
        assert!(
            ask(&tallies, &set).is_none(),
            "the second call waits for it"
        );
        second.granted(|| (set.clone(), SECOND));
        let again = attempt(&tallies, &set, "one").expect("it has the lease");
        drop(again);
        assert!(attempt(&tallies, &set, "other").is_none());
        assert!(ask(&tallies, &set).is_none());
        tallies.ended(&set);
        assert!(ask(&tallies, &set).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempt_with_other_keys_is_no_repetition() {
        let tallies = at_most(2);
        let _waiting = attempt(&tallies, &lease(1, &["a"], 1), "one").unwrap();
        let more = lease(1, &["a", "b"], 1);
        assert!(attempt(&tallies, &more, "one").is_none());
    }
}
