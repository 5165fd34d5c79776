//! A clock that cannot be set back, not even across a restart.
//!
//! While the process runs, time is what it was at the start plus what the machine's boot clock has counted since, which goes
//! on while the machine sleeps and does not know the wall clock. After a restart on the same boot of the machine it goes on
//! from the last commit in the same way, so that leases end when they should, whatever happened to the wall clock. After a
//! reboot the wall clock is believed, but never a time before the last commit. A wall clock that says such a time is slow, and
//! how much time has passed is not known: see [`Clock::is_slow`].

use std::path::Path;
use std::sync::LazyLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use forrst_lock::Timestamp;
use rustix::time::{ClockId, clock_gettime};

/// Where the machine's clocks stand.
pub(super) trait Clocks: Send {
    /// Since 1970, as it was set.
    fn wall(&self) -> Duration;
    /// Since the machine was started.
    fn since_boot(&self) -> Duration;
    /// Which start of the machine that was.
    fn boot(&self) -> &str;
}

/// The clock at some moment, as it is written down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Moment {
    pub(super) now: Timestamp,
    pub(super) since_boot: Duration,
    pub(super) boot: String,
}

pub(super) struct Clock {
    clocks: Box<dyn Clocks>,
    started_at: Timestamp,
    started: Duration,
    is_slow: bool,
}

impl Clock {
    /// Goes on from the last moment that was written down. `is_idle` says that no lease is live by then, and the wall clock may be caught up with.
    pub(super) fn resume(
        clocks: Box<dyn Clocks>,
        last: Option<&Moment>,
        is_idle: impl FnOnce(Timestamp) -> bool,
    ) -> Self {
        let wall = Timestamp::from_millis(0) + clocks.wall();
        let started = clocks.since_boot();
        let mut is_slow = false;
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
            Some(last) => {
                is_slow = wall < last.now;
                last.now.max(wall)
            }
        };
        Self {
            clocks,
            started_at,
            started,
            is_slow,
        }
    }

    /// Whether the machine was started again and its wall clock is behind the last commit. Then leases that look live may
    /// have run out while it was off.
    pub(super) fn is_slow(&self) -> bool {
        self.is_slow
    }

    pub(super) fn now(&self) -> Timestamp {
        self.started_at + self.clocks.since_boot().saturating_sub(self.started)
    }

    pub(super) fn moment(&self) -> Moment {
        let since_boot = self.clocks.since_boot();
        Moment {
            now: self.started_at + since_boot.saturating_sub(self.started),
            since_boot,
            boot: self.clocks.boot().to_owned(),
        }
    }
}

/// The clocks of this machine.
pub(super) struct MachineClocks {
    boot: &'static str,
}

impl MachineClocks {
    pub(super) fn new() -> Self {
        // Read once: what cannot be read has another id each time.
        static BOOT: LazyLock<String> =
            LazyLock::new(|| boot_id(Path::new("/proc/sys/kernel/random/boot_id")));
        Self { boot: &BOOT }
    }
}

/// Without it every restart counts as one of the machine, and the wall clock is believed. So an id that is not known equals
/// no other: in a container, the process has the same number each time.
pub(super) fn boot_id(path: &Path) -> String {
    match std::fs::read_to_string(path) {
        Ok(boot) if !boot.trim().is_empty() => boot.trim().to_owned(),
        read => {
            let error = read.err().map(|error| error.to_string());
            tracing::warn!(
                path = %path.display(),
                error = error.as_deref().unwrap_or("it is empty"),
                "the boot id cannot be read: after each restart leases end by the wall clock"
            );
            format!("unknown {}", uuid::Uuid::new_v4())
        }
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
        self.boot
    }
}
