//! Events of locks, for metrics and logs.
//!
//! Counting is a few atomic additions, and events go through a bounded channel that drops the oldest ones for a slow reader.
//! So neither can block or fail an operation.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::broadcast;

use crate::{Fence, LockName, Secret, Striped};

/// The kinds of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// Granted at once.
    Acquired,
    /// Held or reserved: the call was refused, or began to wait.
    Contended,
    /// Granted to a call that has waited.
    GrantedAfterWait,
    /// The wait of a call timed out.
    TimedOut,
    /// Refused, because it was held and the call did not wait.
    Refused,
    /// Refused, because it was held and too many calls wait already.
    TooManyWaiters,
    /// Ended without an outcome: its caller has disconnected, its attempt was withdrawn, or the service was closed.
    GivenUp,
    /// The store failed, or has no fences left.
    AcquireFailed,
    /// Released by its owner.
    Released,
    /// A release was refused, because the caller does not hold the lease, or no longer.
    ReleaseRefused,
    /// Released for a caller that had disconnected.
    Abandoned,
    /// Expired before it was released.
    Expired,
    /// Ended by force-release.
    Forced,
    /// A guard of this process has lost its lease.
    Lost,
    /// A release failed in the store. For a lease of a guard it is retried until the lease ends.
    ReleaseFailed,
    /// Extended by its owner.
    Extended,
    /// An extension was refused, because the caller does not hold the lease, or no longer.
    ExtendRefused,
    /// An extension failed in the store. For a lease of a guard it is retried until the lease ends.
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

/// Receives every event at once, without loss: for counters and histograms.
///
/// It is called in the middle of operations, so it must not block.
pub trait Observer: fmt::Debug + Send + Sync + 'static {
    /// Called for each event, with its [`kind`](Event::kind) and [`after`](Event::after).
    fn happened(&self, kind: EventKind, after: Option<Duration>);
}

/// An event of one lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Its kind.
    pub kind: EventKind,
    /// The full key, or a hash of it: see [`KeyStyle`].
    pub key: String,
    /// The fence of the lease, if there is one.
    pub fence: Option<Fence>,
    /// How long the call has waited, or the lease was held, if known.
    pub after: Option<Duration>,
}

/// How lock names appear in events. Keys often contain personal or business data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KeyStyle {
    /// As a [hash](Secret::hash) with the secret of the store, always the same for one lock.
    #[default]
    Hashed,
    /// Unchanged.
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
    /// The count of this kind.
    pub fn count(&self, kind: EventKind) -> u64 {
        let counts = self.0.all().map(|counts| &counts[kind as usize]);
        counts.map(|count| count.load(Ordering::Relaxed)).sum()
    }

    fn add(&self, kind: EventKind) {
        self.0.own()[kind as usize].fetch_add(1, Ordering::Relaxed);
    }
}

/// A stream of events from its creation on. A slow reader misses the oldest, and can see how many.
#[derive(Debug)]
pub struct Events {
    receiver: broadcast::Receiver<Event>,
    subscribers: Arc<AtomicUsize>,
    missed: u64,
}

impl Events {
    /// The next event; `None` when the service was dropped.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            match self.receiver.recv().await {
                Ok(event) => return Some(event),
                Err(broadcast::error::RecvError::Lagged(count)) => self.missed += count,
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        }
    }

    /// How many events were dropped because they were not read in time.
    pub fn missed(&self) -> u64 {
        self.missed
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        self.subscribers.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Counts and publishes events.
#[derive(Debug)]
pub(crate) struct Reporter {
    stats: Stats,
    channel: broadcast::Sender<Event>,
    // The channel's own count of receivers takes a lock, and most services have none.
    subscribers: Arc<AtomicUsize>,
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
            subscribers: Arc::default(),
            observer,
            keys,
            secret,
        }
    }

    pub(crate) fn stats(&self) -> &Stats {
        &self.stats
    }

    pub(crate) fn subscribe(&self) -> Events {
        self.subscribers.fetch_add(1, Ordering::Relaxed);
        Events {
            receiver: self.channel.subscribe(),
            subscribers: self.subscribers.clone(),
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
        if name.is_call() {
            return;
        }
        self.stats.add(kind);
        if let Some(observer) = &self.observer {
            observer.happened(kind, after);
        }
        if self.subscribers.load(Ordering::Relaxed) > 0 {
            // Fails only when the last receiver has just been dropped.
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
    async fn a_slow_reader_blocks_no_operation_and_learns_how_many_events_it_missed() {
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
    fn hashed_keys_differ_between_locks_and_do_not_reveal_the_key() {
        let other = LockName::global(&LockKey::parse("card:4112").unwrap());
        let secret = Secret::random();
        let shown = KeyStyle::Hashed.show(&name(), &secret);
        assert_eq!(shown, KeyStyle::Hashed.show(&name(), &secret));
        assert_ne!(shown, KeyStyle::Hashed.show(&other, &secret));
        assert_ne!(shown, KeyStyle::Hashed.show(&name(), &Secret::random()));
        assert!(!shown.contains("4111"));
    }
}
