//! Time that two processes can agree about.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// A moment by the clock since the machine was started. All processes see the same one, nobody can set it, and it runs
/// on while the machine sleeps, as the lease does at the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Moment(Duration);

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

    /// How long until then; nothing when it has passed.
    pub(super) fn remaining(self) -> Duration {
        self.0.saturating_sub(Self::now().0)
    }

    pub(super) fn has_come(self) -> bool {
        Self::now() >= self
    }
}

#[cfg(target_os = "linux")]
const CLOCK: ClockId = ClockId::Boottime;

/// Elsewhere this is the clock that comes nearest.
#[cfg(not(target_os = "linux"))]
const CLOCK: ClockId = ClockId::Monotonic;
