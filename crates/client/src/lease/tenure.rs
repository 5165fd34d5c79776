//! The state of one lease: until when it is held here, and whether it was lost or given back.

use std::time::{Duration, SystemTime};

use tokio::sync::watch;

use crate::Error;
use crate::clock::{Deadline, Moment};

/// Why a lease is lost.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Loss {
    /// It could not be renewed in time, with the error of the last try, if there was one.
    #[error("it could not be renewed in time{}", .0.as_ref().map(|why| format!(": {why}")).unwrap_or_default())]
    Expired(Option<String>),
    /// The server answered that the lease has ended: it was released, or has expired there.
    #[error("{0}")]
    Refused(String),
}

impl Loss {
    /// The loss that an answer of the server proves; `None` for any other error.
    pub(super) fn from_error(error: &Error) -> Option<Self> {
        match error {
            Error::NotHeld(failure)
            | Error::Mismatch(failure)
            | Error::AlreadyReleased(failure) => Some(Self::Refused(failure.to_string())),
            _ => None,
        }
    }
}

/// For how long a lease is certainly held.
#[derive(Debug, Clone, Copy)]
pub(super) struct Term {
    /// Just before the request was sent whose answer proves it.
    pub(super) proven: Moment,
    pub(super) until: Deadline,
    pub(super) expires_at: SystemTime,
}

impl Term {
    /// The term of a lease that lasts for `ttl` on the server, counted from just before the request.
    pub(super) fn new(proven: Moment, ttl: Duration, expires_at: SystemTime) -> Self {
        let span = ttl.saturating_sub(margin(ttl));
        Self {
            proven,
            until: Deadline::after(proven, span),
            expires_at,
        }
    }
}

/// How much earlier a lease ends here than on the server. The clocks of two machines run at different rates, and
/// stores count whole milliseconds.
fn margin(ttl: Duration) -> Duration {
    ttl / 100 + Duration::from_millis(2)
}

/// The state of a lease, from its grant to its end. It ends once: a lost lease stays lost.
#[derive(Debug)]
pub(super) struct Tenure(watch::Sender<TenureState>);

#[derive(Debug)]
struct TenureState {
    term: Term,
    phase: Phase,
    /// The error of the last try to renew it.
    last_error: Option<String>,
}

#[derive(Debug)]
enum Phase {
    /// As long as its term lasts.
    Held,
    Lost(Loss),
    /// Released, or kept by its caller.
    Ended,
}

impl TenureState {
    fn loss(&self) -> Option<Loss> {
        match &self.phase {
            Phase::Held if self.term.until.has_passed() => {
                Some(Loss::Expired(self.last_error.clone()))
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
        Self(watch::Sender::new(TenureState {
            term,
            phase: Phase::Held,
            last_error: None,
        }))
    }

    pub(super) fn term(&self) -> Term {
        self.0.borrow().term
    }

    pub(super) fn loss(&self) -> Option<Loss> {
        self.0.borrow().loss()
    }

    /// Replaces the term of a lease that was not handed to its caller yet, even if it has ended.
    pub(super) fn set_first_term(&self, term: Term) {
        self.0.send_modify(|state| state.term = term);
    }

    /// Moves the end, unless it has passed: a late answer changes nothing.
    pub(super) fn extend(&self, term: Term) -> bool {
        self.0.send_if_modified(|state| {
            let is_held = state.is_held();
            if is_held {
                state.term = term;
                state.last_error = None;
            }
            is_held
        })
    }

    /// Keeps the error of a failed renewal, to be reported if the lease expires.
    pub(super) fn note_error(&self, error: &Error) {
        self.0.send_if_modified(|state| {
            state.last_error = Some(error.to_string());
            false
        });
    }

    /// Marks it as lost before its time is over.
    pub(super) fn lose(&self, loss: Loss) {
        self.0.send_if_modified(|state| {
            let was_held = state.is_held();
            if was_held {
                state.phase = Phase::Lost(loss);
                state.term.until = Deadline::after(Moment::now(), Duration::ZERO);
            }
            was_held
        });
    }

    /// Marks it as released or kept, unless it is lost already.
    pub(super) fn end(&self) {
        self.0.send_if_modified(|state| {
            let loss = state.loss();
            let was_held = matches!(state.phase, Phase::Held);
            if was_held {
                state.phase = loss.map_or(Phase::Ended, Phase::Lost);
            }
            was_held
        });
    }

    /// Waits until it is lost: for ever, if it ends otherwise.
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
    async fn a_lease_is_lost_a_margin_before_its_ttl_is_over() {
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
        assert!(tenure.extend(term()));
        tenure.lost().await;
        assert_eq!(start.elapsed(), TTL + TTL / 2 - MARGIN);
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_renewal_does_not_revive_a_lease() {
        let tenure = Tenure::new(term());
        // As in a process that was stopped: no timer fired at the end.
        advance(TTL * 2).await;
        assert!(!tenure.extend(term()));
        assert!(tenure.loss().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_the_server_says_has_ended_is_lost_for_good() {
        let tenure = Tenure::new(term());
        let refused = Loss::Refused("not yours".to_owned());
        tenure.lose(refused.clone());
        assert_eq!(tenure.lost().now_or_never(), Some(refused.clone()));
        assert!(!tenure.extend(term()));
        assert!(tenure.term().until.has_passed());
        tenure.end();
        assert_eq!(tenure.loss(), Some(refused));
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_was_given_back_is_never_lost() {
        let tenure = Tenure::new(term());
        tenure.end();
        advance(TTL * 2).await;
        assert_eq!(tenure.loss(), None);
        assert_eq!(tenure.lost().now_or_never(), None);
        assert!(!tenure.extend(term()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_waits_for_the_loss_is_notified() {
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
