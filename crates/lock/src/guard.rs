//! A lease in the hands of this process: renewed, watched, and given back whatever happens.

use std::time::Duration;

use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep};

use crate::event::EventKind;
use crate::model::{Held, NotHeld};
use crate::service::CoreRef;
use crate::store::LockStoreExt;
use crate::tenure::{LossNotice, Tenure, Term};
use crate::{Lease, StoreError, Ticket, Ttl};

/// A lease that is held here. Dropped, it is given back; [`release`](Self::release) also says how that went, and
/// [`keep`](Self::keep) leaves it to its expiry.
#[derive(Debug)]
pub struct LeaseGuard {
    core: CoreRef,
    lease: Lease,
    ticket: Ticket,
    granted: Instant,
    tenure: Tenure,
    renewal: Option<AbortHandle>,
    is_ours: bool,
    /// Whether the service tells the tenure when the lease ends early.
    is_watched: bool,
}

/// How giving back a lease went.
#[derive(Debug)]
pub enum ReleaseOutcome {
    /// It is free, or the next waiter's.
    Released,
    /// It was no longer ours, and its next holder was left alone.
    Lost(NotHeld),
    /// The store failed. It is tried again in the background until the lease ends by itself, and rolled back by its ticket
    /// when the service [ends](crate::LockService::shut_down) before.
    Pending(StoreError),
}

impl LeaseGuard {
    /// Of a grant whose answer came at `granted`.
    pub(crate) fn new(
        core: CoreRef,
        lease: Lease,
        ticket: Ticket,
        term: Term,
        granted: Instant,
    ) -> Self {
        let tenure = Tenure::new(term, granted);
        core.node.held.hold(&lease, ticket, &tenure);
        Self {
            core,
            lease,
            ticket,
            granted,
            tenure,
            renewal: None,
            is_ours: true,
            is_watched: true,
        }
    }

    /// The lease, with its newest expiry.
    pub fn lease(&self) -> Lease {
        Lease {
            expires_at: self.tenure.term().expires_at,
            ..self.lease.clone()
        }
    }

    /// How long the lease lasts by the store's clock, as far as is known here; never more.
    pub fn remaining(&self) -> Duration {
        self.remaining_at(Instant::now())
    }

    /// As [`remaining`](Self::remaining), from this moment on.
    pub fn remaining_at(&self, now: Instant) -> Duration {
        self.tenure.term().ends.saturating_duration_since(now)
    }

    /// What a function awaits to learn that its lease is over.
    pub fn loss(&self) -> LossNotice {
        self.tenure.notice()
    }

    /// Extends the lease by `ttl` from now on, three times in each ttl, until this guard is gone.
    pub fn renew(&mut self, ttl: Ttl) {
        self.stop_renewal();
        let renewal = Renewal {
            core: self.core.clone(),
            lease: self.lease.clone(),
            ttl,
            tenure: self.tenure.clone(),
        };
        self.renewal = Some(tokio::spawn(renewal.run()).abort_handle());
    }

    /// Gives the lease back.
    ///
    /// A release that is itself dropped half-way still gives the lease back.
    pub async fn release(mut self) -> ReleaseOutcome {
        self.let_go();
        let answer = self.core.store.release(self.held());
        match answer.await {
            Ok(answer) => {
                self.is_ours = false;
                match answer.outcome {
                    // The tenure ends when this guard is dropped, which is now.
                    Ok(_) => ReleaseOutcome::Released,
                    Err(why) => {
                        self.report(EventKind::ReleaseRefused);
                        if self.tenure.lose() {
                            self.report(EventKind::Lost);
                        }
                        ReleaseOutcome::Lost(why)
                    }
                }
            }
            Err(error) => {
                self.report(EventKind::ReleaseFailed);
                self.is_ours = false;
                self.core.unreleased.add(self.lease.name(), self.ticket);
                tokio::spawn(self.retry_release());
                ReleaseOutcome::Pending(error)
            }
        }
    }

    /// Leaves the lease to be released by its owner's token, or to expire. Renewal ends.
    pub fn keep(mut self) -> Lease {
        self.let_go();
        self.is_ours = false;
        self.lease()
    }

    fn held(&self) -> Held {
        held(&self.lease)
    }

    fn retry_release(&self) -> impl Future<Output = ()> + use<> {
        let (core, held) = (self.core.clone(), self.held());
        let (ticket, until) = (self.ticket, self.tenure.term().until);
        async move {
            let mut pause = Duration::from_millis(50);
            while Instant::now() < until {
                sleep(pause).await;
                if core.store.release(held.clone()).await.is_ok() {
                    break;
                }
                pause = (pause * 2).min(Duration::from_secs(1));
            }
            core.unreleased.remove(ticket);
        }
    }

    /// From now on what happens to the lease is not this guard's concern.
    fn let_go(&mut self) {
        self.stop_renewal();
        if std::mem::take(&mut self.is_watched) {
            self.core.node.held.let_go(&self.lease, self.ticket);
        }
    }

    /// Extends the lease no more: it ends with its ttl, which [`loss`](Self::loss) tells.
    pub fn stop_renewal(&mut self) {
        if let Some(renewal) = self.renewal.take() {
            renewal.abort();
        }
    }

    fn report(&self, kind: EventKind) {
        self.core.node.reporter.report(
            kind,
            self.lease.name(),
            Some(self.lease.fence),
            Some(self.granted.elapsed()),
        );
    }
}

impl Drop for LeaseGuard {
    fn drop(&mut self) {
        self.let_go();
        self.tenure.end();
        if self.is_ours {
            self.core.store.abandon(self.lease.name(), self.ticket);
        }
    }
}

/// The one lease that a guard means.
fn held(lease: &Lease) -> Held {
    Held {
        name: lease.name().clone(),
        owner: lease.owner.clone(),
        fence: Some(lease.fence),
    }
}

/// Keeps one lease alive.
struct Renewal {
    core: CoreRef,
    lease: Lease,
    ttl: Ttl,
    tenure: Tenure,
}

impl Renewal {
    async fn run(self) {
        let ttl = self.ttl.as_duration();
        // The lease may have been granted with another ttl, of which a part is gone.
        let left = self.tenure.term().until - Instant::now();
        let mut pause = ttl.min(left) / 3;
        loop {
            sleep(pause).await;
            if self.tenure.is_lost() {
                return self.lose();
            }
            match self.core.extend(held(&self.lease), self.ttl).await {
                // The answer has moved the end of the lease, unless it came after that: lost stays lost.
                Ok(answer) if answer.outcome.is_ok() && !self.tenure.is_lost() => pause = ttl / 3,
                Ok(_) => return self.lose(),
                // Not lost yet: what is left of the ttl is for trying again.
                Err(_) => pause = ttl / 12,
            }
        }
    }

    fn lose(&self) {
        if self.tenure.lose() {
            let fence = Some(self.lease.fence);
            self.core
                .node
                .reporter
                .report(EventKind::Lost, self.lease.name(), fence, None);
        }
    }
}
