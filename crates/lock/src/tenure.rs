//! How long a lease counts as held in this process, and how that ends.
//!
//! A guard must not trust its lease for longer than the store does. So the lease has a local deadline by the monotonic clock,
//! counted from before the request was sent and reduced by a margin, and every answer of the store updates it.

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::{Reading, Timestamp};

/// The local deadline of a lease that lasts for `time` after `sent` in the store.
///
/// The clocks of two machines run at different rates, and a store counts whole milliseconds. So a lease ends here before it
/// does in the store, by a margin of 1 % of its ttl, or of its remaining time if that is less, and 2 ms.
pub(crate) fn local_end(sent: Instant, time: Duration, ttl: Duration) -> Instant {
    let margin = time.min(ttl) / 100 + Duration::from_millis(2);
    sent + time.saturating_sub(margin)
}

/// The end of a lease, according to one answer of the store.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Term {
    /// The end by the monotonic clock, counted from before the request was sent, so never later than in the store.
    pub(crate) ends_at: Instant,
    /// The same less a [margin](local_end): from then on the lease counts as lost in this process.
    pub(crate) lost_at: Instant,
    /// The end by the store's clock.
    pub(crate) expires_at: Timestamp,
    /// When the request was sent.
    pub(crate) sent: Instant,
    /// The store's time of the answer.
    pub(crate) store_time: Timestamp,
}

impl Term {
    /// The term of a lease that ends at `expires_at` by the clock of the reading.
    ///
    /// It is at most the ttl from now, in case that clock was set back since the grant.
    pub(crate) fn from_reading(expires_at: Timestamp, ttl: Duration, reading: Reading) -> Self {
        let Reading { at, now } = reading;
        let (left, at_most) = (expires_at.remaining(now), Instant::now());
        Self {
            ends_at: (at + left).min(at_most + ttl),
            lost_at: local_end(at, left, ttl).min(local_end(at_most, ttl, ttl)),
            expires_at,
            sent: at,
            store_time: now,
        }
    }
}

/// The time for which a guard holds a lease. It ends once: lost stays lost. Clones share one state.
#[derive(Debug, Clone)]
pub(crate) struct Tenure(Arc<SharedState>);

#[derive(Debug)]
struct SharedState {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Clone, Copy)]
struct State {
    term: Term,
    /// When the term became known here.
    known_since: Instant,
    phase: Phase,
    /// Whether a task has ever awaited the loss. Most leases end without one, and need no wake-up.
    is_awaited: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Until the end of its term.
    Held,
    Lost,
    /// Released or kept in time. The guard no longer watches it.
    Ended,
}

impl State {
    fn is_lost(&self) -> bool {
        match self.phase {
            Phase::Held => self.term.lost_at <= Instant::now(),
            Phase::Lost => true,
            Phase::Ended => false,
        }
    }

    /// Answers may arrive in another order than the store gave them. An answer to a request that was sent after the other answer
    /// had arrived is newer; otherwise the store's clock decides, and within one millisecond the earlier end.
    fn is_outdated_by(&self, term: &Term) -> bool {
        term.sent >= self.known_since
            || term.store_time > self.term.store_time
            || (term.store_time == self.term.store_time && term.lost_at < self.term.lost_at)
    }
}

impl SharedState {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state if the lease is still held. Returns whether it has changed.
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
    /// Begins with a term that is known since this moment.
    pub(crate) fn new(term: Term, known_since: Instant) -> Self {
        Self(Arc::new(SharedState {
            state: Mutex::new(State {
                term,
                known_since,
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

    /// Moves the end, unless it has passed: an answer that arrives after it is too late.
    pub(crate) fn extend(&self, term: &Term) {
        self.0.change(|state| {
            let moves = !state.is_lost() && state.is_outdated_by(term);
            if moves {
                state.term = *term;
                state.known_since = Instant::now();
            }
            moves
        });
    }

    /// The lease has ended early. Returns `false` if it was over already.
    pub(crate) fn lose(&self) -> bool {
        self.0.change(|state| {
            state.phase = Phase::Lost;
            true
        })
    }

    /// The guard releases or keeps its lease. A lease that is lost by then stays lost.
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

/// Notifies a function that its lease is lost: because its local deadline has passed, or because it was released, forced or
/// shortened, through this process or, if the store reports it, through another.
///
/// It may fire shortly before the lease ends in the store, but never after. Once it has fired it stays so, even after the guard
/// was dropped. For a lease that was released or kept in time it never fires.
#[derive(Debug, Clone)]
pub struct LossNotice(Arc<SharedState>);

impl LossNotice {
    /// The notice of a lease that expires after this time, for tests.
    pub fn after(time: Duration) -> Self {
        let now = Instant::now();
        let term = Term {
            ends_at: now + time,
            lost_at: now + time,
            expires_at: Timestamp::from_millis(0) + time,
            sent: now,
            store_time: Timestamp::from_millis(0),
        };
        Tenure::new(term, now).notice()
    }

    /// Returns when the lease is lost.
    pub async fn lost(&self) {
        loop {
            let mut changed = pin!(self.0.changed.notified());
            // From here on no change is missed: a change before the state is read is part of it, and a later one notifies,
            // because `is_awaited` is set.
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
                () = sleep_until(state.term.lost_at) => {}
                () = changed => {}
            }
        }
    }

    /// How long the lease lasts at least, unless it is ended early.
    pub fn remaining(&self) -> Duration {
        let state = *self.0.state();
        match state.phase {
            Phase::Lost => Duration::ZERO,
            Phase::Held | Phase::Ended => {
                state.term.lost_at.saturating_duration_since(Instant::now())
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
            ends_at: sent + ttl,
            lost_at: local_end(sent, ttl, ttl),
            expires_at: Timestamp::from_millis(read) + ttl,
            sent,
            store_time: Timestamp::from_millis(read),
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
    async fn answers_that_arrive_out_of_order_apply_in_the_order_of_the_store() {
        let sent = Instant::now();
        let tenure = Tenure::new(term(sent, 0, TTL), sent);
        advance(Duration::from_secs(1)).await;
        let both_sent = Instant::now();
        advance(Duration::from_secs(1)).await;
        // The store made it longer, then shorter; the answers arrive in the opposite order.
        tenure.extend(&term(both_sent, 1_500, TTL / 5));
        tenure.extend(&term(both_sent, 1_400, TTL * 5));
        assert_eq!(tenure.term().expires_at.as_millis(), 3_500);
        // In the same millisecond the earlier end is taken.
        tenure.extend(&term(both_sent, 1_500, TTL));
        assert_eq!(tenure.term().expires_at.as_millis(), 3_500);
        // An answer to a later request is newer, whatever the store's clock says.
        tenure.extend(&term(Instant::now(), 1_000, TTL));
        assert_eq!(tenure.term().expires_at.as_millis(), 11_000);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_was_released_in_time_is_never_lost() {
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
        assert_eq!(first.await.unwrap(), shorter.lost_at);
        assert_eq!(second.await.unwrap(), shorter.lost_at);

        let start = Instant::now();
        let tenure = Tenure::new(term(start, 0, TTL), start);
        let lost = awaited(tenure.notice());
        advance(Duration::from_secs(1)).await;
        assert!(tenure.lose());
        assert_eq!(lost.await.unwrap(), start + Duration::from_secs(1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_lost_lease_stays_lost() {
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
