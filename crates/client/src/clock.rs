//! Deadlines that count the time while the machine sleeps, too, as the lease on the server does. The monotonic clock stops then.

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// How late a deadline may be noticed after the machine has slept: timers do not count that time.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Two clocks are never read at the same moment: a difference below this is not sleep.
const NOISE: Duration = Duration::from_millis(10);

/// A moment by the monotonic clock, and how long the machine had slept by then.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    pub(crate) instant: Instant,
    slept: Duration,
}

impl Moment {
    pub(crate) fn now() -> Self {
        Self {
            instant: Instant::now(),
            slept: slept(),
        }
    }

    fn slept_since(&self) -> Duration {
        slept().saturating_sub(self.slept)
    }
}

/// The end of a span of time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline {
    since: Moment,
    span: Duration,
}

impl Deadline {
    pub(crate) fn after(since: Moment, span: Duration) -> Self {
        Self { since, span }
    }

    /// The end by the monotonic clock: earlier by the time that the machine has slept.
    pub(crate) fn instant(&self) -> Instant {
        self.instant_after_sleep(self.since.slept_since())
    }

    fn instant_after_sleep(&self, slept: Duration) -> Instant {
        let slept = if slept < NOISE { Duration::ZERO } else { slept };
        let start = self.since.instant;
        let end = start.checked_add(self.span.saturating_sub(slept));
        end.unwrap_or(start)
    }

    pub(crate) fn has_passed(&self) -> bool {
        Instant::now() >= self.instant()
    }

    pub(crate) fn remaining(&self) -> Duration {
        self.instant().saturating_duration_since(Instant::now())
    }

    /// Returns when it has passed.
    pub(crate) async fn passed(&self) {
        while !self.has_passed() {
            sleep(self.remaining().min(CHECK_INTERVAL)).await;
        }
    }
}

/// How long the machine has slept since it was started.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn slept() -> Duration {
    use rustix::time::{ClockId, clock_gettime};

    let read = |clock| Duration::try_from(clock_gettime(clock)).unwrap_or_default();
    let awake = read(ClockId::Monotonic);
    read(ClockId::Boottime).saturating_sub(awake)
}

/// Other systems do not say, or their monotonic clock counts sleep.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn slept() -> Duration {
    Duration::ZERO
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_deadline_passes_after_its_span() {
        let deadline = Deadline::after(Moment::now(), Duration::from_secs(5));
        assert!(!deadline.has_passed());
        assert_eq!(deadline.remaining(), Duration::from_secs(5));
        let start = Instant::now();
        deadline.passed().await;
        assert_eq!(start.elapsed(), Duration::from_secs(5));
        assert!(deadline.has_passed());
        assert_eq!(deadline.remaining(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn time_that_the_machine_sleeps_counts() {
        let since = Moment::now();
        let deadline = Deadline::after(since, Duration::from_secs(5));
        let at = |slept: u64| deadline.instant_after_sleep(Duration::from_millis(slept));
        assert_eq!(at(0), since.instant + Duration::from_secs(5));
        assert_eq!(at(4000), since.instant + Duration::from_secs(1));
        assert_eq!(at(6000), since.instant);
        assert_eq!(at(9), at(0), "noise between two clocks is not sleep");
    }

    #[tokio::test(start_paused = true)]
    async fn a_span_that_overflows_the_clock_has_passed_at_once() {
        assert!(Deadline::after(Moment::now(), Duration::MAX).has_passed());
    }
}
