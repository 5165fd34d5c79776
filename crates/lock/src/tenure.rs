//! Until when a lease counts as held in this process, and how that ended.

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::{Reading, Timestamp};

/// When a lease that the store lets live for `time` after `sent` is over, as far as this process is concerned.
///
/// The clocks of two machines run at different rates, and a store counts whole milliseconds. So a lease ends here by a
/// margin before it does there: 1 % of its ttl, or of what is left of it where that is less, and 2 ms.
pub(crate) fn local_end(sent: Instant, time: Duration, ttl: Duration) -> Instant {
    let margin = time.min(ttl) / 100 + Duration::from_millis(2);
    sent + time.saturating_sub(margin)
}

/// What an answer of the store says about the end of a lease.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Term {
    /// By this process' monotonic clock, counted from before the request was sent, so never later than the truth.
    pub(crate) ends: Instant,
    /// By the same clock, with a [margin](local_end): from here on the lease counts as lost in this process.
    pub(crate) until: Instant,
    /// By the store's clock.
    pub(crate) expires_at: Timestamp,
    /// When the request was sent.
    pub(crate) sent: Instant,
    /// The store's time of the answer.
    pub(crate) read: Timestamp,
}

impl Term {
    /// Of a lease that ends at `expires_at` by the clock of a reading.
    ///
    /// Should that clock have been set since the lease was granted, it is no longer than its ttl from now.
    pub(crate) fn read(expires_at: Timestamp, ttl: Duration, reading: Reading) -> Self {
        let Reading { at, now } = reading;
        let (left, at_most) = (expires_at.remaining(now), Instant::now());
        Self {
            ends: (at + left).min(at_most + ttl),
            until: local_end(at, left, ttl).min(local_end(at_most, ttl, ttl)),
            expires_at,
            sent: at,
            read: now,
        }
    }
}

/// The life of a lease that a guard holds. It ends once: lost stays lost. All clones are one.
#[derive(Debug, Clone)]
pub(crate) struct Tenure(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Clone, Copy)]
struct State {
    term: Term,
    /// When the term was known here.
    known: Instant,
    phase: Phase,
    /// Whether a task has ever awaited the loss. Most leases end without that, and need no wake-up.
    is_awaited: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// As long as its term lasts.
    Held,
    Lost,
    /// Given back or kept in time: the guard does not watch it any more.
    Ended,
}

impl State {
    fn is_lost(&self) -> bool {
        match self.phase {
            Phase::Held => self.term.until <= Instant::now(),
            Phase::Lost => true,
            Phase::Ended => false,
        }
    }

    /// Two answers may arrive here in another order than the store gave them. One that was asked for after the other
    /// had arrived is newer; else the store's clock decides, and in the same millisecond the earlier end.
    fn is_outdated_by(&self, term: &Term) -> bool {
        term.sent >= self.known
            || term.read > self.term.read
            || (term.read == self.term.read && term.until < self.term.until)
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state of a lease that was held so far. Whether it did.
    fn change(&self, change: impl FnOnce(&mut State) -> bool) -> bool {
        let mut state = self.state();
        let has_changed = state.phase == Phase::Held && change(&mut state);
        let is_awaited = state.is_awaited;
        drop(state);
        if has_changed && is_awaited {
            self.changed.notify_waiters();
        }
        has_changed
    }
}

impl Tenure {
    /// Of a term that is known here since this moment.
    pub(crate) fn new(term: Term, known: Instant) -> Self {
        Self(Arc::new(Shared {
            state: Mutex::new(State {
                term,
                known,
                phase: Phase::Held,
                is_awaited: false,
            }),
            changed: Notify::new(),
        }))
    }

    pub(crate) fn term(&self) -> Term {
        self.0.state().term
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.0.state().is_lost()
    }

    /// Moves the end, unless that has come: an answer that arrives after it is too late.
    pub(crate) fn extend(&self, term: &Term) {
        self.0.change(|state| {
            let moves = !state.is_lost() && state.is_outdated_by(term);
            if moves {
                state.term = *term;
                state.known = Instant::now();
            }
            moves
        });
    }

    /// The lease is over. Whether that was not noted before.
    pub(crate) fn lose(&self) -> bool {
        self.0.change(|state| {
            state.phase = Phase::Lost;
            true
        })
    }

    /// The guard gives its lease back or keeps it. What was lost by then stays lost.
    pub(crate) fn end(&self) {
        self.0.change(|state| {
            state.phase = if state.is_lost() {
                Phase::Lost
            } else {
                Phase::Ended
            };
            true
        });
    }

    pub(crate) fn notice(&self) -> LossNotice {
        LossNotice(self.0.clone())
    }
}

/// Tells a function that its lease is over: by the clock of this machine, without asking the store, or because the lease
/// was released, forced or shortened, through this process or, if the store says so, through another.
///
/// It may fire a little before the store lets the lease go, never after. Once fired it stays so, also after the guard was
/// dropped. After a lease was released or kept in time it never fires.
#[derive(Debug, Clone)]
pub struct LossNotice(Arc<Shared>);

impl LossNotice {
    /// The notice of a lease that ends by itself after this time, for tests of what watches it.
    pub fn after(time: Duration) -> Self {
        let now = Instant::now();
        let term = Term {
            ends: now + time,
            until: now + time,
            expires_at: Timestamp::from_millis(0) + time,
            sent: now,
            read: Timestamp::from_millis(0),
        };
        Tenure::new(term, now).notice()
    }

