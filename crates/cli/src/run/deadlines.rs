//! When a command has to end: how the time of a lease is divided between renewal, SIGTERM and SIGKILL.
//!
//! The deadlines are moments of the boot clock, so that `forrst run` and its guard, two processes, mean the same by them.

use std::time::Duration;

use clap::ValueEnum;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// A moment of the clock that counts from the start of the machine. All processes see the same one, it cannot be set, and it
/// counts on while the machine sleeps, as the lease does on the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Moment(Duration);

#[cfg(target_os = "linux")]
const CLOCK: ClockId = ClockId::Boottime;

/// Other systems have no boot clock; this one stands still while the machine sleeps.
#[cfg(not(target_os = "linux"))]
const CLOCK: ClockId = ClockId::Monotonic;

impl Moment {
    pub(super) fn now() -> Self {
        let now = clock_gettime(CLOCK);
        let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
        let nanoseconds = u32::try_from(now.tv_nsec).unwrap_or_default();
        Self(Duration::new(seconds, nanoseconds))
    }

    pub(super) fn after(self, time: Duration) -> Self {
        Self(self.0.saturating_add(time))
    }

    pub(super) fn before(self, time: Duration) -> Self {
        Self(self.0.saturating_sub(time))
    }

    /// How long until then; zero when it has passed.
    pub(super) fn remaining(self) -> Duration {
        self.0.saturating_sub(Self::now().0)
    }

    pub(super) fn has_passed(self) -> bool {
        Self::now() >= self
    }
}

/// What to do when the lock is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLost {
    /// SIGTERM, then SIGKILL
    Terminate,
    /// SIGKILL at once
    Kill,
    /// Nothing: let it run on without the lock
    Ignore,
}

/// Until when a command may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Deadlines {
    /// When it gets SIGTERM.
    pub(super) terminate_at: Option<Moment>,
    /// When it gets SIGKILL.
    pub(super) kill_at: Option<Moment>,
}

impl Deadlines {
    pub(super) const NONE: Self = Self {
        terminate_at: None,
        kill_at: None,
    };

    /// The earlier of the two.
    pub(super) fn next(self) -> Option<Moment> {
        self.terminate_at.into_iter().chain(self.kill_at).min()
    }
}

/// How the time of a lease is divided.
#[derive(Debug, Clone, Copy)]
pub(super) struct Timing {
    pub(super) ttl: Duration,
    pub(super) grace: Duration,
    pub(super) on_lost: OnLost,
}

impl Timing {
    /// The time between SIGTERM and SIGKILL, unless `--grace` sets it.
    pub(super) fn default_grace(ttl: Duration) -> Duration {
        (ttl / 4).min(Duration::from_secs(10))
    }

    /// The longest grace that leaves time for renewals to be tried again.
    pub(super) fn max_grace(ttl: Duration) -> Duration {
        ttl / 2
    }

    /// How often to check whether the lease was renewed.
    pub(super) fn poll_interval(&self) -> Duration {
        (self.ttl / 50).clamp(Duration::from_millis(20), Duration::from_secs(1))
    }

    /// Until when a command may run on a lease that was requested at that moment.
    ///
    /// The server counts the lease from a later moment, so it ends there no earlier than here. The command is killed a little
    /// earlier still, since clocks differ and killing takes time.
    pub(super) fn deadlines(&self, requested_at: Moment) -> Deadlines {
        let kill_at = requested_at.after(self.ttl).before(self.margin());
        match self.on_lost {
            OnLost::Terminate => Deadlines {
                terminate_at: Some(kill_at.before(self.grace)),
                kill_at: Some(kill_at),
            },
            OnLost::Kill => Deadlines {
                terminate_at: None,
                kill_at: Some(kill_at),
            },
            OnLost::Ignore => Deadlines::NONE,
        }
    }

    /// The deadlines of a command whose lease is known to be lost: never later than they were.
    pub(super) fn deadlines_after_loss(&self, current: Deadlines) -> Deadlines {
        let now = Moment::now();
        let no_later = |end: Moment| current.kill_at.map_or(end, |kill_at| kill_at.min(end));
        match self.on_lost {
            OnLost::Terminate => Deadlines {
                terminate_at: Some(now),
                kill_at: Some(no_later(now.after(self.grace))),
            },
            OnLost::Kill => Deadlines {
                terminate_at: None,
                kill_at: Some(now),
            },
            OnLost::Ignore => Deadlines::NONE,
        }
    }

    fn margin(&self) -> Duration {
        (self.ttl / 10).min(Duration::from_secs(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timing(ttl: Duration, on_lost: OnLost) -> Timing {
        let grace = Timing::default_grace(ttl);
        Timing {
            ttl,
            grace,
            on_lost,
        }
    }

    #[test]
    fn renewal_sigterm_and_sigkill_come_in_this_order_and_before_the_lease_ends() {
        for millis in [500, 1_000, 30_000, 86_400_000] {
            let ttl = Duration::from_millis(millis);
            let longest = Timing {
                grace: Timing::max_grace(ttl),
                ..timing(ttl, OnLost::Terminate)
            };
            for timing in [timing(ttl, OnLost::Terminate), longest] {
                let requested_at = Moment::now();
                let deadlines = timing.deadlines(requested_at);
                let [terminate_at, kill_at] =
                    [deadlines.terminate_at, deadlines.kill_at].map(Option::unwrap);
                // The client begins to renew after a third of the ttl, and needs time for that.
                assert!(requested_at.after(ttl * 2 / 5) <= terminate_at, "{ttl:?}");
                assert!(terminate_at < kill_at, "{ttl:?}");
                assert!(kill_at < requested_at.after(ttl), "{ttl:?}");
            }
        }
    }

    #[test]
    fn a_lost_lease_leaves_no_more_time_than_it_had() {
        let timing = timing(Duration::from_secs(40), OnLost::Terminate);
        let soon = Moment::now().after(Duration::from_secs(1));
        let current = Deadlines {
            terminate_at: None,
            kill_at: Some(soon),
        };
        assert_eq!(timing.deadlines_after_loss(current).kill_at, Some(soon));
        let later = timing.deadlines(Moment::now());
        let last = timing.deadlines_after_loss(later);
        assert!(last.kill_at < later.kill_at);
        assert!(last.terminate_at.is_some_and(Moment::has_passed));
    }

    #[test]
    fn a_command_that_ignores_the_loss_has_no_deadlines() {
        let timing = timing(Duration::from_secs(40), OnLost::Ignore);
        assert_eq!(timing.deadlines(Moment::now()), Deadlines::NONE);
        assert_eq!(
            timing.deadlines_after_loss(Deadlines::NONE),
            Deadlines::NONE
        );
    }
}
