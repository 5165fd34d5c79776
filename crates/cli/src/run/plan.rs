//! When what is done about a lease: renewal, warning, the end.

use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::moment::Moment;

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
pub(super) struct Limits {
    /// When it gets SIGTERM.
    pub(super) terminate_at: Option<Moment>,
    /// When it gets SIGKILL.
    pub(super) kill_at: Option<Moment>,
}

/// How the time of a lease is divided.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    pub(super) ttl: Duration,
    pub(super) grace: Duration,
    pub(super) on_lost: OnLost,
}

impl Plan {
    /// How long a command has between SIGTERM and SIGKILL unless told otherwise.
    pub(super) fn usual_grace(ttl: Duration) -> Duration {
        (ttl / 4).min(Duration::from_secs(10))
    }

    /// The longest that leaves time for a renewal to fail before it.
    pub(super) fn longest_grace(ttl: Duration) -> Duration {
        ttl / 2
    }

    /// How often to look whether the lease was renewed.
    pub(super) fn pause(&self) -> Duration {
        (self.ttl / 50).clamp(Duration::from_millis(20), Duration::from_secs(1))
    }

    /// Until when a command may run on a lease that was asked for at that moment.
    ///
    /// The server counts the lease from a later moment, so at the end of ours it is nobody else's yet. The command is
    /// to be dead a little before, since clocks differ and killing takes time.
    pub(super) fn limits(&self, asked_at: Moment) -> Limits {
        let kill_at = asked_at.after(self.ttl).before(self.margin());
        match self.on_lost {
            OnLost::Terminate => Limits {
                terminate_at: Some(kill_at.before(self.grace)),
                kill_at: Some(kill_at),
            },
            OnLost::Kill => Limits {
                terminate_at: None,
                kill_at: Some(kill_at),
            },
            OnLost::Ignore => Limits::NONE,
        }
    }

    /// What is left to a command whose lease is known to be gone.
    pub(super) fn last_limits(&self, current: Limits) -> Limits {
        let now = Moment::now();
        let within = |end: Moment| current.kill_at.map_or(end, |limit| limit.min(end));
        match self.on_lost {
            OnLost::Terminate => Limits {
                terminate_at: Some(now),
                kill_at: Some(within(now.after(self.grace))),
            },
            OnLost::Kill => Limits {
                terminate_at: None,
                kill_at: Some(now),
            },
            OnLost::Ignore => Limits::NONE,
        }
    }

    fn margin(&self) -> Duration {
        (self.ttl / 10).min(Duration::from_secs(1))
    }
}

impl Limits {
    pub(super) const NONE: Self = Self {
        terminate_at: None,
        kill_at: None,
    };

    /// The earlier of the two.
    pub(super) fn next(self) -> Option<Moment> {
        self.terminate_at.into_iter().chain(self.kill_at).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(ttl: Duration, on_lost: OnLost) -> Plan {
        let grace = Plan::usual_grace(ttl);
        Plan {
            ttl,
            grace,
            on_lost,
        }
    }

    #[test]
    fn renewal_warning_and_end_come_in_this_order_and_before_the_lease_ends() {
        for millis in [500, 1_000, 30_000, 86_400_000] {
            let ttl = Duration::from_millis(millis);
            let longest = Plan {
                grace: Plan::longest_grace(ttl),
                ..plan(ttl, OnLost::Terminate)
            };
            for plan in [plan(ttl, OnLost::Terminate), longest] {
                let asked_at = Moment::now();
                let limits = plan.limits(asked_at);
                let [terminate_at, kill_at] =
                    [limits.terminate_at, limits.kill_at].map(Option::unwrap);
                // By a third of the ttl at the latest it is renewed, and there is to be time for that.
                assert!(asked_at.after(ttl * 2 / 5) <= terminate_at, "{ttl:?}");
                assert!(terminate_at < kill_at, "{ttl:?}");
                assert!(kill_at < asked_at.after(ttl), "{ttl:?}");
            }
        }
    }

    #[test]
    fn a_lease_that_is_gone_leaves_no_more_time_than_it_had() {
        let plan = plan(Duration::from_secs(40), OnLost::Terminate);
        let soon = Moment::now().after(Duration::from_secs(1));
        let current = Limits {
            terminate_at: None,
            kill_at: Some(soon),
        };
        assert_eq!(plan.last_limits(current).kill_at, Some(soon));
        let later = plan.limits(Moment::now());
        let last = plan.last_limits(later);
        assert!(last.kill_at < later.kill_at);
        assert!(last.terminate_at.is_some_and(Moment::has_come));
    }

    #[test]
    fn who_ignores_loss_has_no_limits() {
        let plan = plan(Duration::from_secs(40), OnLost::Ignore);
        assert_eq!(plan.limits(Moment::now()), Limits::NONE);
        assert_eq!(plan.last_limits(Limits::NONE), Limits::NONE);
    }
}
