//! The rate limit of requests: a token bucket for each sender.

use std::hash::Hash;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use governor::clock::{Clock, MonotonicClock};
use governor::middleware::NoOpMiddleware;
use governor::state::keyed::HashMapStateStore;
use governor::{Quota, RateLimiter};

/// A token bucket for each sender: it holds the tokens of one second, and a request takes one. Full buckets are evicted.
#[derive(Debug)]
pub(crate) struct RateLimit<K: Hash + Eq + Clone, C: Clock = MonotonicClock> {
    /// `None` when there is no limit.
    buckets: Option<TokenBuckets<K, C>>,
    clock: C,
    taken: AtomicU32,
}

/// Senders that are not told apart share the bucket of `None`.
type TokenBuckets<K, C> =
    RateLimiter<Option<K>, HashMapStateStore<Option<K>>, C, NoOpMiddleware<<C as Clock>::Instant>>;

/// How many tokens are taken between two evictions.
const EVICT_EVERY: u32 = 1024;

/// How many senders may have buckets of their own; in a flood, all others share one.
const MAX_BUCKETS: usize = 65_536;

impl<K: Hash + Eq + Clone> RateLimit<K> {
    pub(crate) fn new(per_second: Option<u32>) -> Self {
        Self::with_clock(per_second, MonotonicClock)
    }
}

impl<K: Hash + Eq + Clone, C: Clock + Clone> RateLimit<K, C> {
    fn with_clock(per_second: Option<u32>, clock: C) -> Self {
        let buckets = per_second.map(|count| {
            let quota = Quota::per_second(NonZeroU32::new(count).unwrap_or(NonZeroU32::MIN));
            RateLimiter::new(quota, HashMapStateStore::default(), clock.clone())
        });
        Self {
            buckets,
            clock,
            taken: AtomicU32::new(0),
        }
    }

    /// Takes a token.
    ///
    /// # Errors
    ///
    /// How long until one is available.
    pub(crate) fn take(&self, sender: Option<&K>) -> Result<(), Duration> {
        let Some(buckets) = &self.buckets else {
            return Ok(());
        };
        if self.taken.fetch_add(1, Ordering::Relaxed) % EVICT_EVERY == EVICT_EVERY - 1 {
            buckets.retain_recent();
            buckets.shrink_to_fit();
        }
        let is_crowded = sender.is_some() && buckets.len() >= MAX_BUCKETS;
        let taken = buckets.check_key(&sender.filter(|_| !is_crowded).cloned());
        taken.map_err(|not_until| not_until.wait_time_from(self.clock.now()))
    }
}

#[cfg(test)]
mod tests {
    use governor::clock::FakeRelativeClock;

    use super::*;

    fn limit(per_second: u32) -> (RateLimit<String, FakeRelativeClock>, FakeRelativeClock) {
        let clock = FakeRelativeClock::default();
        (
            RateLimit::with_clock(Some(per_second), clock.clone()),
            clock,
        )
    }

    #[test]
    fn a_burst_is_allowed_and_then_the_rate() {
        let (limit, clock) = limit(10);
        for _ in 0..10 {
            assert_eq!(limit.take(None), Ok(()));
        }
        assert_eq!(limit.take(None), Err(Duration::from_millis(100)));
        clock.advance(Duration::from_millis(100));
        assert_eq!(limit.take(None), Ok(()));
        assert!(limit.take(None).is_err());
        clock.advance(Duration::from_secs(60));
        let taken = std::iter::repeat_with(|| limit.take(None));
        assert_eq!(taken.take_while(Result::is_ok).count(), 10);
    }

    #[test]
    fn each_caller_has_a_bucket() {
        let (limit, _) = limit(1);
        let other = "other".to_owned();
        assert_eq!(limit.take(None), Ok(()));
        assert_eq!(limit.take(Some(&other)), Ok(()));
        assert!(limit.take(None).is_err());
        assert!(limit.take(Some(&other)).is_err());
    }

    #[test]
    fn without_a_limit_nothing_is_counted() {
        let limit = RateLimit::<String>::new(None);
        assert!((0..10_000).all(|_| limit.take(None).is_ok()));
        assert!(limit.buckets.is_none());
    }

    #[test]
    fn full_buckets_are_evicted() {
        let (limit, clock) = limit(1);
        for number in 0..100_000 {
            clock.advance(Duration::from_millis(10));
            assert_eq!(limit.take(Some(&format!("caller {number}"))), Ok(()));
        }
        let kept = limit.buckets.unwrap().len();
        assert!(kept <= 2 * EVICT_EVERY as usize, "{kept} buckets are kept");
    }

    #[test]
    fn a_flood_from_many_addresses_shares_the_last_bucket() {
        let (limit, _) = limit(1);
        let senders = (0..MAX_BUCKETS + 10).map(|number| number.to_string());
        let refused = senders.filter(|sender| limit.take(Some(sender)).is_err());
        assert_eq!(refused.count(), 9);
        assert_eq!(limit.buckets.unwrap().len(), MAX_BUCKETS + 1);
    }
}
