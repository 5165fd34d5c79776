//! The policy of retries: how many, how long, and with which pauses.

use std::time::Duration;

/// How often and for how long a request is tried, with exponential backoff and jitter.
///
/// The pause before the second try is [`first_pause`](Self::first_pause), twice that before the next, and so on up to
/// [`longest_pause`](Self::longest_pause); half of each is random, so that clients that fail together do not retry together. If the
/// server names a time (`retry_after`), the pause is at least that long.
///
/// A request that waits for a lock ([`Acquire::wait`](crate::Acquire::wait), [`Lock::wait`](crate::Lock::wait)) is tried until its wait is
/// over, whatever the limits, unless there is to be a single try: a server that restarts does not end a wait.
///
/// A request is retried only if it was certainly not carried out, or may safely be carried out twice. See
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
    /// A single try.
    pub fn never() -> Self {
        Self::default().attempts(1)
    }

    /// The maximum number of tries, including the first; at least one.
    #[must_use]
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.attempts = attempts.max(1);
        self
    }

    /// The longest pause before the second try.
    #[must_use]
    pub fn first_pause(mut self, pause: Duration) -> Self {
        self.first_pause = pause;
        self
    }

    /// The longest pause before any try, unless the server names a longer one.
    #[must_use]
    pub fn longest_pause(mut self, pause: Duration) -> Self {
        self.longest_pause = pause;
        self
    }

    /// How long after the first try another one may begin.
    #[must_use]
    pub fn within(mut self, time: Duration) -> Self {
        self.within = time;
        self
    }

    /// Also retries when another client holds the lock, which is not the default.
    ///
    /// Waiting in the server's queue ([`Acquire::wait`](crate::Acquire::wait), [`Lock::wait`](crate::Lock::wait)) is fair and faster.
    /// If one of many machines is to run a job, the others must not retry: after a run that is shorter than their pause, they would
    /// run it again.
    #[must_use]
    pub fn on_contention(mut self) -> Self {
        self.is_for_contention = true;
        self
    }

    /// For background work, which is pointless after `time`.
    pub(crate) fn in_background(time: Duration) -> Self {
        Self::default()
            .attempts(u32::MAX)
            .first_pause(Duration::from_millis(50))
            .longest_pause(Duration::from_secs(1))
            .within(time)
    }

    /// The pause after `failed` tries: half of it is fixed, the other half random.
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
            // A thousand draws reach the outer tenth on either side.
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
    fn the_longest_pauses_do_not_overflow() {
        let retry = Retry::default()
            .first_pause(Duration::MAX)
            .longest_pause(Duration::MAX);
        assert!(retry.backoff(7) >= Duration::MAX / 2);
    }
}