    /// Returns when the lease is lost.
    pub async fn lost(&self) {
        loop {
            let mut changed = pin!(self.0.changed.notified());
            // From here on no change is missed: one that comes before the state is read shows in it, and one that comes
            // later finds that it is awaited.
            changed.as_mut().enable();
            let state = {
                let mut state = self.0.state();
                state.is_awaited = true;
                *state
            };
            if state.is_lost() {
                return;
            }
            if state.phase == Phase::Ended {
                return std::future::pending().await;
            }
            tokio::select! {
                () = sleep_until(state.term.until) => {}
                () = changed => {}
            }
        }
    }

    /// How long the lease lasts for certain.
    pub fn remaining(&self) -> Duration {
        let state = *self.0.state();
        match state.phase {
            Phase::Lost => Duration::ZERO,
            Phase::Held | Phase::Ended => {
                state.term.until.saturating_duration_since(Instant::now())
            }
        }
    }

    /// Whether the lease is lost by now.
    pub fn is_lost(&self) -> bool {
        self.0.state().is_lost()
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const TTL: Duration = Duration::from_secs(10);

    fn term(sent: Instant, read: u64, ttl: Duration) -> Term {
        Term {
            ends: sent + ttl,
            until: local_end(sent, ttl, ttl),
            expires_at: Timestamp::from_millis(read) + ttl,
            sent,
            read: Timestamp::from_millis(read),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_ends_here_by_a_margin_before_it_does_in_the_store() {
        let tenure = Tenure::new(term(Instant::now(), 0, TTL), Instant::now());
        let start = Instant::now();
        tenure.notice().lost().await;
        assert_eq!(start.elapsed(), TTL - TTL / 100 - Duration::from_millis(2));
    }

    #[tokio::test(start_paused = true)]
    async fn of_answers_that_cross_the_stores_order_counts() {
        let sent = Instant::now();
        let tenure = Tenure::new(term(sent, 0, TTL), sent);
        advance(Duration::from_secs(1)).await;
        let both_sent = Instant::now();
        advance(Duration::from_secs(1)).await;
        // The store made it longer first and shorter then; the answers come the other way round.
        tenure.extend(&term(both_sent, 1_500, TTL / 5));
        tenure.extend(&term(both_sent, 1_400, TTL * 5));
        assert_eq!(tenure.term().expires_at.as_millis(), 3_500);
        // In the same millisecond the earlier end is taken.
        tenure.extend(&term(both_sent, 1_500, TTL));
        assert_eq!(tenure.term().expires_at.as_millis(), 3_500);
        // What was asked for later is newer, whatever the store's clock says.
        tenure.extend(&term(Instant::now(), 1_000, TTL));
        assert_eq!(tenure.term().expires_at.as_millis(), 11_000);
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_given_back_in_time_is_never_lost() {
        let tenure = Tenure::new(term(Instant::now(), 0, TTL), Instant::now());
        let notice = tenure.notice();
        tenure.end();
        drop(tenure);
        advance(TTL * 2).await;
        assert!(!notice.is_lost());
        let lost = tokio::time::timeout(TTL, notice.lost()).await;
        assert!(lost.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_awaits_the_loss_is_woken_by_every_change() {
        let start = Instant::now();
        let tenure = Tenure::new(term(start, 0, TTL), start);
        let awaited = |notice: LossNotice| {
            tokio::spawn(async move {
                notice.lost().await;
                Instant::now()
            })
        };
        let (first, second) = (awaited(tenure.notice()), awaited(tenure.notice()));
        advance(Duration::from_secs(1)).await;
        // It ends at the fifth second, not at the tenth.
        let shorter = term(Instant::now(), 1_000, TTL * 2 / 5);
        tenure.extend(&shorter);
        assert_eq!(first.await.unwrap(), shorter.until);
        assert_eq!(second.await.unwrap(), shorter.until);

        let start = Instant::now();
        let tenure = Tenure::new(term(start, 0, TTL), start);
        let lost = awaited(tenure.notice());
        advance(Duration::from_secs(1)).await;
        assert!(tenure.lose());
        assert_eq!(lost.await.unwrap(), start + Duration::from_secs(1));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_lost_stays_lost() {
        let tenure = Tenure::new(term(Instant::now(), 0, TTL), Instant::now());
        let notice = tenure.notice();
        assert!(tenure.lose());
        assert!(!tenure.lose());
        tenure.extend(&term(Instant::now(), 1, TTL));
        tenure.end();
        drop(tenure);
        assert!(notice.is_lost());
        assert_eq!(notice.remaining(), Duration::ZERO);
        notice.lost().await;
    }
}
