//! A call for a lock, until it has its outcome.
//!
//! Both types here clean up when they are dropped, so a caller that disconnects at any point leaves no waiter and no lease behind.

use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until, timeout};

use crate::event::EventKind;
use crate::model::{Abandoned, Wake};
use crate::service::{CoreRef, is_expired_on_arrival, retry_after};
use crate::store::{Answer, LockStoreExt};
use crate::tenure::Term;
use crate::{
    AcquireOutcome, Lease, LeaseGuard, LockError, LockName, Locks, Reading, StoreError, Ticket,
};

/// How long the store may take to say when to retry. The outcome itself is known by then, and must not be delayed.
const HINT_TIME: Duration = Duration::from_millis(200);

/// A permit to wait, returned when dropped.
pub(crate) struct WaitPermit {
    core: CoreRef,
    ticket: Ticket,
    wake: oneshot::Receiver<(Wake, Reading)>,
    /// The keys with an alarm for this call.
    alarms_for: Option<Locks>,
}

impl WaitPermit {
    /// Must be called before the store receives the call, so that no notification is missed.
    pub(crate) fn new(core: CoreRef, ticket: Ticket) -> Self {
        let wake = core.node.waiters.add(ticket);
        Self {
            core,
            ticket,
            wake,
            alarms_for: None,
        }
    }

    /// Keeps alarms for these keys until the permit is dropped.
    pub(crate) fn keep_alarms(&mut self, locks: &Locks) {
        for name in locks.names() {
            self.core.node.alarms.add_waiter(name);
        }
        self.alarms_for = Some(locks.clone());
    }
}

impl Drop for WaitPermit {
    fn drop(&mut self) {
        self.core.node.waiters.remove(self.ticket);
        self.core.return_wait_permit();
        for name in self.alarms_for.iter().flat_map(Locks::names) {
            self.core.node.alarms.remove_waiter(name);
        }
    }
}

/// A call under way. If it is dropped before it has its outcome, it is rolled back.
pub(crate) struct Pending {
    core: CoreRef,
    pub(crate) locks: Locks,
    pub(crate) ticket: Ticket,
    rolls_back: bool,
    has_lease: bool,
}

impl Pending {
    pub(crate) fn new(core: CoreRef, ticket: Ticket, locks: Locks) -> Self {
        core.node.held.call_began(&locks);
        Self {
            core,
            locks,
            ticket,
            rolls_back: true,
            has_lease: false,
        }
    }

    fn name(&self) -> &LockName {
        self.locks.first()
    }

    /// Waits until the store ends the wait or `deadline` has passed. The wait began at `since`.
    pub(crate) async fn wait(
        self,
        mut permit: WaitPermit,
        since: Instant,
        deadline: Instant,
        blocked_by: Vec<LockName>,
    ) -> Result<AcquireOutcome, LockError> {
        let wake = tokio::select! {
            biased;
            wake = &mut permit.wake => wake,
            () = self.core.closed() => return Err(LockError::Closed),
            () = sleep_until(deadline) => {
                // No grant can arrive after this, but one may have arrived just before.
                permit.wake.close();
                match permit.wake.try_recv() {
                    Ok(wake) => Ok(wake),
                    Err(_) => return self.time_out(since, blocked_by).await,
                }
            }
        };
        match wake {
            Ok((Wake::Granted(lease), reading)) => {
                let ttl = lease.expires_at.remaining(lease.acquired_at);
                let term = Term::from_reading(lease.expires_at, ttl, reading);
                let answered = Instant::now();
                if is_expired_on_arrival(term.lost_at, ttl, answered) {
                    return Err(self.expired_on_arrival());
                }
                Ok(AcquireOutcome::Granted(self.granted(lease, term, answered)))
            }
            Ok((Wake::TimedOut(obstacle), reading)) => {
                let now = reading.now + reading.at.elapsed();
                let left = obstacle.retry_at.remaining(now);
                Ok(self.timed_out(since, obstacle.blocked_by, left))
            }
            Ok((Wake::Withdrawn, _)) => {
                self.ended(EventKind::GivenUp);
                Ok(AcquireOutcome::Withdrawn)
            }
            Ok((Wake::FencesExhausted, _)) => {
                self.failed();
                Err(LockError::FencesExhausted)
            }
            Err(_) => {
                self.failed();
                Err(StoreError::NotDone("the store has dropped the waiting call".into()).into())
            }
        }
    }

    /// Leaves the queue. If the store does not say what blocked the call at last, the answer names what did at first.
    async fn time_out(
        mut self,
        since: Instant,
        blocked_by: Vec<LockName>,
    ) -> Result<AcquireOutcome, LockError> {
        let leave = self.core.store.leave(self.name(), self.ticket);
        let answer = timeout(HINT_TIME, leave).await;
        if let Ok(Ok(Answer { outcome, now })) = answer {
            self.rolls_back = false;
            if let Abandoned::LeftQueue(obstacle) = outcome {
                let left = obstacle.retry_at.remaining(now);
                return Ok(self.timed_out(since, obstacle.blocked_by, left));
            }
        }
        Ok(self.timed_out(since, blocked_by, Duration::ZERO))
    }

    fn timed_out(
        mut self,
        since: Instant,
        blocked_by: Vec<LockName>,
        left: Duration,
    ) -> AcquireOutcome {
        self.abandon();
        let waited = Some(since.elapsed());
        let reporter = &self.core.node.reporter;
        reporter.report(EventKind::TimedOut, self.name(), None, waited);
        AcquireOutcome::TimedOut {
            blocked_by,
            retry_after: retry_after(left),
        }
    }

    /// It has received its lease, at `answered`.
    pub(crate) fn granted(mut self, lease: Lease, term: Term, answered: Instant) -> LeaseGuard {
        self.rolls_back = false;
        self.has_lease = true;
        LeaseGuard::new(self.core.clone(), lease, self.ticket, term, answered)
    }

    /// It has an outcome without a lease, and nothing to roll back.
    pub(crate) fn ended(mut self, how: EventKind) {
        self.rolls_back = false;
        self.core.count(how, self.locks.first());
    }

    /// The lease of the grant had expired by the time it arrived.
    pub(crate) fn expired_on_arrival(self) -> LockError {
        self.failed();
        StoreError::MaybeDone("the lease had expired when its grant arrived".into()).into()
    }

    /// The store failed, but may have executed the command.
    pub(crate) fn failed(mut self) {
        self.abandon();
        self.core
            .count(EventKind::AcquireFailed, self.locks.first());
    }

    /// Rolls the call back if it has no outcome yet. Returns whether it did.
    fn abandon(&mut self) -> bool {
        let rolls_back = std::mem::take(&mut self.rolls_back);
        if rolls_back {
            self.core.store.abandon(self.locks.first(), self.ticket);
        }
        rolls_back
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if self.abandon() {
            self.core.count(EventKind::GivenUp, self.locks.first());
        }
        if !self.has_lease {
            self.core.node.held.call_ended(&self.locks);
        }
    }
}
