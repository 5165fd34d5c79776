//! A call for a lock, until it has its outcome.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until, timeout};

use crate::event::EventKind;
use crate::service::{Core, came_too_late, retry_after};
use crate::state::Wake;
use crate::store::Answer;
use crate::tenure::{Term, local_end};
use crate::{
    AcquireOutcome, Lease, LeaseGuard, LockError, LockName, StoreError, Ticket, Timestamp,
};

/// How long the store has to say when it is worth asking again. The answer itself is known, and must not wait for it.
const HINT_TIME: Duration = Duration::from_millis(200);

/// One of the places for those who wait, free again when dropped.
pub(crate) struct WaitingPlace {
    core: Arc<Core>,
    wake: oneshot::Receiver<Wake>,
    /// The key whose alarm is kept for this place.
    joined: Option<LockName>,
}

impl WaitingPlace {
    pub(crate) fn new(core: Arc<Core>, wake: oneshot::Receiver<Wake>) -> Self {
        Self {
            core,
            wake,
            joined: None,
        }
    }

    /// From now on the key has an alarm, as long as anybody waits for it.
    pub(crate) fn join_clock(mut self, name: &LockName) -> Self {
        self.core.clock.join(name);
        self.joined = Some(name.clone());
        self
    }
}

impl Drop for WaitingPlace {
    fn drop(&mut self) {
        self.core.leave_waiting_place();
        if let Some(name) = &self.joined {
            self.core.clock.leave(name);
        }
    }
}

/// A call on its way. Dropped before it has its outcome, it takes back whatever it got.
pub(crate) struct Pending {
    core: Arc<Core>,
    pub(crate) name: LockName,
    pub(crate) ticket: Ticket,
    undo: bool,
}

impl Pending {
    pub(crate) fn new(core: Arc<Core>, name: LockName) -> Self {
        let ticket = core.next_ticket();
        core.held.call_began(&name);
        Self {
            core,
            name,
            ticket,
            undo: true,
        }
    }

    /// `anchor` ties the two clocks: the store read `anchor.1` no earlier than `anchor.0` was here.
    pub(crate) async fn wait(
        self,
        mut place: WaitingPlace,
        deadline: Instant,
        anchor: (Instant, Timestamp),
    ) -> Result<AcquireOutcome, LockError> {
        let wake = tokio::select! {
            biased;
            wake = &mut place.wake => wake,
            () = self.core.closed() => return Err(LockError::Closed),
            () = sleep_until(deadline) => {
                // From here on no grant can come in any more; one that just came is taken.
                place.wake.close();
                Ok(place.wake.try_recv().unwrap_or(Wake::TimedOut))
            }
        };
        match wake {
            Ok(Wake::Granted(lease)) => {
                let (sent, read) = anchor;
                // Should the store's clock have jumped since, the lease is no longer than its ttl from now.
                let ttl = lease.expires_at.remaining(lease.acquired_at);
                let until = local_end(sent, lease.expires_at.remaining(read), ttl).min(local_end(
                    Instant::now(),
                    ttl,
                    ttl,
                ));
                if came_too_late(until, ttl) {
                    return Err(self.came_too_late());
                }
                self.core
                    .report(EventKind::GrantedAfterWait, &lease, Some(sent.elapsed()));
                let term = Term {
                    until,
                    expires_at: lease.expires_at,
                    sent,
                    read: lease.acquired_at,
                };
                Ok(AcquireOutcome::Granted(self.granted(lease, term)))
            }
            Ok(Wake::TimedOut) => self.timed_out(anchor.0).await,
            Ok(Wake::Superseded) => {
                let retry_after = self.retry_after().await;
                self.ended(EventKind::GivenUp);
                Ok(AcquireOutcome::Superseded { retry_after })
            }
            Ok(Wake::FencesExhausted) => {
                self.failed();
                Err(LockError::FencesExhausted)
            }
            Err(_) => {
                self.failed();
                Err(StoreError::NotDone("the store went away".into()).into())
            }
        }
    }

    async fn timed_out(mut self, since: Instant) -> Result<AcquireOutcome, LockError> {
        self.leave();
        self.core
            .reporter
            .report(EventKind::TimedOut, &self.name, None, Some(since.elapsed()));
        let retry_after = self.retry_after().await;
        Ok(AcquireOutcome::TimedOut { retry_after })
    }

    /// When asking again is worth it for one who has waited.
    async fn retry_after(&self) -> Duration {
        let status = self.core.store.inspect(&self.name);
        let left = match timeout(HINT_TIME, status).await {
            Ok(Ok(Answer {
                outcome: Some(status),
                now,
                ..
            })) => status.lease.expires_at.remaining(now),
            // Free by now, or the store does not say: soon.
            _ => Duration::ZERO,
        };
        retry_after(left)
    }

    pub(crate) fn granted(mut self, lease: Lease, term: Term) -> LeaseGuard {
        self.undo = false;
        LeaseGuard::new(self.core.clone(), lease, self.ticket, term)
    }

    /// It has its outcome, and nothing to undo.
    pub(crate) fn ended(mut self, how: EventKind) {
        self.undo = false;
        self.core.count(how, &self.name);
    }

    /// The grant was on its way for longer than its lease lasts.
    pub(crate) fn came_too_late(self) -> LockError {
        self.failed();
        StoreError::MaybeDone("the grant came when its lease was over".into()).into()
    }

    /// The store failed, and may have done something all the same.
    pub(crate) fn failed(mut self) {
        self.leave();
        self.core.count(EventKind::AcquireFailed, &self.name);
    }

    /// Whether there was anything to leave.
    fn leave(&mut self) -> bool {
        let undo = std::mem::take(&mut self.undo);
        if undo {
            self.core.store.abandon(&self.name, self.ticket);
        }
        undo
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if self.leave() {
            self.core.count(EventKind::GivenUp, &self.name);
        }
        self.core.held.call_ended(&self.name);
    }
}
