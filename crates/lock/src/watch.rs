//! Watching a key: a client is notified when the leases on it change, instead of polling its status.
//!
//! All watchers of a key share one task, which reads the status once for all of them: after a step of this process on that key, when
//! its next lease expires, when the store reports that another process may have changed it, and periodically, in case that is lost or
//! the store cannot report it. So a change costs one read and one wake-up for each watcher, and a watcher costs no more than a
//! receiver of a channel.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::sleep;

use crate::store::{LockStatus, LockStore, StoreError};
use crate::{LockName, Timestamp};

/// How often a key is read in a shared store, where a change by another process may not be notified.
const SHARED_POLL: Duration = Duration::from_millis(500);
/// The same for each watched key, so that many of them do not keep the store busy: 4 000 reads a second in all.
const SHARED_POLL_PER_KEY: Duration = Duration::from_micros(250);
/// How often a key is read whose changes by other processes are reported, in case a report is lost.
const REPORTED_POLL: Duration = Duration::from_secs(5);
/// How often a key is read that only this process changes. Each change is notified, so this is only a safety net.
const OWN_POLL: Duration = Duration::from_secs(30);

/// How soon a key is read again after the store has failed.
const FAILURE_POLL: Duration = Duration::from_secs(1);

/// A digest of the live leases on a key, which changes whenever one begins or ends. All free keys have the same one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Revision(u64);

impl Revision {
    /// The revision of a status. It does not depend on waiters, nor on when leases expire.
    ///
    /// The number of leases and the largest fence tell all states apart: a lease that begins has the largest fence, and without one
    /// that begins the number only falls.
    pub fn of(status: &LockStatus) -> Self {
        let Some(last_fence) = status.last_fence else {
            return Self(0);
        };
        let count = u64::try_from(status.holder_count).unwrap_or(u64::MAX);
        // Any odd factor: the result is opaque, and not taken for a number that means something.
        let mixed = last_fence.number().wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Self((mixed ^ count.rotate_left(48)).max(1))
    }

    /// Reads a revision as [`Display`](std::fmt::Display) writes it.
    pub fn parse(text: &str) -> Option<Self> {
        let is_digit = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let is_hex = text.len() == 16 && text.bytes().all(is_digit);
        is_hex.then(|| u64::from_str_radix(text, 16).ok().map(Self))?
    }
}

impl std::fmt::Display for Revision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The state of a key as its watchers see it.
#[derive(Debug, Clone)]
pub struct Observation {
    /// The status.
    pub status: Arc<LockStatus>,
    /// The store's time of it.
    pub now: Timestamp,
    /// The revision of the status, to wait for the next change.
    pub revision: Revision,
    /// Numbers the beginnings and ends of all reads in this process, because clocks may be set, and do not tell reads within a
    /// millisecond apart.
    began: u64,
    ended: u64,
}

/// The keys that are watched in this process.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    /// Replaces the usual intervals of reads.
    poll: Option<Duration>,
    /// So that steps on keys cost nothing more while no key is watched.
    count: AtomicUsize,
    /// Counts the beginnings and ends of reads.
    reads: AtomicU64,
    keys: Mutex<HashMap<LockName, WatchedKey>>,
}

#[derive(Debug)]
struct WatchedKey {
    watchers: usize,
    changed: Arc<Notify>,
    observed: watch::Sender<Option<Observation>>,
    task: AbortHandle,
}

impl Watches {
    pub(crate) fn new(poll: Option<Duration>) -> Self {
        Self {
            poll,
            ..Self::default()
        }
    }

    /// Reads the state of a key.
    pub(crate) async fn read(
        &self,
        name: &LockName,
        store: &dyn LockStore,
    ) -> Result<Observation, StoreError> {
        let began = self.reads.fetch_add(1, Ordering::Relaxed);
        let answer = store.inspect(name).await?;
        Ok(Observation {
            revision: Revision::of(&answer.outcome),
            status: Arc::new(answer.outcome),
            now: answer.now,
            began,
            ended: self.reads.fetch_add(1, Ordering::Relaxed),
        })
    }

