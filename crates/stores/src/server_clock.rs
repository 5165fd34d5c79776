//! Bounds of the difference between a server's clock and the monotonic clock of this process.
//!
//! Each answer that carries the server's time narrows the bounds. Over time they widen again, because clocks drift.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use forrst_lock::{Reading, Timestamp};
use tokio::time::Instant;

/// The clocks drift apart by at most one part in this many.
const DRIFT: i128 = 1000;
const MICROS: i128 = 1000;

#[derive(Debug)]
pub(crate) struct ServerClock {
    /// The zero of our time, which is in microseconds.
    base: Instant,
    bounds: Mutex<Bounds>,
}

/// Bounds of the server's time (microseconds since 1970) minus ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Bounds {
    lower: i128,
    upper: i128,
    /// The time for which they were computed, in our time.
    at: i128,
}

impl Bounds {
    /// The bounds at a later time.
    fn widened(self, at: i128) -> Self {
        let drift = ((at - self.at).max(0) + DRIFT - 1) / DRIFT;
        Self {
            lower: self.lower - drift,
            upper: self.upper + drift,
            at: self.at.max(at),
        }
    }
}

impl ServerClock {
    /// A clock with the bounds of the first answer that carried the server's time.
    pub(crate) fn new(sent: Instant, received: Instant, now: Timestamp) -> Self {
        let base = sent;
        Self {
            base,
            bounds: Mutex::new(observed(0, micros_since(base, received), now)),
        }
    }

    /// Narrows the bounds by an answer that carried the server's time, which the server read between these two instants.
    pub(crate) fn observe(&self, sent: Instant, received: Instant, now: Timestamp) {
        let sent = micros_since(self.base, sent);
        let new = observed(sent, micros_since(self.base, received), now);
        let mut bounds = self.bounds.lock().unwrap_or_else(PoisonError::into_inner);
        let at = bounds.at.max(new.at);
        let (old, new) = (bounds.widened(at), new.widened(at));
        let both = Bounds {
            lower: old.lower.max(new.lower),
            upper: old.upper.min(new.upper),
            at,
        };
        // If they contradict each other, the server's clock was set.
        *bounds = if both.lower <= both.upper { both } else { new };
    }

    /// Until when, by its clock, the server may begin a command that was sent at `sent` and times out after `timeout`: as long as its
    /// clock reads this or less, the command has not timed out here.
    pub(crate) fn not_after(&self, sent: Instant, timeout: Duration) -> Timestamp {
        let given_up = micros_since(self.base, sent + timeout);
        let earliest = given_up + self.bounds().widened(given_up).lower;
        // The server's clock shows whole milliseconds, rounded down.
        millis(earliest.div_euclid(MICROS) - 1)
    }

    /// A pair to convert the server's times with: at that instant, its clock showed at most that time.
    pub(crate) fn reading(&self) -> Reading {
        let Bounds { upper, at, .. } = self.bounds();
        let since_base = Duration::from_micros(u64::try_from(at).unwrap_or(0));
        let latest = at + upper;
        Reading {
            at: self.base + since_base,
            now: millis((latest + MICROS - 1).div_euclid(MICROS)),
        }
    }

