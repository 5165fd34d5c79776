//! How often and how long a request is tried.

use std::time::Duration;

/// How often and how long a request is tried, and the pauses in between.
///
/// The pause before the second try is half of [`first_pause`](Self::first_pause) to all of it at random, twice that before the
/// next, and so on up to [`longest_pause`](Self::longest_pause): those who failed together do not come back together. A server
/// that names a time (`retry_after`) is not asked again earlier.
///
/// Only what certainly was not carried out is tried again, and what does no harm the second time. See
/// [`Call::idempotent`](crate::Call::idempotent).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retry {
    pub(crate) attempts: u32,
    first_pause: Duration,
    longest_pause: Duration,
    pub(crate) within: Duration,
    pub(crate) is_for_contention: bool,
}

impl Default for Retry {
    /// Four tries within 15 seconds, the first pause 100 milliseconds, the longest 2 seconds.
    fn default() -> Self {
        Self {
            attempts: 4,
            first_pause: Duration::from_millis(100),
            longest_pause: Duration::from_secs(2),
            within: Duration::from_secs(15),
            is_for_contention: false,
        }
    }
}

impl Retry {
    /// One try.
    pub fn never() -> Self {
        Self::default().attempts(1)
    }

    /// How many tries there are at most, the first one counted; never less than one.
    #[must_use]
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.attempts = attempts.max(1);
        self
    }

    /// The pause before the second try at most.
    #[must_use]
    pub fn first_pause(mut self, pause: Duration) -> Self {
        self.first_pause = pause;
        self
    }

    /// The pause before any try at most, unless the server names a longer one.
    #[must_use]
    pub fn longest_pause(mut self, pause: Duration) -> Self {
        self.longest_pause = pause;
        self
    }

    /// The time from the first try after which none begins any more.
    #[must_use]
    pub fn within(mut self, time: Duration) -> Self {
        self.within = time;
        self
    }

    /// Tries again also when somebody else holds the lock.
    ///
    /// Not so by default. Waiting in the server's queue ([`Acquire::wait`](crate::Acquire::wait), [`Lock::wait`](crate::Lock::wait))
    /// is fair and faster; and who does not wait often means it: a job that runs on one of many machines would run a
    /// second time where the first run took less time than a pause.
    #[must_use]
    pub fn on_contention(mut self) -> Self {
        self.is_for_contention = true;
        self
    }

    /// For what nobody waits for, as long as it is of use.
    pub(crate) fn in_background(time: Duration) -> Self {
        Self::default()
            .attempts(u32::MAX)
            .first_pause(Duration::from_millis(50))
            .longest_pause(Duration::from_secs(1))
            .within(time)
    }

    /// The pause after so many failed tries: half of it is certain, the other half random.
    pub(crate) fn backoff(&self, failed: u32) -> Duration {
        let doubled = 2_u32.saturating_pow(failed.saturating_sub(1));
        let full = self
            .first_pause
            .saturating_mul(doubled)
            .min(self.longest_pause);
        full / 2 + (full / 2).mul_f64(fastrand::f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Duration = Duration::from_millis(100);
    const LONGEST: Duration = Duration::from_millis(700);

    #[test]
    fn pauses_double_up_to_the_longest_with_equal_jitter() {
        let retry = Retry::default().first_pause(FIRST).longest_pause(LONGEST);
        for (failed, full) in [
            (1, 100),
            (2, 200),
            (3, 400),
            (4, 700),
            (5, 700),
            (u32::MAX, 700),
        ] {
            let full = Duration::from_millis(full);
            let pauses: Vec<Duration> = (0..1000).map(|_| retry.backoff(failed)).collect();
            let (least, most) = (pauses.iter().min().unwrap(), pauses.iter().max().unwrap());
            assert!(*least >= full / 2, "{failed}: {least:?}");
            assert!(*most <= full, "{failed}: {most:?}");
            // A thousand draws that leave out a tenth on either side are no accident.
            assert!(*least < full.mul_f64(0.55), "{failed}: {least:?}");
            assert!(*most > full.mul_f64(0.95), "{failed}: {most:?}");
        }
    }

    #[test]
    fn there_is_always_one_try() {
        assert_eq!(Retry::default().attempts(0).attempts, 1);
        assert_eq!(Retry::never().attempts, 1);
    }

    #[test]
    fn endless_pauses_do_not_overflow() {
        let retry = Retry::default()
            .first_pause(Duration::MAX)
            .longest_pause(Duration::MAX);
        assert!(retry.backoff(7) >= Duration::MAX / 2);
    }
}
