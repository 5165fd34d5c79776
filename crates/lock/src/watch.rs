//! Watching a key: a client is notified when the leases on it change, instead of polling its status.
//!
//! All watchers of a key share one task, which reads the status once for all of them: after a step of this process on that key, when
//! its next lease expires, when the store reports that another process may have changed it, and periodically, in case that is lost or
//! the store cannot report it. Watchers that begin at the same time share a read, too. So a change costs few reads, however many
//! watch it, and one wake-up for each watcher; and a watcher costs no more than a receiver of a channel.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Mutex as AsyncMutex, Notify, watch};
use tokio::task::{AbortHandle, yield_now};
use tokio::time::sleep;

use crate::store::{Answer, LockStatus, LockStore, StoreError};
use crate::{LockName, Owner, Revision, Timestamp};

/// How often a key is read in a shared store, where a change by another process may not be notified.
const SHARED_POLL: Duration = Duration::from_millis(500);
/// The least for each watched key, so that many of them do not keep the store busy: 4 000 reads a second in all.
const POLL_PER_KEY: Duration = Duration::from_micros(250);
/// How often a key is read whose changes by other processes are reported, in case a report is lost.
const REPORTED_POLL: Duration = Duration::from_secs(5);
/// How often a key is read that only this process changes. Each change is notified, so this is only a safety net.
const OWN_POLL: Duration = Duration::from_secs(30);
/// How soon a key is read again after the store has failed.
const FAILURE_POLL: Duration = Duration::from_secs(1);

/// The state of a key as its watchers see it.
#[derive(Debug, Clone)]
pub struct Observation {
    /// The status.
    pub status: Arc<LockStatus>,
    /// The store's time of it.
    pub now: Timestamp,
    /// The revision of the status, to wait for the next change.
    pub revision: Revision,
}

impl Observation {
    pub(crate) fn new(answer: Answer<LockStatus>) -> Self {
        Self {
            revision: Revision::of(&answer.outcome),
            status: Arc::new(answer.outcome),
            now: answer.now,
        }
    }

    /// As it is shown to this owner: the key has the revision of a free one while others hold it, so their leases come and go
    /// unnoticed.
    pub(crate) fn shown_to(self, owner: Option<&Owner>) -> Self {
        match owner {
            Some(owner) if !self.status.shows(owner) => Self {
                revision: Revision::FREE,
                ..self
            },
            _ => self,
        }
    }
}

/// The keys that are watched in this process.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    /// Replaces the usual intervals of reads.
    poll: Option<Duration>,
    /// So that steps on keys cost nothing more while no key is watched.
    count: AtomicUsize,
    keys: Mutex<HashMap<LockName, WatchedKey>>,
}

#[derive(Debug)]
struct WatchedKey {
    watchers: usize,
    changed: Arc<Notify>,
    reads: Arc<Reads>,
    task: AbortHandle,
}

impl Watches {
    pub(crate) fn new(poll: Option<Duration>) -> Self {
        Self {
            poll,
            ..Self::default()
        }
    }

