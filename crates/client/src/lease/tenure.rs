//! Until when a lease is held, and how that ended.

use std::time::{Duration, SystemTime};

use tokio::sync::watch;

use crate::Error;
use crate::clock::{Deadline, Moment};

/// Why a lease is lost.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Loss {
    /// It could not be renewed in time; what the last try said, if there was one.
    #[error("it could not be renewed in time{}", .0.as_ref().map(|why| format!(": {why}")).unwrap_or_default())]
    Expired(Option<String>),
    /// The server says that it is not this owner's any more: released by somebody, or expired there.
    #[error("{0}")]
    Refused(String),
}

impl Loss {
    /// What an answer about a lease says that leaves no doubt; none for any other error.
    pub(super) fn by(error: &Error) -> Option<Self> {
        match error {
            Error::NotHeld(failure)
            | Error::Mismatch(failure)
            | Error::AlreadyReleased(failure) => Some(Self::Refused(failure.to_string())),
            _ => None,
        }
    }
}

/// For how long a lease is held for certain.
#[derive(Debug, Clone, Copy)]
pub(super) struct Term {
    /// Before the request was sent that it is known by.
    pub(super) proven: Moment,
    pub(super) until: Deadline,
    pub(super) expires_at: SystemTime,
}

impl Term {
    /// The term of a lease that the server lets live for `ttl`, counted from a moment before it was asked.
    pub(super) fn new(proven: Moment, ttl: Duration, expires_at: SystemTime) -> Self {
        let span = ttl.saturating_sub(margin(ttl));
        Self {
            proven,
            until: Deadline::after(proven, span),
            expires_at,
        }
    }
}

/// By how much a lease ends here before it does on the server. The clocks of two machines run at different rates, and
/// stores count whole milliseconds.
fn margin(ttl: Duration) -> Duration {
    ttl / 100 + Duration::from_millis(2)
}

/// The life of a lease. It ends once: lost stays lost.
#[derive(Debug)]
pub(super) struct Tenure(watch::Sender<State>);

#[derive(Debug)]
struct State {
    term: Term,
    phase: Phase,
    /// What the last try to renew it said.
    trouble: Option<String>,
}

#[derive(Debug)]
enum Phase {
    /// As long as its term lasts.
    Held,
    Lost(Loss),
    /// Released or kept, and nobody's concern any more.
    Ended,
}

impl State {
    fn loss(&self) -> Option<Loss> {
        match &self.phase {
            Phase::Held if self.term.until.has_passed() => {
                Some(Loss::Expired(self.trouble.clone()))
            }
            Phase::Lost(loss) => Some(loss.clone()),
            Phase::Held | Phase::Ended => None,
        }
    }

    fn is_held(&self) -> bool {
        matches!(self.phase, Phase::Held) && !self.term.until.has_passed()
    }
}

impl Tenure {
    pub(super) fn new(term: Term) -> Self {
        Self(watch::Sender::new(State {
            term,
            phase: Phase::Held,
            trouble: None,
        }))
    }

    pub(super) fn term(&self) -> Term {
        self.0.borrow().term
    }

    pub(super) fn loss(&self) -> Option<Loss> {
        self.0.borrow().loss()
    }

    /// The term of a lease that nobody has seen yet.
    pub(super) fn settle(&self, term: Term) {
        self.0.send_modify(|state| state.term = term);
    }

    /// Moves the end, unless it has come: an answer that is late changes nothing.
    pub(super) fn prolong(&self, term: Term) -> bool {
        self.0.send_if_modified(|state| {
            let is_in_time = state.is_held();
            if is_in_time {
                state.term = term;
                state.trouble = None;
            }
            is_in_time
        })
    }

    /// Keeps what a failed renewal said, for the case that there is no better one.
    pub(super) fn note_trouble(&self, error: &Error) {
        self.0.send_if_modified(|state| {
            state.trouble = Some(error.to_string());
            false
        });
    }

    /// Ends it before its time.
    pub(super) fn lose(&self, loss: Loss) {
        self.0.send_if_modified(|state| {
            let is_news = state.is_held();
            if is_news {
                state.phase = Phase::Lost(loss);
                state.term.until = Deadline::after(Moment::now(), Duration::ZERO);
            }
            is_news
        });
    }

    /// Released or kept; one that is lost already stays so.
    pub(super) fn end(&self) {
        self.0.send_if_modified(|state| {
            let loss = state.loss();
            let is_news = matches!(state.phase, Phase::Held);
            if is_news {
                state.phase = loss.map_or(Phase::Ended, Phase::Lost);
            }
            is_news
        });
    }

    /// Returns when it is lost; never, when it ends otherwise.
    pub(super) async fn lost(&self) -> Loss {
        let mut states = self.0.subscribe();
        loop {
            let until = {
                let state = states.borrow_and_update();
                if let Some(loss) = state.loss() {
                    return loss;
                }
                matches!(state.phase, Phase::Held).then_some(state.term.until)
            };
            let Some(until) = until else {
                return std::future::pending().await;
            };
            tokio::select! {
                () = until.passed() => {}
                // The sender is `self`, so it is there.
                _ = states.changed() => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use tokio::time::{Instant, advance};

    const TTL: Duration = Duration::from_secs(3);
    /// 1 % of the ttl and 2 ms.
    const MARGIN: Duration = Duration::from_millis(32);

    fn term() -> Term {
        Term::new(Moment::now(), TTL, SystemTime::UNIX_EPOCH)
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_lost_by_a_margin_before_the_ttl_is_over() {
        let tenure = Tenure::new(term());
        let start = Instant::now();
        assert_eq!(tenure.lost().await, Loss::Expired(None));
        assert_eq!(start.elapsed(), TTL - MARGIN);
        assert!(tenure.loss().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_in_time_moves_the_end() {
        let tenure = Tenure::new(term());
        let start = Instant::now();
        advance(TTL / 2).await;
        assert!(tenure.prolong(term()));
        tenure.lost().await;
        assert_eq!(start.elapsed(), TTL + TTL / 2 - MARGIN);
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_renewal_does_not_revive_it() {
        let tenure = Tenure::new(term());
        // As in a process that was stopped: nobody saw the end come.
        advance(TTL * 2).await;
        assert!(!tenure.prolong(term()));
        assert!(tenure.loss().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_definite_answer_ends_it_at_once_and_for_good() {
        let tenure = Tenure::new(term());
        let refused = Loss::Refused("not yours".to_owned());
        tenure.lose(refused.clone());
        assert_eq!(tenure.lost().now_or_never(), Some(refused.clone()));
        assert!(!tenure.prolong(term()));
        assert!(tenure.term().until.has_passed());
        tenure.end();
        assert_eq!(tenure.loss(), Some(refused));
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_given_back_is_never_lost() {
        let tenure = Tenure::new(term());
        tenure.end();
        advance(TTL * 2).await;
        assert_eq!(tenure.loss(), None);
        assert_eq!(tenure.lost().now_or_never(), None);
        assert!(!tenure.prolong(term()));
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_the_loss_hears_of_it_from_elsewhere() {
        let tenure = Tenure::new(term());
        let lose = async {
            advance(TTL / 3).await;
            tenure.lose(Loss::Refused("not yours".to_owned()));
        };
        let start = Instant::now();
        tokio::join!(tenure.lost(), lose);
        assert_eq!(start.elapsed(), TTL / 3);
    }
}
