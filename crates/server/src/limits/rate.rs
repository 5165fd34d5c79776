//! How often a caller may ask.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use forrst_lock::Caller as CallerName;
use tokio::time::Instant;

/// A bucket of tokens for each caller: it holds those of one second, and a request takes one.
#[derive(Debug)]
pub(crate) struct RateLimit {
    /// The time in which one token comes back; none when there is no limit.
    interval: Option<Duration>,
    /// When the bucket of a caller is full again. As many callers as there are names in the keys file.
    full_at: Mutex<HashMap<Option<CallerName>, Instant>>,
}

/// What a full bucket lasts for.
const BURST: Duration = Duration::from_secs(1);

impl RateLimit {
    pub(crate) fn new(per_second: Option<u32>) -> Self {
        Self {
            interval: per_second.map(|count| BURST / count.max(1)),
            full_at: Mutex::default(),
        }
    }

    /// Takes a token.
    ///
    /// # Errors
    ///
    /// How long it takes until there is one.
    pub(crate) fn take(&self, caller: Option<&CallerName>) -> Result<(), Duration> {
        let Some(interval) = self.interval else {
            return Ok(());
        };
        let now = Instant::now();
        let mut callers = self.full_at.lock().unwrap_or_else(PoisonError::into_inner);
        let full_at = callers.entry(caller.cloned()).or_insert(now);
        let then = (*full_at).max(now) + interval;
        match then.checked_duration_since(now + BURST) {
            None | Some(Duration::ZERO) => {
                *full_at = then;
                Ok(())
            }
            Some(too_early_by) => Err(too_early_by),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_is_allowed_and_then_the_rate() {
        let limit = RateLimit::new(Some(10));
        for _ in 0..10 {
            assert_eq!(limit.take(None), Ok(()));
        }
        assert_eq!(limit.take(None), Err(Duration::from_millis(100)));
        advance(Duration::from_millis(100)).await;
        assert_eq!(limit.take(None), Ok(()));
        assert!(limit.take(None).is_err());
        advance(Duration::from_secs(60)).await;
        let taken = std::iter::repeat_with(|| limit.take(None));
        assert_eq!(taken.take_while(Result::is_ok).count(), 10);
    }

    #[tokio::test(start_paused = true)]
    async fn each_caller_has_a_bucket() {
        let limit = RateLimit::new(Some(1));
        let somebody = CallerName::parse("somebody").unwrap();
        assert_eq!(limit.take(None), Ok(()));
        assert_eq!(limit.take(Some(&somebody)), Ok(()));
        assert!(limit.take(None).is_err());
        assert!(limit.take(Some(&somebody)).is_err());
    }

    #[tokio::test]
    async fn without_a_limit_nothing_is_counted() {
        let limit = RateLimit::new(None);
        assert!((0..10_000).all(|_| limit.take(None).is_ok()));
        assert!(limit.full_at.lock().unwrap().is_empty());
    }
}
