//! What the engine remembers of commits that failed.

use std::fmt;
use std::time::{Duration, Instant};

/// How long to wait before a commit that nobody asks for is tried again.
const PAUSE: Duration = Duration::from_millis(250);
/// How often a journal that keeps failing is logged.
const LOG_EVERY: Duration = Duration::from_secs(5);

/// Whether the last commit failed.
#[derive(Debug, Default)]
pub(super) struct Failures(Option<Failing>);

#[derive(Debug)]
struct Failing {
    retry_at: Instant,
    logged_at: Instant,
    not_logged: u64,
}

impl Failures {
    /// A commit has failed. A line for each would fill the disk that may be full.
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

    /// A commit was made.
    pub(super) fn end(&mut self) {
        if self.0.take().is_some() {
            tracing::info!("the journal can be written again");
        }
    }

    pub(super) fn is_any(&self) -> bool {
        self.0.is_some()
    }

    /// How long not to write what nobody asks for; none if there is no need to wait.
    pub(super) fn pause(&self) -> Option<Duration> {
        let retry_at = self.0.as_ref()?.retry_at;
        let pause = retry_at.saturating_duration_since(Instant::now());
        Some(pause).filter(|pause| !pause.is_zero())
    }
}
