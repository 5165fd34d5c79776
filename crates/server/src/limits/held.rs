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
    callers: Mutex<HashMap<Option<CallerName>, Tally>>,
}

#[derive(Debug, Default)]
struct Tally {
    /// Asked for, and not granted yet.
    asked: usize,
    held: HashMap<LockName, Held>,
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
            let tally = callers.entry(caller.cloned()).or_default();
            if tally.asked + tally.held.len() >= most {
                let now = Instant::now();
                tally.held.retain(|_, held| held.until > now);
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
        if let Some(tally) = self.callers().get_mut(&lease.caller)
            && let Some(held) = tally.held.get_mut(&lease.name)
            && held.fence == lease.fence
        {
            held.until = Instant::now() + time;
        }
    }

    /// The lease has ended.
    pub(crate) fn ended(&self, lease: &Lease) {
        if self.most.is_none() {
            return;
        }
        let mut callers = self.callers();
        if let Some(tally) = callers.get_mut(&lease.caller) {
            // A later lease of the same lock may stand there.
            if tally
                .held
                .get(&lease.name)
                .is_some_and(|held| held.fence == lease.fence)
            {
                tally.held.remove(&lease.name);
            }
        }
    }

    fn callers(&self) -> MutexGuard<'_, HashMap<Option<CallerName>, Tally>> {
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
            let tally = callers.entry(self.caller.clone()).or_default();
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
        if self.locks.most.is_some()
            && let Some(tally) = self.locks.callers().get_mut(&self.caller)
        {
            tally.asked = tally.asked.saturating_sub(1);
        }
    }
}
