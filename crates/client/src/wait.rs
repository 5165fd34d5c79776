//! The wait for a lock, over several tries.

use std::time::Duration;

use tokio::time::Instant;

use crate::Error;

/// What a request wants to wait for its lock. A try that follows a broken one has only what is left of it.
#[derive(Debug)]
pub(crate) struct Wait {
    whole: Option<Duration>,
    /// When it was first asked for, with all of it.
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

    /// Who was refused the lock, and is to ask for it again all the same, waits anew.
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
    fn the_first_try_has_all_of_it() {
        let whole = Some(Duration::from_secs(5));
        assert_eq!(Wait::start(whole).left(), whole);
    }

    #[tokio::test(start_paused = true)]
    async fn time_that_has_passed_is_not_waited_again() {
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
