//! Who holds what, by all that can be seen from here.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use forrst_client::Fence;
use serde::Serialize;
use tokio::sync::watch;

/// So many violations are told in full.
const TOLD: usize = 20;

/// Sees every grant and every release, and whether they could have been.
pub(super) struct Referee {
    keys: Vec<Mutex<Key>>,
    violations: Mutex<Vec<Violation>>,
    violation_count: AtomicU64,
    grants: AtomicU64,
    is_over: watch::Sender<bool>,
}

#[derive(Default)]
struct Key {
    /// The largest one that was seen.
    fence: Option<Fence>,
    holders: Vec<Grant>,
    /// When its last holder sent the release.
    free_since: Option<Instant>,
}

/// A lock that was granted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Grant {
    pub(super) fence: Fence,
    /// When it ends at the latest, counted from before it was asked for.
    pub(super) held_until: Instant,
}

/// Something that a server must not do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "violation", rename_all = "snake_case")]
pub(super) enum Violation {
    /// A lock was granted while somebody held it.
    Overlap {
        key: usize,
        held: String,
        granted: String,
    },
    /// A later grant of the same lock has a fence that is not larger.
    Fence {
        key: usize,
        before: String,
        after: String,
    },
}

impl Referee {
    pub(super) fn new(keys: usize) -> Self {
        Self {
            keys: (0..keys).map(|_| Mutex::default()).collect(),
            violations: Mutex::default(),
            violation_count: AtomicU64::new(0),
            grants: AtomicU64::new(0),
            is_over: watch::Sender::new(false),
        }
    }

    pub(super) fn keys(&self) -> usize {
        self.keys.len()
    }

    /// To be called when the answer has come. Returns when the holder before began to release it, if there was one.
    pub(super) fn granted(&self, key: usize, grant: Grant, now: Instant) -> Option<Instant> {
        self.grants.fetch_add(1, Ordering::Relaxed);
        let mut record = open(&self.keys[key]);
        // The answer may have been under way for longer than the lease lasts, and then it says nothing about now.
        if grant.held_until > now {
            for held in record.holders.iter().filter(|held| held.held_until > now) {
                self.object(Violation::Overlap {
                    key,
                    held: held.fence.to_string(),
                    granted: grant.fence.to_string(),
                });
            }
            if let Some(before) = record.fence.filter(|before| *before >= grant.fence) {
                self.object(Violation::Fence {
                    key,
                    before: before.to_string(),
                    after: grant.fence.to_string(),
                });
            }
        }
        record.fence = record.fence.max(Some(grant.fence));
        record.holders.retain(|held| held.held_until > now);
        record.holders.push(grant);
        record.free_since
    }

    /// To be called before the request is sent.
    pub(super) fn releases(&self, key: usize, fence: Fence, now: Instant) {
        let mut record = open(&self.keys[key]);
        record.free_since = Some(now);
        if let Some(place) = record.holders.iter().position(|held| held.fence == fence) {
            record.holders.swap_remove(place);
        }
    }

    /// Ends the game before its time.
    pub(super) fn blow_whistle(&self) {
        self.is_over.send_replace(true);
    }

    pub(super) fn is_over(&self) -> bool {
        *self.is_over.borrow()
    }

    /// Returns when it has been ended before its time.
    pub(super) async fn is_ended(&self) {
        // The sender is `self`, so it is there.
        let _ = self.is_over.subscribe().wait_for(|is_over| *is_over).await;
    }

    pub(super) fn grants(&self) -> u64 {
        self.grants.load(Ordering::Relaxed)
    }

    pub(super) fn violation_count(&self) -> u64 {
        self.violation_count.load(Ordering::Relaxed)
    }

    /// The first ones.
    pub(super) fn violations(&self) -> Vec<Violation> {
        open(&self.violations).clone()
    }

    fn object(&self, violation: Violation) {
        self.violation_count.fetch_add(1, Ordering::Relaxed);
        let mut told = open(&self.violations);
        if told.len() < TOLD {
            told.push(violation);
        }
    }
}

fn open<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const TTL: Duration = Duration::from_secs(30);

    fn grant(fence: u64, held_until: Instant) -> Grant {
        let fence = format!("{fence:015}").parse().unwrap();
        Grant { fence, held_until }
    }

    #[test]
    fn one_after_the_other_is_fine() {
        let (referee, now) = (Referee::new(2), Instant::now());
        for fence in [1, 2, 7] {
            let grant = grant(fence, now + TTL);
            referee.granted(0, grant, now);
            referee.releases(0, grant.fence, now);
        }
        referee.granted(1, grant(3, now + TTL), now);
        assert_eq!(referee.violations(), []);
        assert_eq!(referee.grants(), 4);
    }

    #[test]
    fn a_lock_is_free_from_the_moment_it_is_released() {
        let (referee, now) = (Referee::new(1), Instant::now());
        let later = now + Duration::from_secs(1);
        assert_eq!(referee.granted(0, grant(1, now + TTL), now), None);
        referee.releases(0, grant(1, now).fence, later);
        assert_eq!(
            referee.granted(0, grant(2, later + TTL), later),
            Some(later)
        );
    }

    #[test]
    fn two_at_once_are_an_overlap() {
        let (referee, now) = (Referee::new(1), Instant::now());
        referee.granted(0, grant(1, now + TTL), now);
        referee.granted(0, grant(2, now + TTL), now);
        assert_eq!(referee.violation_count(), 1);
        assert!(matches!(
            referee.violations()[..],
            [Violation::Overlap { key: 0, .. }]
        ));
    }

    #[test]
    fn a_fence_that_does_not_grow_is_seen() {
        for second in [4, 5] {
            let (referee, now) = (Referee::new(1), Instant::now());
            referee.granted(0, grant(5, now + TTL), now);
            referee.releases(0, grant(5, now).fence, now);
            referee.granted(0, grant(second, now + TTL), now);
            assert!(
                matches!(referee.violations()[..], [Violation::Fence { .. }]),
                "{second}"
            );
        }
    }

    #[test]
    fn a_lease_that_is_over_is_in_nobodys_way() {
        let (referee, now) = (Referee::new(1), Instant::now());
        referee.granted(0, grant(1, now + TTL), now);
        let later = now + TTL;
        referee.granted(0, grant(2, later + TTL), later);
        // An answer that comes after the end of its own lease proves nothing.
        referee.granted(0, grant(1, later), later);
        assert_eq!(referee.violations(), []);
    }
}