    /// Watches a key from now on.
    pub(crate) fn join(self: &Arc<Self>, name: &LockName, store: &Arc<dyn LockStore>) -> Watcher {
        let mut keys = self.keys();
        let key = keys.entry(name.clone()).or_insert_with(|| {
            self.count.fetch_add(1, Ordering::Relaxed);
            let changed = Arc::new(Notify::new());
            let reads = Arc::new(Reads::new(name.clone(), store.clone()));
            let reader = Reader {
                reads: reads.clone(),
                watches: self.clone(),
                changed: changed.clone(),
            };
            let task = tokio::spawn(reader.run()).abort_handle();
            WatchedKey {
                watchers: 0,
                changed,
                reads,
                task,
            }
        });
        key.watchers += 1;
        Watcher {
            observed: key.reads.last.subscribe(),
            reads: key.reads.clone(),
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

    /// How long to wait for the report of a change before a key is read anyway.
    fn poll(&self, is_shared: bool, is_reported: bool) -> Duration {
        if let Some(poll) = self.poll {
            return poll;
        }
        let poll = match (is_shared, is_reported) {
            (false, _) => return OWN_POLL,
            (true, false) => SHARED_POLL,
            (true, true) => REPORTED_POLL,
        };
        let keys = u32::try_from(self.count()).unwrap_or(u32::MAX);
        poll.max(POLL_PER_KEY.saturating_mul(keys))
    }

    /// No critical section panics half-way, so a poisoned map is consistent.
    fn keys(&self) -> MutexGuard<'_, HashMap<LockName, WatchedKey>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Watches a key until it is dropped.
#[derive(Debug)]
pub(crate) struct Watcher {
    observed: watch::Receiver<Option<Read>>,
    reads: Arc<Reads>,
    watches: Arc<Watches>,
}

impl Watcher {
    /// The present state of the key.
    pub(crate) async fn read(&self) -> Result<Observation, StoreError> {
        self.reads.read().await
    }

    /// The next state of the key that is another one than before. It is no older than any that this watcher has seen.
    pub(crate) async fn next(&mut self) -> Observation {
        loop {
            if self.observed.changed().await.is_err() {
                // The sender lives as long as there is a watcher.
                std::future::pending::<()>().await;
            }
            if let Some(read) = &*self.observed.borrow_and_update() {
                return read.observation.clone();
            }
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let mut keys = self.watches.keys();
        let Some(key) = keys.get_mut(&self.reads.name) else {
            return;
        };
        key.watchers -= 1;
        if key.watchers == 0 {
            key.task.abort();
            keys.remove(&self.reads.name);
            self.watches.count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Reads one key for all of its watchers: one read after the other, so that an older state never replaces a newer one.
#[derive(Debug)]
struct Reads {
    name: LockName,
    store: Arc<dyn LockStore>,
    /// Numbers the calls and the reads in the order in which they begin.
    count: AtomicU64,
    /// Locked during a read. If the last one failed: its number, and why.
    failed: AsyncMutex<Option<(u64, StoreError)>>,
    /// The last read that did not fail. Its receivers are woken when the revision changes.
    last: watch::Sender<Option<Read>>,
}

#[derive(Debug)]
struct Read {
    number: u64,
    observation: Observation,
}

impl Reads {
    fn new(name: LockName, store: Arc<dyn LockStore>) -> Self {
        Self {
            name,
            store,
            count: AtomicU64::new(0),
            failed: AsyncMutex::new(None),
            last: watch::Sender::new(None),
        }
    }

    /// The state of the key, by a read that begins after this call. Calls that wait for a read share it.
    async fn read(&self) -> Result<Observation, StoreError> {
        let called = self.next_number();
        // All calls that are made at the same time have their numbers before one of them reads.
        yield_now().await;
        let mut failed = self.failed.lock().await;
        if let Some(last) = &*self.last.borrow()
            && last.number > called
        {
            return Ok(last.observation.clone());
        }
        if let Some((number, why)) = &*failed
            && *number > called
        {
            return Err(why.shared());
        }
        let number = self.next_number();
        match self.store.inspect(&self.name).await {
            Ok(answer) => {
                let observation = Observation::new(answer);
                let read = Read {
                    number,
                    observation: observation.clone(),
                };
                self.last.send_if_modified(|last| {
                    let before = last.replace(read);
                    before.is_none_or(|before| before.observation.revision != observation.revision)
                });
                Ok(observation)
            }
            Err(why) => {
                *failed = Some((number, why.shared()));
                Err(why)
            }
        }
    }

    /// A read sees what was done before a call with a smaller number, on whichever thread.
    fn next_number(&self) -> u64 {
        self.count.fetch_add(1, Ordering::AcqRel)
    }
}

/// Reads a key whenever it may have changed.
struct Reader {
    reads: Arc<Reads>,
    watches: Arc<Watches>,
    changed: Arc<Notify>,
}

impl Reader {
    async fn run(self) {
        let store = &self.reads.store;
        let is_shared = store.capabilities().shared;
        // Before the first read, so that no change after it is missed.
        let watch = store.watch(&self.reads.name);
        let mut known = None;
        let mut is_unreported = false;
        loop {
            let is_reported = watch.as_ref().is_some_and(|watch| watch.is_live());
            let poll = self.watches.poll(is_shared, is_reported);
            let mut pause = poll;
            // A store that fails is read again soon; the watchers keep waiting.
            if let Ok(read) = self.reads.read().await {
                let is_new = known.replace(read.revision) != Some(read.revision);
                if let Some(watch) = watch.as_ref().filter(|_| is_new && is_unreported) {
                    watch.renew();
                }
                let leases = read.status.holders.iter();
                let ends = leases.map(|lease| lease.expires_at.remaining(read.now));
                // A lease is over when its whole last millisecond is.
                let next_end = ends.min().map(|left| left + Duration::from_millis(1));
                pause = pause.min(next_end.unwrap_or(pause));
            } else {
                pause = pause.min(FAILURE_POLL);
            }
            is_unreported = tokio::select! {
                biased;
                () = self.changed.notified() => false,
                // Not at the end of a lease, which the store reports a moment later.
                () = sleep(pause) => pause == poll,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_polls_of_many_keys_are_bounded_together() {
        let watches = Watches::default();
        let intervals = [(false, false), (true, false), (true, true)];
        let polls = |keys| {
            watches.count.store(keys, Ordering::Relaxed);
            intervals.map(|(is_shared, is_reported)| watches.poll(is_shared, is_reported))
        };
        assert_eq!(polls(1), [OWN_POLL, SHARED_POLL, REPORTED_POLL]);
        let many = Duration::from_secs(25);
        assert_eq!(polls(100_000), [OWN_POLL, many, many]);
    }
}