    /// Watches a key from now on.
    pub(crate) fn join(self: &Arc<Self>, name: &LockName, store: &Arc<dyn LockStore>) -> Watcher {
        let mut keys = self.keys();
        let key = keys.entry(name.clone()).or_insert_with(|| {
            self.count.fetch_add(1, Ordering::Relaxed);
            let (observed, changed) = (watch::Sender::new(None), Arc::new(Notify::new()));
            let reader = Reader {
                name: name.clone(),
                store: store.clone(),
                watches: self.clone(),
                changed: changed.clone(),
                observed: observed.clone(),
            };
            let task = tokio::spawn(reader.run()).abort_handle();
            WatchedKey {
                watchers: 0,
                changed,
                observed,
                task,
            }
        });
        key.watchers += 1;
        Watcher {
            observed: key.observed.subscribe(),
            sender: key.observed.clone(),
            name: name.clone(),
            watches: self.clone(),
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// A lease on this key has begun or ended, or ends at another time.
    pub(crate) fn changed(&self, name: &LockName) {
        if self.count() == 0 {
            return;
        }
        if let Some(key) = self.keys().get(name) {
            key.changed.notify_one();
        }
    }

    /// No critical section panics half-way, so a poisoned map is consistent.
    fn keys(&self) -> MutexGuard<'_, HashMap<LockName, WatchedKey>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Watches a key until it is dropped.
#[derive(Debug)]
pub(crate) struct Watcher {
    observed: watch::Receiver<Option<Observation>>,
    sender: watch::Sender<Option<Observation>>,
    name: LockName,
    watches: Arc<Watches>,
}

impl Watcher {
    /// Shares an observation that the watcher has made itself. The next one is compared with it: otherwise the reader, which may not
    /// have seen this state, could mistake the next one for the previous one.
    pub(crate) fn share(&self, observation: &Observation) {
        if !publish(&self.sender, observation.clone()) {
            // The reader reads once more, to find out which of the two is right.
            self.watches.changed(&self.name);
        }
    }

    /// The next observation of the key.
    pub(crate) async fn next(&mut self) -> Observation {
        loop {
            if self.observed.changed().await.is_err() {
                // The sender lives as long as there is a watcher.
                std::future::pending::<()>().await;
            }
            if let Some(observation) = &*self.observed.borrow_and_update() {
                return observation.clone();
            }
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let mut keys = self.watches.keys();
        let Some(key) = keys.get_mut(&self.name) else {
            return;
        };
        key.watchers -= 1;
        if key.watchers == 0 {
            key.task.abort();
            keys.remove(&self.name);
            self.watches.count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Wakes the watchers of a key, if its state is another one than they have seen. `false` if that is not known, because another read, at
/// the same time or later, has seen another state.
fn publish(watchers: &watch::Sender<Option<Observation>>, observation: Observation) -> bool {
    let mut is_known = true;
    watchers.send_if_modified(|last| match last {
        Some(last) if last.revision == observation.revision => {
            last.began = last.began.max(observation.began);
            last.ended = last.ended.max(observation.ended);
            false
        }
        Some(last) if last.ended > observation.began => {
            is_known = false;
            false
        }
        _ => {
            *last = Some(observation);
            true
        }
    });
    is_known
}

/// Reads the status of one key for all of its watchers.
struct Reader {
    name: LockName,
    store: Arc<dyn LockStore>,
    watches: Arc<Watches>,
    changed: Arc<Notify>,
    observed: watch::Sender<Option<Observation>>,
}

impl Reader {
    async fn run(self) {
        // Before the first read, so that no change after it is missed.
        let watch = self.store.watch(&self.name);
        loop {
            let is_reported = watch.as_ref().is_some_and(|watch| watch.is_live());
            let mut pause = self.poll(is_reported);
            // A store that fails is read again soon; the watchers keep waiting.
            if let Ok(read) = self.watches.read(&self.name, &*self.store).await {
                let leases = read.status.holders.iter();
                let ends = leases.map(|lease| lease.expires_at.remaining(read.now));
                // A lease is over when its whole last millisecond is.
                let next_end = ends.min().map(|left| left + Duration::from_millis(1));
                pause = pause.min(next_end.unwrap_or(pause));
                if !publish(&self.observed, read) {
                    continue;
                }
            } else {
                pause = pause.min(FAILURE_POLL);
            }
            tokio::select! {
                () = self.changed.notified() => {}
                () = sleep(pause) => {}
            }
        }
    }

    fn poll(&self, is_reported: bool) -> Duration {
        if let Some(poll) = self.watches.poll {
            return poll;
        }
        if !self.store.capabilities().shared {
            return OWN_POLL;
        }
        if is_reported {
            return REPORTED_POLL;
        }
        let keys = u32::try_from(self.watches.count()).unwrap_or(u32::MAX);
        SHARED_POLL.max(SHARED_POLL_PER_KEY.saturating_mul(keys))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LockKey;
    use crate::model::Key;

    fn observation(revision: u64, began: u64, ended: u64) -> Observation {
        let name = LockName::global(&LockKey::parse("k").unwrap());
        let now = Timestamp::from_millis(1);
        Observation {
            status: Arc::new(LockStatus::new(&Key::new(name), now)),
            now,
            revision: Revision(revision),
            began,
            ended,
        }
    }

    /// Watchers would miss the newer state: they see only the last one that is published.
    #[test]
    fn a_state_is_replaced_only_by_one_that_was_read_later() {
        let (watchers, mut watcher) = watch::channel(None::<Observation>);
        let mut seen = || {
            let is_woken = watcher.has_changed().unwrap();
            let last = watcher.borrow_and_update();
            (is_woken, last.as_ref().map(|last| last.revision.0))
        };
        assert!(publish(&watchers, observation(1, 0, 1)));
        assert_eq!(seen(), (true, Some(1)));
        assert!(publish(&watchers, observation(2, 3, 5)));
        assert_eq!(seen(), (true, Some(2)));
        for (began, ended) in [(2, 4), (4, 6)] {
            assert!(!publish(&watchers, observation(1, began, ended)));
            assert_eq!(seen(), (false, Some(2)));
        }
        // The same state again, read later.
        assert!(publish(&watchers, observation(2, 9, 10)));
        assert!(!publish(&watchers, observation(1, 7, 8)));
        assert_eq!(seen(), (false, Some(2)));
        assert!(publish(&watchers, observation(1, 11, 12)));
        assert_eq!(seen(), (true, Some(1)));
    }
}
