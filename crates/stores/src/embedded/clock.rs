//! A clock that never runs backwards, not even across a restart.
//!
//! While the process runs, it advances with the machine's boot clock, which continues while the machine sleeps and is independent
//! of the wall clock. After a restart of the process it continues from the last commit in the same way, so that leases expire on
//! time, even if the wall clock was set. After a reboot it starts at the wall clock, but never before the last commit. A wall clock
//! that is before the last commit is slow, and how much time has passed is unknown: see [`DurableClock::is_slow`].

use std::path::Path;
use std::sync::LazyLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use forrst_lock::Timestamp;
use rustix::time::{ClockId, clock_gettime};

/// The clocks of a machine.
pub(super) trait Clocks: Send {
    /// The wall clock: the time since 1970, as it was set.
    fn wall(&self) -> Duration;
    /// The time since the machine was booted.
    fn since_boot(&self) -> Duration;
    /// The id of that boot.
    fn boot(&self) -> &str;
}

/// A reading of the clock, as it is written to the journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Moment {
    pub(super) now: Timestamp,
    pub(super) since_boot: Duration,
    pub(super) boot: String,
}

/// See the [module](self).
pub(super) struct DurableClock {
    clocks: Box<dyn Clocks>,
    started_at: Timestamp,
    started: Duration,
    is_slow: bool,
}

impl DurableClock {
    /// Continues from the last reading in the journal. `is_idle` returns whether no lease is live at a time; then the clock may
    /// jump ahead to the wall clock.
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

    /// Whether the machine was rebooted and its wall clock is behind the last commit. Then leases that seem live may have expired
    /// while it was off.
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
        // Read once: if it cannot be read, each call makes up another id.
        static BOOT: LazyLock<String> =
            LazyLock::new(|| boot_id(Path::new("/proc/sys/kernel/random/boot_id")));
        Self { boot: &BOOT }
    }
}

/// If it cannot be read, every restart counts as a reboot, and the wall clock is used. So an unknown id has to be unique. (The pid
/// would not be: in a container, it is the same after each restart.)
pub(super) fn boot_id(path: &Path) -> String {
    match std::fs::read_to_string(path) {
        Ok(boot) if !boot.trim().is_empty() => boot.trim().to_owned(),
        read => {
            let error = read.err().map(|error| error.to_string());
            tracing::warn!(
                path = %path.display(),
                error = error.as_deref().unwrap_or("the file is empty"),
                "the boot id cannot be read: after each restart, leases expire by the wall clock"
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
