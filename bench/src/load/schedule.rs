//! When the requests of one connection or caller are due, and which of them are part of the result.

use std::time::{Duration, Instant};

use super::timer::Timer;
use super::{Pace, Window};

pub(super) struct Schedule {
    pace: Pace,
    window: Window,
    due: Due,
}

enum Due {
    AtOnce,
    Regularly { next: Instant, interval: Duration },
    Remaining(u64),
}

impl Schedule {
    /// The schedule of connection `number` of `connections`, which share the pace evenly.
    pub(super) fn new(pace: Pace, window: Window, number: usize, connections: usize) -> Self {
        let due = match pace {
            Pace::Closed => Due::AtOnce,
            Pace::Count(count) => Due::Remaining(count / connections as u64),
            Pace::Open { per_second } => {
                let interval = Duration::from_secs_f64(connections as f64 / per_second);
                // The offsets spread the requests of all connections evenly.
                let offset = interval.mul_f64(number as f64 / connections as f64);
                Due::Regularly {
                    next: Instant::now() + offset,
                    interval,
                }
            }
        };
        Self { pace, window, due }
    }

    pub(super) fn timer(&self) -> std::io::Result<Option<Timer>> {
        let Due::Regularly { next, interval } = self.due else {
            return Ok(None);
        };
        let first = next.saturating_duration_since(Instant::now());
        Timer::start(first, interval).map(Some)
    }

    /// Takes the next request if it is due, and returns its due time.
    pub(super) fn next(&mut self, now: Instant) -> Option<Instant> {
        match &mut self.due {
            Due::AtOnce => (now < self.window.closes).then_some(now),
            Due::Regularly { next, interval } => {
                let due = *next;
                let is_due = due <= now && due < self.window.closes;
                is_due.then(|| {
                    *next += *interval;
                    due
                })
            }
            Due::Remaining(count) => {
                *count = count.checked_sub(1)?;
                Some(now)
            }
        }
    }

    pub(super) fn is_over(&self) -> bool {
        match self.due {
            Due::AtOnce => Instant::now() >= self.window.closes,
            Due::Regularly { next, .. } => next >= self.window.closes,
            Due::Remaining(count) => count == 0,
        }
    }

    /// Whether a request with this due time that is answered now is part of the result.
    pub(super) fn counts(&self, due: Instant, now: Instant) -> bool {
        match self.pace {
            Pace::Closed => self.window.contains(now),
            // By its due time: by the time of the answer, the slowest requests would be left out.
            Pace::Open { .. } => self.window.contains(due),
            Pace::Count(_) => true,
        }
    }
}
