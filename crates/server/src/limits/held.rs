//! How many locks each caller holds through this node.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forrst_lock::{Caller as CallerName, Fence, Lease, LockName};
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
    held: HashMap<LockName, (Fence, Instant)>,
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
    /// Who repeats an attempt may ask for a lock that they have already: the answer to the first was lost.
    pub(crate) fn ask(
        self: &Arc<Self>,
        caller: Option<&CallerName>,
        name: &LockName,
        is_attempt: bool,
    ) -> Option<Asked> {
        if let Some(most) = self.most {
            let mut callers = self.callers();
            let tally = callers.entry(caller.cloned()).or_default();
            if tally.asked + tally.held.len() >= most {
                let now = Instant::now();
                tally.held.retain(|_, (_, until)| *until > now);
            }
            let has_it = is_attempt && tally.held.contains_key(name);
            if tally.asked + tally.held.len() >= most && !has_it {
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
            && let Some((fence, until)) = tally.held.get_mut(&lease.name)
            && *fence == lease.fence
        {
            *until = Instant::now() + time;
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
                .is_some_and(|(fence, _)| *fence == lease.fence)
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
    pub(crate) fn granted(self, lease: &Lease, time: Duration) {
        if self.locks.most.is_some() {
            let mut callers = self.locks.callers();
            let tally = callers.entry(self.caller.clone()).or_default();
            let until = Instant::now() + time;
            tally.held.insert(lease.name.clone(), (lease.fence, until));
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
