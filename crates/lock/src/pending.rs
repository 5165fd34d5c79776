//! A call for a lock, until it has its outcome.

use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until, timeout};

use crate::event::EventKind;
use crate::model::{Abandoned, Wake};
use crate::service::{CoreRef, came_too_late, retry_after};
use crate::store::{Answer, LockStoreExt};
use crate::tenure::Term;
use crate::{
    AcquireOutcome, Lease, LeaseGuard, LockError, LockName, Locks, Reading, StoreError, Ticket,
};

/// How long the store has to say when it is worth asking again. The answer itself is known, and must not wait for it.
const HINT_TIME: Duration = Duration::from_millis(200);

/// A permit to wait, given back when dropped.
pub(crate) struct WaitPermit {
    core: CoreRef,
    ticket: Ticket,
    wake: oneshot::Receiver<(Wake, Reading)>,
    /// The keys whose alarms are kept for this call.
    joined: Option<Locks>,
}

impl WaitPermit {
    /// Notified of the end of the wait from now on. To be called before the store knows of the call.
    pub(crate) fn new(core: CoreRef, ticket: Ticket) -> Self {
        let wake = core.node.waiters.add(ticket);
        Self {
            core,
            ticket,
            wake,
            joined: None,
        }
    }

    /// From now on the keys have an alarm, as long as any call waits for them.
    pub(crate) fn join_clock(&mut self, locks: &Locks) {
        for name in locks.names() {
            self.core.node.clock.join(name);
        }
        self.joined = Some(locks.clone());
    }
}

impl Drop for WaitPermit {
    fn drop(&mut self) {
        self.core.node.waiters.remove(self.ticket);
        self.core.give_back_wait_permit();
        for name in self.joined.iter().flat_map(Locks::names) {
            self.core.node.clock.leave(name);
        }
    }
}

/// A call on its way. Dropped before it has its outcome, it takes back whatever it got.
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

    /// Waits for the end that the store puts to it, from `since` until `deadline`.
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
                // From here on no grant can come in any more; one that just came is taken.
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
                let term = Term::read(lease.expires_at, ttl, reading);
                let answered = Instant::now();
                if came_too_late(term.until, ttl, answered) {
                    return Err(self.came_too_late());
                }
                Ok(AcquireOutcome::Granted(self.granted(lease, term, answered)))
            }
            Ok((Wake::TimedOut(obstacle), reading)) => {
                let now = reading.now + reading.at.elapsed();
                let left = obstacle.look_at.remaining(now);
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
                Err(StoreError::NotDone("the store went away".into()).into())
            }
        }
    }

    /// Leaves the queue, and says what was in the way: if the store does not, what was at first.
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
                let left = obstacle.look_at.remaining(now);
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
        self.leave();
        let waited = Some(since.elapsed());
        let reporter = &self.core.node.reporter;
        reporter.report(EventKind::TimedOut, self.name(), None, waited);
        AcquireOutcome::TimedOut {
            blocked_by,
            retry_after: retry_after(left),
        }
    }

    /// It has its lease, by an answer of that moment.
    pub(crate) fn granted(mut self, lease: Lease, term: Term, answered: Instant) -> LeaseGuard {
        self.rolls_back = false;
        self.has_lease = true;
        LeaseGuard::new(self.core.clone(), lease, self.ticket, term, answered)
    }

    /// It has its outcome, and nothing to roll back.
    pub(crate) fn ended(mut self, how: EventKind) {
        self.rolls_back = false;
        self.core.count(how, self.locks.first());
    }

    /// The grant was on its way for longer than its lease lasts.
    pub(crate) fn came_too_late(self) -> LockError {
        self.failed();
        StoreError::MaybeDone("the grant came when its lease was over".into()).into()
    }

    /// The store failed, and may have done something all the same.
    pub(crate) fn failed(mut self) {
        self.leave();
        self.core
            .count(EventKind::AcquireFailed, self.locks.first());
    }

    /// Whether there was anything to leave.
    fn leave(&mut self) -> bool {
        let rolls_back = std::mem::take(&mut self.rolls_back);
        if rolls_back {
            self.core.store.abandon(self.locks.first(), self.ticket);
        }
        rolls_back
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if self.leave() {
            self.core.count(EventKind::GivenUp, self.locks.first());
        }
        if !self.has_lease {
            self.core.node.held.call_ended(&self.locks);
        }
    }
}
