//! Checks every grant against the holders and fences that are known here.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use forrst_client::Fence;
use serde::Serialize;

/// How many violations are reported in full.
const MAX_REPORTED: usize = 20;

/// Is notified of every grant and every release, and records violations.
pub(super) struct Checker {
    keys: Vec<Mutex<KeyRecord>>,
    violations: Mutex<Vec<Violation>>,
    violation_count: AtomicU64,
    grants: AtomicU64,
}

#[derive(Default)]
struct KeyRecord {
    /// The largest fence that was granted.
    fence: Option<Fence>,
    holders: Vec<Grant>,
    /// When the last holder sent its release.
    free_since: Option<Instant>,
}

/// A lock that was granted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Grant {
    pub(super) fence: Fence,
    /// When the lease ends at the earliest: one ttl after the moment just before the request was sent.
    pub(super) held_until: Instant,
}

/// A broken promise of the server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "violation", rename_all = "snake_case")]
pub(super) enum Violation {
    /// A lock was granted while another lease held it.
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

impl Checker {
    pub(super) fn new(keys: usize) -> Self {
        Self {
            keys: (0..keys).map(|_| Mutex::default()).collect(),
            violations: Mutex::default(),
            violation_count: AtomicU64::new(0),
            grants: AtomicU64::new(0),
        }
    }

    pub(super) fn keys(&self) -> usize {
        self.keys.len()
    }

    /// To be called when the answer has arrived. Returns when the previous holder began to release the lock, if there was one.
    pub(super) fn granted(&self, key: usize, grant: Grant, now: Instant) -> Option<Instant> {
        self.grants.fetch_add(1, Ordering::Relaxed);
        let mut record = open(&self.keys[key]);
        // An answer that took longer than the ttl says nothing about who holds the lock now.
        if grant.held_until > now {
            for held in record.holders.iter().filter(|held| held.held_until > now) {
                self.report(Violation::Overlap {
                    key,
                    held: held.fence.to_string(),
                    granted: grant.fence.to_string(),
                });
            }
            if let Some(before) = record.fence.filter(|before| *before >= grant.fence) {
                self.report(Violation::Fence {
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
        if let Some(index) = record.holders.iter().position(|held| held.fence == fence) {
            record.holders.swap_remove(index);
        }
    }

    pub(super) fn grants(&self) -> u64 {
        self.grants.load(Ordering::Relaxed)
    }

    pub(super) fn violation_count(&self) -> u64 {
        self.violation_count.load(Ordering::Relaxed)
    }

    /// The first violations.
    pub(super) fn violations(&self) -> Vec<Violation> {
        open(&self.violations).clone()
    }

    fn report(&self, violation: Violation) {
        self.violation_count.fetch_add(1, Ordering::Relaxed);
        let mut reported = open(&self.violations);
        if reported.len() < MAX_REPORTED {
            reported.push(violation);
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
    fn holders_one_after_the_other_are_no_violation() {
        let (checker, now) = (Checker::new(2), Instant::now());
        for fence in [1, 2, 7] {
            let grant = grant(fence, now + TTL);
            checker.granted(0, grant, now);
            checker.releases(0, grant.fence, now);
        }
        checker.granted(1, grant(3, now + TTL), now);
        assert_eq!(checker.violations(), []);
        assert_eq!(checker.grants(), 4);
    }

    #[test]
    fn a_lock_is_free_from_the_moment_it_is_released() {
        let (checker, now) = (Checker::new(1), Instant::now());
        let later = now + Duration::from_secs(1);
        assert_eq!(checker.granted(0, grant(1, now + TTL), now), None);
        checker.releases(0, grant(1, now).fence, later);
        assert_eq!(
            checker.granted(0, grant(2, later + TTL), later),
            Some(later)
        );
    }

    #[test]
    fn two_at_once_are_an_overlap() {
        let (checker, now) = (Checker::new(1), Instant::now());
        checker.granted(0, grant(1, now + TTL), now);
        checker.granted(0, grant(2, now + TTL), now);
        assert_eq!(checker.violation_count(), 1);
        assert!(matches!(
            checker.violations()[..],
            [Violation::Overlap { key: 0, .. }]
        ));
    }

    #[test]
    fn a_fence_that_does_not_grow_is_seen() {
        for second in [4, 5] {
            let (checker, now) = (Checker::new(1), Instant::now());
            checker.granted(0, grant(5, now + TTL), now);
            checker.releases(0, grant(5, now).fence, now);
            checker.granted(0, grant(second, now + TTL), now);
            assert!(
                matches!(checker.violations()[..], [Violation::Fence { .. }]),
                "{second}"
            );
        }
    }

    #[test]
    fn an_expired_lease_does_not_overlap() {
        let (checker, now) = (Checker::new(1), Instant::now());
        checker.granted(0, grant(1, now + TTL), now);
        let later = now + TTL;
        checker.granted(0, grant(2, later + TTL), later);
        // An answer that comes after the end of its own lease proves nothing.
        checker.granted(0, grant(1, later), later);
        assert_eq!(checker.violations(), []);
    }
}
