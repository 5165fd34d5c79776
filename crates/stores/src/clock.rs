//! The time of a store that lives in one process.

use std::time::{SystemTime, UNIX_EPOCH};

use forrst_lock::Timestamp;
use tokio::time::Instant;

/// Starts with the machine's wall clock and goes on with its monotonic one, so that nobody can set it back.
#[derive(Debug)]
pub(crate) struct Clock {
    started: Instant,
    started_at: Timestamp,
}

impl Clock {
    pub(crate) fn start() -> Self {
        let since_epoch = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Self {
            started: Instant::now(),
            started_at: Timestamp::from_millis(0) + since_epoch,
        }
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.started_at + self.started.elapsed()
    }
}
