//! How many locks each caller holds through this node.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forrst_lock::{Attempt, Caller as CallerName, Fence, Lease, LockName};
use tokio::time::Instant;

/// The locks of each caller that were taken here.
///
/// A lock that is released through another node counts until its lease would have ended.
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
    /// Asked for, and not granted yet.
    asked: usize,
    held: HashMap<LockName, Held>,
}

impl Tally {
    fn is_empty(&self) -> bool {
        self.asked == 0 && self.held.is_empty()
    }

    fn forget_expired(&mut self, now: Instant) {
        self.held.retain(|_, held| held.until > now);
    }
}

#[derive(Debug)]
struct Held {
    fence: Fence,
    attempt: Option<Attempt>,
    until: Instant,
}

impl HeldLocks {
    pub(crate) fn new(most: Option<usize>) -> Self {
        Self {
            most,
            callers: Mutex::default(),
        }
    }

    /// A place for one more lock; none when the caller has as many as is allowed.
    ///
    /// Who repeats the attempt that got a lock may ask for it again: the answer to the first was lost.
    pub(crate) fn ask(
        self: &Arc<Self>,
        caller: Option<&CallerName>,
        name: &LockName,
        attempt: Option<&Attempt>,
    ) -> Option<Asked> {
        if let Some(most) = self.most {
            let mut callers = self.callers();
            callers.evict();
            let tally = callers.tally(caller);
            if tally.asked + tally.held.len() >= most {
                tally.forget_expired(Instant::now());
            }
            let held = tally.held.get(name);
            let is_again = attempt.is_some() && held.is_some_and(|h| h.attempt.as_ref() == attempt);
            if tally.asked + tally.held.len() >= most && !is_again {
                return None;
            }
            tally.asked += 1;
        }
        Some(Asked {
            locks: self.clone(),
            caller: caller.cloned(),
        })
    }

    /// The lease now ends so much later than this moment.
    pub(crate) fn lasts(&self, lease: &Lease, time: Duration) {
        if self.most.is_none() {
            return;
        }
        self.callers().change(&lease.caller, |tally| {
            if let Some(held) = tally.held.get_mut(&lease.name)
                && held.fence == lease.fence
            {
                held.until = Instant::now() + time;
            }
        });
    }

    /// The lease has ended.
    pub(crate) fn ended(&self, lease: &Lease) {
        if self.most.is_none() {
            return;
        }
        self.callers().change(&lease.caller, |tally| {
            // A later lease of the same lock may stand there.
            let held = tally.held.get(&lease.name);
            if held.is_some_and(|held| held.fence == lease.fence) {
                tally.held.remove(&lease.name);
            }
        });
    }

    fn callers(&self) -> MutexGuard<'_, Callers> {
        self.callers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A lock that was asked for. Dropped, it is asked for no more.
#[derive(Debug)]
pub(crate) struct Asked {
    locks: Arc<HeldLocks>,
    caller: Option<CallerName>,
}

impl Asked {
    /// It was granted, for so long.
    pub(crate) fn granted(self, lease: &Lease, attempt: Option<Attempt>, time: Duration) {
        if self.locks.most.is_some() {
            let mut callers = self.locks.callers();
            let tally = callers.tally(self.caller.as_ref());
            let held = Held {
                fence: lease.fence,
                attempt,
                until: Instant::now() + time,
            };
            tally.held.insert(lease.name.clone(), held);
        }
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        if self.locks.most.is_some() {
            let mut callers = self.locks.callers();
            callers.change(&self.caller, |tally| {
                tally.asked = tally.asked.saturating_sub(1);
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use forrst_lock::{LockKey, Owner, Timestamp};
    use tokio::time::advance;

    use super::*;

    fn caller(number: usize) -> Option<CallerName> {
        Some(CallerName::parse(&format!("caller {number}")).unwrap())
    }

    fn lease(number: usize) -> Lease {
        Lease {
            name: LockName::global(&LockKey::parse("k").unwrap()),
            owner: Owner::random(),
            caller: caller(number),
            fence: Fence::FIRST,
            acquired_at: Timestamp::from_millis(0),
            expires_at: Timestamp::from_millis(1),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn callers_that_have_no_locks_any_more_are_forgotten() {
        let locks = Arc::new(HeldLocks::new(Some(10)));
        for number in 0..5_000 {
            let lease = lease(number);
            let asked = locks.ask(lease.caller.as_ref(), &lease.name, None).unwrap();
            match number % 3 {
                0 => drop(asked),
                1 => {
                    asked.granted(&lease, None, Duration::from_secs(1));
                    locks.ended(&lease);
                }
                // Never released.
                _ => asked.granted(&lease, None, Duration::from_secs(1)),
            }
            advance(Duration::from_millis(10)).await;
        }
        let kept = locks.callers().tallies.len();
        assert!(kept <= EVICT_EVERY as usize, "{kept} tallies are kept");
    }
}
