//! The tries of one request: whether and when it is sent again.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::client::Patience;
use crate::wait::is_contended;
use crate::{Error, Failure, Retry};

/// Whether a request may be carried out twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// No: it is only sent again if it was certainly not carried out.
    IfNotRun,
    /// Yes: a second run changes nothing.
    Always,
}

/// The tries of one request.
#[derive(Debug)]
pub(crate) struct Tries {
    retry: Retry,
    repeat: Repeat,
    deadline: Option<Instant>,
    /// When the caller stops waiting for its lock. Until then, the number and the time of the tries are not limited.
    wait_end: Option<Instant>,
    started: Instant,
    failed: u32,
    /// Whether an earlier try may have been carried out without an answer.
    has_lost_answer: bool,
    /// Ends the tries early.
    stop: CancellationToken,
}

impl Tries {
    pub(crate) fn start(retry: Retry, repeat: Repeat, deadline: Option<Instant>) -> Self {
        Self {
            retry,
            repeat,
            deadline,
            wait_end: None,
            started: Instant::now(),
            failed: 0,
            has_lost_answer: false,
            stop: CancellationToken::new(),
        }
    }

    /// There is no further try once this token is cancelled.
    pub(crate) fn stop_with(&mut self, stop: CancellationToken) {
        self.stop = stop;
    }

    /// Goes on trying until then, unless there is to be a single try.
    pub(crate) fn last_until(&mut self, wait_end: Option<Instant>) {
        self.wait_end = wait_end.filter(|_| self.retry.attempts > 1);
    }

    pub(crate) fn has_lost_answer(&self) -> bool {
        self.has_lost_answer
    }

    /// How long the next answer may take: `usual`, but not beyond the deadline.
    pub(crate) fn patience(&self, usual: Duration) -> Patience {
        let left = self
            .deadline
            .map(|deadline| deadline.saturating_duration_since(Instant::now()));
        Patience::For(left.map_or(usual, |left| left.min(usual)))
    }

    /// Sleeps until the next try, or returns the error if there is none.
    pub(crate) async fn after(&mut self, error: Error) -> Result<(), Error> {
        self.failed += 1;
        let Some(pause) = self.pause(&error) else {
            return Err(error);
        };
        self.has_lost_answer |= error.may_have_run();
        tracing::debug!(%error, ?pause, failed = self.failed, "trying again");
        tokio::select! {
            () = sleep(pause) => Ok(()),
            () = self.stop.cancelled() => Err(error),
        }
    }

    fn pause(&self, error: &Error) -> Option<Duration> {
        if self.stop.is_cancelled() || !self.may_repeat(error) {
            return None;
        }
        let asked = error.failure().and_then(Failure::retry_after);
        let pause = self
            .retry
            .backoff(self.failed)
            .max(asked.unwrap_or_default());
        let next = Instant::now().checked_add(pause)?;
        let is_within_limits = self.failed < self.retry.attempts
            && next.duration_since(self.started) <= self.retry.within;
        let is_within_wait = !is_contended(error) && self.wait_end.is_some_and(|end| next < end);
        let is_in_time = self.deadline.is_none_or(|deadline| next < deadline);
        (is_in_time && (is_within_limits || is_within_wait)).then_some(pause)
    }

    fn may_repeat(&self, error: &Error) -> bool {
        let is_worth_it = match error {
            Error::Contended(_) | Error::TimedOut(_) => self.retry.is_for_contention,
            Error::Unreachable(_)
            | Error::Interrupted(_)
            | Error::Unavailable(_)
            | Error::RateLimited(_) => true,
            Error::Function(failure) => failure.errors().iter().all(|e| e.code.is_retryable()),
            _ => false,
        };
        is_worth_it && (self.repeat == Repeat::Always || !error.may_have_run())
    }
}
