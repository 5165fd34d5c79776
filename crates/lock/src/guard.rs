//! The guard of a lease that this process holds.
//!
//! It renews the lease, notices its loss, and releases it when it is dropped.

use std::time::Duration;

use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep};

use crate::event::EventKind;
use crate::model::{LeaseRef, NotHeld};
use crate::service::CoreRef;
use crate::store::LockStoreExt;
use crate::tenure::{LossNotice, Tenure, Term};
use crate::{Lease, StoreError, Ticket, Ttl};

/// A lease that is held here. Dropping it releases the lease; [`release`](Self::release) also returns how that went, and
/// [`keep`](Self::keep) leaves the lease to be released later, or to expire.
#[derive(Debug)]
pub struct LeaseGuard {
    core: CoreRef,
    lease: Lease,
    ticket: Ticket,
    granted: Instant,
    tenure: Tenure,
    renewal: Option<AbortHandle>,
    /// Whether the lease is rolled back when this guard is dropped.
    is_ours: bool,
    /// Whether the tenure is notified when the lease ends early.
    is_watched: bool,
}

/// The outcome of a release.
#[derive(Debug)]
pub enum ReleaseOutcome {
    /// It was released.
    Released,
    /// It had ended already. The next lease is not affected.
    Lost(NotHeld),
    /// The store failed. The release is retried in the background until the lease expires, and rolled back by its ticket if the
    /// service [shuts down](crate::LockService::shut_down) before.
    Pending(StoreError),
}

impl LeaseGuard {
    /// The guard of a grant that was received at `granted`.
    pub(crate) fn new(
        core: CoreRef,
        lease: Lease,
        ticket: Ticket,
        term: Term,
        granted: Instant,
    ) -> Self {
        let tenure = Tenure::new(term, granted);
        core.node.held.add_guard(&lease, ticket, &tenure);
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

    /// How long the lease lasts in the store, or less, as far as is known here.
    pub fn remaining(&self) -> Duration {
        self.remaining_at(Instant::now())
    }

    /// Like [`remaining`](Self::remaining), at the time `now`.
    pub fn remaining_at(&self, now: Instant) -> Duration {
        self.tenure.term().ends_at.saturating_duration_since(now)
    }

    /// The notice that a function awaits to learn that its lease is lost.
    pub fn loss(&self) -> LossNotice {
        self.tenure.notice()
    }

    /// Extends the lease by `ttl` three times in each ttl, until this guard is released, kept or dropped.
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

    /// Releases the lease, even if the returned future is dropped half-way.
    pub async fn release(mut self) -> ReleaseOutcome {
        self.detach();
        let answer = self.core.store.release(self.lease_ref());
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

    /// Stops renewal, and leaves the lease to be released by its owner's token, or to expire.
    pub fn keep(mut self) -> Lease {
        self.detach();
        self.is_ours = false;
        self.lease()
    }

    fn lease_ref(&self) -> LeaseRef {
        lease_ref(&self.lease)
    }

    fn retry_release(&self) -> impl Future<Output = ()> + use<> {
        let (core, lease_ref) = (self.core.clone(), self.lease_ref());
        let (ticket, until) = (self.ticket, self.tenure.term().lost_at);
        async move {
            let mut pause = Duration::from_millis(50);
            while Instant::now() < until {
                sleep(pause).await;
                if core.store.release(lease_ref.clone()).await.is_ok() {
                    break;
                }
                pause = (pause * 2).min(Duration::from_secs(1));
            }
            core.unreleased.remove(ticket);
        }
    }

    /// Stops renewal and notifications.
    fn detach(&mut self) {
        self.stop_renewal();
        if std::mem::take(&mut self.is_watched) {
            self.core.node.held.remove_guard(&self.lease, self.ticket);
        }
    }

    /// Stops renewal. The lease expires with its ttl, and [`loss`](Self::loss) fires then.
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
        self.detach();
        self.tenure.end();
        if self.is_ours {
            self.core.store.abandon(self.lease.name(), self.ticket);
        }
    }
}

/// A reference to exactly this lease, with its fence.
fn lease_ref(lease: &Lease) -> LeaseRef {
    LeaseRef {
        name: lease.name().clone(),
        owner: lease.owner.clone(),
        fence: Some(lease.fence),
    }
}

/// The task that renews one lease.
struct Renewal {
    core: CoreRef,
    lease: Lease,
    ttl: Ttl,
    tenure: Tenure,
}

impl Renewal {
    async fn run(self) {
        let ttl = self.ttl.as_duration();
        // The lease may have been granted with another ttl, part of which has passed.
        let left = self.tenure.term().lost_at - Instant::now();
        let mut pause = ttl.min(left) / 3;
        loop {
            sleep(pause).await;
            if self.tenure.is_lost() {
                return self.lose();
            }
            match self.core.extend(lease_ref(&self.lease), self.ttl).await {
                // The answer has moved the end of the lease, unless it arrived after that end: lost stays lost.
                Ok(answer) if answer.outcome.is_ok() && !self.tenure.is_lost() => pause = ttl / 3,
                Ok(_) => return self.lose(),
                // Not lost yet: the rest of the ttl is for retries.
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
