//! What may have become of tries whose answers were lost.

use crate::Error;
use crate::clock::Moment;
use crate::wait::is_contended;

/// What is not known about the tries of an acquisition that have failed until now.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Doubt {
    /// Before the first of the requests was sent that may have brought the lease: the next try may get that one, by its attempt.
    pub(super) since: Option<Moment>,
    /// Whether the lock may be held, or waited for, and nobody but us can give it back.
    pub(super) is_held_perhaps: bool,
}

impl Doubt {
    /// The same after one more try has failed, that was sent at that moment.
    pub(super) fn after(self, sent: Moment, error: &Error) -> Self {
        let since = self.since.or(Some(sent));
        match error {
            // Had a try before it brought the lease, this one would have got it.
            error if is_contended(error) => Self::default(),
            // It did not reach the store. That says nothing about the tries before it.
            Error::Unreachable(_) | Error::RateLimited(_) => self,
            Error::Interrupted(_) | Error::DeadlineExceeded(None) | Error::Protocol(_) => Self {
                since,
                is_held_perhaps: true,
            },
            // A server takes back itself what it has no good answer about, but perhaps not before the next try.
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
        Error::Unreachable("nobody listens".into())
    }

    #[tokio::test(start_paused = true)]
    async fn a_try_that_was_not_sent_leaves_it_as_it_was() {
        let none = Doubt::default().after(Moment::now(), &unreachable());
        assert!(none.since.is_none() && !none.is_held_perhaps);

        let first = Moment::now();
        let doubt = Doubt::default().after(first, &lost());
        for error in [unreachable(), lost(), unreachable()] {
            advance(Duration::from_secs(1)).await;
            let later = doubt.after(Moment::now(), &error);
            assert_eq!(later.since.map(|since| since.instant), Some(first.instant));
            assert!(later.is_held_perhaps, "{error}");
        }
    }
}
