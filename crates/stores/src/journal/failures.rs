//! Commits that failed: when the next rollback may be tried, and how often that is logged.

use std::fmt;
use std::time::{Duration, Instant};

/// How long to wait before a commit that no caller waits for is tried again.
const PAUSE: Duration = Duration::from_millis(250);
/// How often to log a journal that keeps failing.
const LOG_EVERY: Duration = Duration::from_secs(5);

/// The state of the journal: `Some` if the last commit failed.
#[derive(Debug, Default)]
pub(super) struct Failures(Option<Failing>);

#[derive(Debug)]
struct Failing {
    retry_at: Instant,
    logged_at: Instant,
    not_logged: u64,
}

impl Failures {
    /// Notes a commit that failed. A log line for each would fill a disk that may be full already.
    pub(super) fn add(&mut self, error: &dyn fmt::Display) {
        let now = Instant::now();
        let retry_at = now + PAUSE;
        match &mut self.0 {
            Some(failing) if now < failing.logged_at + LOG_EVERY => {
                failing.retry_at = retry_at;
                failing.not_logged += 1;
            }
            failing => {
                let not_logged = failing.as_ref().map_or(0, |failing| failing.not_logged);
                tracing::error!(%error, not_logged, "the journal could not be written");
                *failing = Some(Failing {
                    retry_at,
                    logged_at: now,
                    not_logged: 0,
                });
            }
        }
    }

    /// Notes a commit that succeeded.
    pub(super) fn clear(&mut self) {
        if self.0.take().is_some() {
            tracing::info!("the journal can be written again");
        }
    }

    pub(super) fn is_failing(&self) -> bool {
        self.0.is_some()
    }

    /// For how long not to make commits that no caller waits for; `None` if they may be made now.
    pub(super) fn pause(&self) -> Option<Duration> {
        let retry_at = self.0.as_ref()?.retry_at;
        let pause = retry_at.saturating_duration_since(Instant::now());
        Some(pause).filter(|pause| !pause.is_zero())
    }
}
