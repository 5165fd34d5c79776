//! A clock that nobody can set back, also not across a restart.
//!
//! While the process runs, time is what it was at the start plus what the machine's boot clock has counted since, which goes
//! on while the machine sleeps and does not know the wall clock. After a restart on the same boot of the machine it goes on
//! from the last commit in the same way, so that leases end when they should, whatever happened to the wall clock. After a
//! reboot the wall clock is believed, but never a time before the last commit.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use forrst_lock::Timestamp;
use rustix::time::{ClockId, clock_gettime};

/// Where the machine's clocks stand.
pub(super) trait Clocks: Send {
    /// Since 1970, as somebody has set it.
    fn wall(&self) -> Duration;
    /// Since the machine was started.
    fn since_boot(&self) -> Duration;
    /// Which start of the machine that was.
    fn boot(&self) -> &str;
}

/// The clock at some moment, as it is written down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reading {
    pub(super) now: Timestamp,
    pub(super) since_boot: Duration,
    pub(super) boot: String,
}

pub(super) struct Clock {
    clocks: Box<dyn Clocks>,
    started_at: Timestamp,
    started: Duration,
}

impl Clock {
    /// Goes on from the last reading. `is_idle` says that no lease is live by then, and the wall clock may be caught up with.
    pub(super) fn resume(
        clocks: Box<dyn Clocks>,
        last: Option<&Reading>,
        is_idle: impl FnOnce(Timestamp) -> bool,
    ) -> Self {
        let wall = Timestamp::from_millis(0) + clocks.wall();
        let started = clocks.since_boot();
        let started_at = match last {
            None => wall,
            Some(last) if last.boot == clocks.boot() => {
                let continued = last.now + started.saturating_sub(last.since_boot);
                if is_idle(continued) {
                    continued.max(wall)
                } else {
                    continued
                }
            }
            Some(last) => last.now.max(wall),
        };
        Self {
            clocks,
            started_at,
            started,
        }
    }

    pub(super) fn now(&self) -> Timestamp {
        self.started_at + self.clocks.since_boot().saturating_sub(self.started)
    }

    pub(super) fn reading(&self) -> Reading {
        let since_boot = self.clocks.since_boot();
        Reading {
            now: self.started_at + since_boot.saturating_sub(self.started),
            since_boot,
            boot: self.clocks.boot().to_owned(),
        }
    }
}

/// The clocks of this machine.
pub(super) struct MachineClocks {
    boot: String,
}

impl MachineClocks {
    pub(super) fn new() -> Self {
        // Without it every restart counts as one of the machine, and the wall clock is believed.
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
        let unknown = || format!("unknown {}", std::process::id());
        let boot = boot.map_or_else(|_| unknown(), |boot| boot.trim().to_owned());
        Self { boot }
    }
}

impl Clocks for MachineClocks {
    fn wall(&self) -> Duration {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
        since_epoch.unwrap_or_default()
    }

    fn since_boot(&self) -> Duration {
        let time = clock_gettime(ClockId::Boottime);
        Duration::try_from(time).unwrap_or_default()
    }

    fn boot(&self) -> &str {
        &self.boot
    }
}
