//! What happens to locks, for metrics and logs.
//!
//! Counting is a few atomic additions, and events go through a bounded channel that drops the oldest ones when nobody
//! keeps up. So neither can block or fail an operation.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::broadcast;

use crate::{Fence, LockName, Secret, Striped};

/// What can happen to a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// Granted at once.
    Acquired,
    /// Held by somebody else: the caller was refused, or began to wait.
    Contended,
    /// Granted to one who had waited.
    GrantedAfterWait,
    /// One who waited gave up when its time was over.
    TimedOut,
    /// Held by somebody else, and the caller did not want to wait.
    Refused,
    /// Held by somebody else, and too many wait already.
    TooManyWaiters,
    /// The caller went away before it had an answer, or was sent away.
    GivenUp,
    /// The store failed a caller, or has no fences left.
    AcquireFailed,
    /// Given back by its owner.
    Released,
    /// Somebody wanted to give back what was not, or no longer, theirs.
    ReleaseRefused,
    /// Given back for a caller who had gone away.
    Abandoned,
    /// Ran out before anybody gave it back.
    Expired,
    /// Ended by an operator.
    Forced,
    /// A holder in this process found that its lease was no longer its own.
    Lost,
    /// A lease could not be given back because the store failed. A lease that is held here is tried again until it ends.
    ReleaseFailed,
    /// Its end was put off.
    Extended,
    /// Somebody wanted to extend what was not, or no longer, theirs.
    ExtendRefused,
    /// A lease could not be extended because the store failed. One that is held here is tried again until it ends.
    ExtendFailed,
}

impl EventKind {
    /// Every kind, in the order of the counters.
    pub const ALL: [Self; 18] = [
        Self::Acquired,
        Self::Contended,
        Self::GrantedAfterWait,
        Self::TimedOut,
        Self::Refused,
        Self::TooManyWaiters,
        Self::GivenUp,
        Self::AcquireFailed,
        Self::Released,
        Self::ReleaseRefused,
        Self::Abandoned,
        Self::Expired,
        Self::Forced,
        Self::Lost,
        Self::ReleaseFailed,
        Self::Extended,
        Self::ExtendRefused,
        Self::ExtendFailed,
    ];
}

/// Hears of everything that happens, in the moment it does and without missing any: for counters and histograms.
///
/// Called in the middle of operations, so it must not wait.
pub trait Observer: fmt::Debug + Send + Sync + 'static {
    /// As [`Event::kind`] and [`Event::after`].
    fn happened(&self, kind: EventKind, after: Option<Duration>);
}

/// One thing that happened to one lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub kind: EventKind,
    /// The full key, or a hash of it: see [`KeyStyle`].
    pub key: String,
    /// The lease's fence, where there is one.
    pub fence: Option<Fence>,
    /// How long the caller had waited, or the lock had been held; where that is known.
    pub after: Option<Duration>,
}

/// How lock names appear in events. Keys often contain who and what a service deals with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KeyStyle {
    /// As a [hash](Secret::hash) under the secret of the store: the same lock always looks the same.
    #[default]
    Hashed,
    /// As they are.
    Plain,
}

impl KeyStyle {
    /// The name in this style.
    pub fn show(self, name: &LockName, secret: &Secret) -> String {
        match self {
            Self::Plain => name.to_string(),
            Self::Hashed => secret.hash("key", name.as_str()),
        }
    }
}

/// How often each kind of event has happened since the service started.
#[derive(Debug, Default)]
pub struct Stats(Striped<[AtomicU64; EventKind::ALL.len()]>);

impl Stats {
    /// How often this has happened.
    pub fn count(&self, kind: EventKind) -> u64 {
        let counts = self.0.all().map(|counts| &counts[kind as usize]);
        counts.map(|count| count.load(Ordering::Relaxed)).sum()
    }

    fn add(&self, kind: EventKind) {
        self.0.own()[kind as usize].fetch_add(1, Ordering::Relaxed);
    }
}

/// A stream of events from its creation on. One that reads too slowly misses the oldest, and hears how many.
#[derive(Debug)]
pub struct Events {
    receiver: broadcast::Receiver<Event>,
    listeners: Arc<AtomicUsize>,
    missed: u64,
}

impl Events {
    /// The next event; none when the service is gone.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            match self.receiver.recv().await {
                Ok(event) => return Some(event),
                Err(broadcast::error::RecvError::Lagged(count)) => self.missed += count,
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        }
    }

    /// How many events came faster than they were read.
    pub fn missed(&self) -> u64 {
        self.missed
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        self.listeners.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Counts and publishes.
#[derive(Debug)]
pub(crate) struct Reporter {
    stats: Stats,
    channel: broadcast::Sender<Event>,
    // Asking the channel for its receivers takes a lock; most services have none.
    listeners: Arc<AtomicUsize>,
    observer: Option<Arc<dyn Observer>>,
    keys: KeyStyle,
    secret: Secret,
}

impl Reporter {
    const BACKLOG: usize = 4096;

    pub(crate) fn new(keys: KeyStyle, secret: Secret, observer: Option<Arc<dyn Observer>>) -> Self {
        Self {
            stats: Stats::default(),
            channel: broadcast::Sender::new(Self::BACKLOG),
            listeners: Arc::default(),
            observer,
            keys,
            secret,
        }
    }

    pub(crate) fn stats(&self) -> &Stats {
        &self.stats
    }

    pub(crate) fn subscribe(&self) -> Events {
        self.listeners.fetch_add(1, Ordering::Relaxed);
        Events {
            receiver: self.channel.subscribe(),
            listeners: self.listeners.clone(),
            missed: 0,
        }
    }

    pub(crate) fn report(
        &self,
        kind: EventKind,
        name: &LockName,
        fence: Option<Fence>,
        after: Option<Duration>,
    ) {
        self.stats.add(kind);
        if let Some(observer) = &self.observer {
            observer.happened(kind, after);
        }
        if self.listeners.load(Ordering::Relaxed) > 0 {
            // No receiver is left: nobody to tell.
            let _ = self.channel.send(Event {
                kind,
                key: self.keys.show(name, &self.secret),
                fence,
                after,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LockKey;

    fn name() -> LockName {
        LockName::global(&LockKey::parse("card:4111").unwrap())
    }

    #[test]
    fn every_kind_has_its_own_counter() {
        for (index, kind) in EventKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, index);
        }
    }

    #[tokio::test]
    async fn a_reader_that_sleeps_blocks_nobody_and_hears_what_it_missed() {
        let reporter = Reporter::new(KeyStyle::Plain, Secret::random(), None);
        let mut events = reporter.subscribe();
        let total = Reporter::BACKLOG as u64 + 10;
        for _ in 0..total {
            reporter.report(EventKind::Acquired, &name(), None, None);
        }
        assert_eq!(reporter.stats().count(EventKind::Acquired), total);
        assert_eq!(events.next().await.unwrap().key, "lock:card:4111");
        assert_eq!(events.missed(), 10);
    }

    #[test]
    fn hashed_keys_tell_locks_apart_but_do_not_tell_the_key() {
        let other = LockName::global(&LockKey::parse("card:4112").unwrap());
        let secret = Secret::random();
        let shown = KeyStyle::Hashed.show(&name(), &secret);
        assert_eq!(shown, KeyStyle::Hashed.show(&name(), &secret));
        assert_ne!(shown, KeyStyle::Hashed.show(&other, &secret));
        assert_ne!(shown, KeyStyle::Hashed.show(&name(), &Secret::random()));
        assert!(!shown.contains("4111"));
    }
}
