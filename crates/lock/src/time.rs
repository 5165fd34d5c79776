//! Points in time by the store's clock, and the ttl of a lease.

use std::ops::Add;
use std::time::Duration;

use tokio::time::Instant;

/// A point in time by the clock of a store: milliseconds since 1970-01-01 UTC.
///
/// Timestamps are only compared with others of the same store, never with this machine's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// Later than every other.
    pub const NEVER: Self = Self(u64::MAX);

    /// The point this many milliseconds after 1970-01-01 UTC.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    /// Milliseconds since 1970-01-01 UTC.
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// The time from `now` until this point; zero if it has passed.
    pub const fn remaining(self, now: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(now.0))
    }
}

impl Add<Duration> for Timestamp {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(whole_millis(duration)))
    }
}

/// Relates the store's clock to this process: the store's clock showed `now` at the local time `at`, or later.
///
/// So `at`, plus the time from `now` to a deadline of the store, is never later than that deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// By the monotonic clock of this process.
    pub at: Instant,
    /// By the store's clock.
    pub now: Timestamp,
}

fn whole_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// How long a lease lasts from its grant: at least a millisecond, at most [`Ttl::MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ttl(u64);

/// Why a duration cannot be the ttl of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidTtl {
    /// Shorter than a millisecond.
    #[error("must be at least 1 millisecond")]
    TooShort,
    /// Longer than the maximum.
    #[error("must be at most {} seconds", .max.as_secs_f64())]
    TooLong {
        /// The maximum.
        max: Duration,
    },
}

impl Ttl {
    /// A year, whatever a server is configured to allow.
    pub const MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);

    /// Drops fractions of a millisecond.
    pub fn new(duration: Duration) -> Result<Self, InvalidTtl> {
        Self::at_most(duration, Self::MAX)
    }

    /// Like [`Ttl::new`], with a maximum that the operator has configured.
    pub fn at_most(duration: Duration, max: Duration) -> Result<Self, InvalidTtl> {
        let max = max.min(Self::MAX);
        if duration > max {
            return Err(InvalidTtl::TooLong { max });
        }
        match whole_millis(duration) {
            0 => Err(InvalidTtl::TooShort),
            millis => Ok(Self(millis)),
        }
    }

    /// As a duration.
    pub const fn as_duration(self) -> Duration {
        Duration::from_millis(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ttl_is_positive_and_bounded() {
        assert_eq!(
            Ttl::new(Duration::from_micros(999)),
            Err(InvalidTtl::TooShort)
        );
        assert_eq!(Ttl::new(Duration::ZERO), Err(InvalidTtl::TooShort));
        assert!(Ttl::new(Duration::from_millis(1)).is_ok());
        assert!(Ttl::new(Ttl::MAX).is_ok());
        assert!(Ttl::new(Ttl::MAX + Duration::from_nanos(1)).is_err());
        let day = Duration::from_secs(86_400);
        assert!(Ttl::at_most(day, day).is_ok());
        assert_eq!(
            Ttl::at_most(day + Duration::from_millis(1), day),
            Err(InvalidTtl::TooLong { max: day })
        );
    }

    #[test]
    fn time_arithmetic_saturates() {
        let late = Timestamp::from_millis(u64::MAX - 1);
        assert_eq!(late + Ttl::MAX, Timestamp::from_millis(u64::MAX));
        assert_eq!(
            Timestamp::from_millis(5).remaining(Timestamp::from_millis(9)),
            Duration::ZERO
        );
    }
}