    fn bounds(&self) -> Bounds {
        *self.bounds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The bounds that one answer gives, as of the instant at which it was received.
fn observed(sent: i128, received: i128, now: Timestamp) -> Bounds {
    let now = i128::from(now.as_millis()) * MICROS;
    let at_sent = Bounds {
        lower: now - received,
        // It is rounded down by up to a millisecond.
        upper: now + MICROS - sent,
        at: sent,
    };
    at_sent.widened(received)
}

fn micros_since(base: Instant, instant: Instant) -> i128 {
    let micros = |duration: Duration| i128::try_from(duration.as_micros()).unwrap_or(i128::MAX);
    match instant.checked_duration_since(base) {
        Some(after) => micros(after),
        None => -micros(base.duration_since(instant)) - 1,
    }
}

fn millis(millis: i128) -> Timestamp {
    Timestamp::from_millis(u64::try_from(millis.max(0)).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLI: Duration = Duration::from_millis(1);
    const HOUR: u64 = 3_600_000;
    /// By how many milliseconds the server's clock is ahead of ours in these tests.
    const AHEAD: u64 = 1_000_000;

    /// Our time and the server's, which reads whole milliseconds.
    struct TestClocks {
        start: Instant,
        clock: ServerClock,
    }

    impl TestClocks {
        /// After a first answer, which took this long to come back.
        fn new(took: u64) -> Self {
            let start = Instant::now();
            let now = Timestamp::from_millis(AHEAD);
            Self {
                start,
                clock: ServerClock::new(start, start + MILLI * u32::try_from(took).unwrap(), now),
            }
        }

        fn at(&self, millis: u64) -> Instant {
            self.start + Duration::from_millis(millis)
        }

        fn observe(&self, sent: u64, received: u64, now: u64) {
            let now = Timestamp::from_millis(now);
            self.clock.observe(self.at(sent), self.at(received), now);
        }

        /// The limit of a command that times out as soon as it is sent.
        fn not_after(&self, given_up: u64) -> u64 {
            let not_after = self.clock.not_after(self.at(given_up), Duration::ZERO);
            not_after.as_millis()
        }

        /// The latest time that the server's clock may have shown when ours was zero.
        fn latest_at_start(&self) -> u64 {
            let Reading { at, now } = self.clock.reading();
            now.as_millis() - u64::try_from((at - self.start).as_millis()).unwrap()
        }
    }

    #[test]
    fn an_answer_bounds_the_clock_by_its_round_trip() {
        let clocks = TestClocks::new(100);
        // The server may have read its clock at any time between the command and the answer.
        let earliest = clocks.not_after(100);
        assert!((AHEAD - 2..AHEAD).contains(&earliest), "{earliest}");
        let latest = clocks.latest_at_start();
        assert!((AHEAD + 1..=AHEAD + 2).contains(&latest), "{latest}");
    }

    #[test]
    fn the_timeout_counts_from_when_it_was_sent() {
        let clocks = TestClocks::new(0);
        let timeout = Duration::from_secs(2);
        let not_after = clocks.clock.not_after(clocks.at(0), timeout).as_millis();
        // Two milliseconds for the drift, one for the rounding.
        assert_eq!(not_after, AHEAD + 2000 - 3);
    }

    #[test]
    fn a_quick_answer_narrows_what_a_slow_one_left_open() {
        let clocks = TestClocks::new(500);
        let before = clocks.not_after(600);
        clocks.observe(510, 512, AHEAD + 511);
        let after = clocks.not_after(600);
        assert!(before + 400 < after, "{before} {after}");
        assert!(after < AHEAD + 600);
        // A slow one does not widen the bounds.
        clocks.observe(513, 600, AHEAD + 514);
        assert!(clocks.not_after(600) + 1 >= after);
    }

    #[test]
    fn bounds_widen_as_time_passes() {
        let clocks = TestClocks::new(1);
        let now = HOUR;
        let not_after = clocks.not_after(now);
        assert!(not_after <= AHEAD + now - now / 1000, "{not_after}");
        // A drift of half of that is within the bounds.
        clocks.observe(now, now + 1, AHEAD + now + now / 2000);
        let not_after = clocks.not_after(now + 1);
        let exact = AHEAD + now + now / 2000;
        assert!((exact - 3..=exact + 1).contains(&not_after), "{not_after}");
    }

    #[test]
    fn a_clock_that_was_set_is_followed_at_once() {
        for stepped in [AHEAD + HOUR, AHEAD - 900_000] {
            let clocks = TestClocks::new(2);
            clocks.observe(1000, 1002, stepped);
            let not_after = clocks.not_after(1002);
            assert!((stepped - 2..=stepped).contains(&not_after), "{not_after}");
            let latest = clocks.latest_at_start() + 1000;
            assert!((stepped + 1..=stepped + 3).contains(&latest), "{latest}");
        }
    }

    #[test]
    fn answers_that_overlap_may_come_in_any_order() {
        let clocks = TestClocks::new(1);
        clocks.observe(200, 210, AHEAD + 205);
        let before = clocks.not_after(300);
        clocks.observe(100, 208, AHEAD + 101);
        assert_eq!(clocks.not_after(300), before);
    }

    #[test]
    fn the_bounds_always_contain_the_true_difference() {
        let clocks = TestClocks::new(3);
        let mut at = 3;
        for _ in 0..10_000 {
            let (there, back) = (fastrand::u64(0..20), fastrand::u64(0..20));
            let read = at + fastrand::u64(0..50) + there;
            clocks.observe(read - there, read + back, AHEAD + read);
            at = read + back;
            // The server's clock is exactly `AHEAD` of ours.
            assert!(clocks.not_after(at) < AHEAD + at);
            assert!(clocks.latest_at_start() >= AHEAD);
        }
    }
}
