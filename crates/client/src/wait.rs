//! The time that a request may wait for its lock, counted over several tries.

use std::time::Duration;

use tokio::time::Instant;

use crate::Error;

/// How long a request waits for its lock. A retry after a broken try has only what is left.
#[derive(Debug)]
pub(crate) struct Wait {
    whole: Option<Duration>,
    /// When the wait began, with the first try.
    since: Option<Instant>,
}

impl Wait {
    pub(crate) fn start(whole: Option<Duration>) -> Self {
        Self { whole, since: None }
    }

    pub(crate) fn left(&mut self) -> Option<Duration> {
        let Some(since) = self.since else {
            self.since = Some(Instant::now());
            return self.whole;
        };
        Some(self.whole?.saturating_sub(since.elapsed()))
    }

    /// When it ends; `None` before it has begun, or without a wait.
    pub(crate) fn end(&self) -> Option<Instant> {
        self.since?.checked_add(self.whole?)
    }

    /// For a retry after the lock was refused: it waits for the whole time again.
    pub(crate) fn restart(&mut self) {
        self.since = None;
    }
}

pub(crate) fn is_contended(error: &Error) -> bool {
    matches!(error, Error::Contended(_) | Error::TimedOut(_))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    #[test]
    fn the_first_try_waits_for_the_whole_time() {
        let whole = Some(Duration::from_secs(5));
        assert_eq!(Wait::start(whole).left(), whole);
    }

    #[tokio::test(start_paused = true)]
    async fn a_retry_waits_only_for_what_is_left() {
        let mut wait = Wait::start(Some(Duration::from_secs(5)));
        wait.left();
        advance(Duration::from_secs(2)).await;
        assert_eq!(wait.left(), Some(Duration::from_secs(3)));
        advance(Duration::from_secs(9)).await;
        assert_eq!(wait.left(), Some(Duration::ZERO));
        wait.restart();
        assert_eq!(wait.left(), Some(Duration::from_secs(5)));
        assert_eq!(Wait::start(None).left(), None);
    }
}
