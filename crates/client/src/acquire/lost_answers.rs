//! Whether an earlier try of an acquisition, whose answer was lost, may have been granted, and since when.

use crate::Error;
use crate::clock::Moment;
use crate::wait::is_contended;

/// What is not known about the tries of an acquisition that have failed so far.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LostAnswers {
    /// Just before the first request was sent that may have been granted: the next try may get that lease.
    pub(super) since: Option<Moment>,
    /// Whether the lock may be held or waited for without a caller that knows, so that it has to be withdrawn.
    pub(super) may_be_granted: bool,
}

impl LostAnswers {
    /// The same after one more try, sent at that moment, has failed.
    pub(super) fn after(self, sent: Moment, error: &Error) -> Self {
        let since = self.since.or(Some(sent));
        match error {
            // If an earlier try had been granted, this one would have got its lease.
            error if is_contended(error) => Self::default(),
            // It did not reach the store, which says nothing about the earlier tries.
            Error::Unreachable(_) | Error::RateLimited(_) => self,
            Error::Interrupted(_) | Error::DeadlineExceeded(None) | Error::Protocol(_) => Self {
                since,
                may_be_granted: true,
            },
            // The server rolls the grant back itself, but perhaps not before the next try.
            _ => Self { since, ..self },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::time::advance;

    fn lost() -> Error {
        Error::Interrupted("no answer".into())
    }

    fn unreachable() -> Error {
        Error::Unreachable("connection refused".into())
    }

    #[tokio::test(start_paused = true)]
    async fn a_try_that_was_not_sent_changes_nothing() {
        let none = LostAnswers::default().after(Moment::now(), &unreachable());
        assert!(none.since.is_none() && !none.may_be_granted);

        let first = Moment::now();
        let lost_answers = LostAnswers::default().after(first, &lost());
        for error in [unreachable(), lost(), unreachable()] {
            advance(Duration::from_secs(1)).await;
            let later = lost_answers.after(Moment::now(), &error);
            assert_eq!(later.since.map(|since| since.instant), Some(first.instant));
            assert!(later.may_be_granted, "{error}");
        }
    }
}
