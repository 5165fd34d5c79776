//! A lease in the hands of this process: renewed, watched, and given back whatever happens.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, sleep_until};

use crate::event::EventKind;
use crate::service::{Core, local_end};
use crate::state::{Extend, NotHeld, Release};
use crate::{Lease, StoreError, Ticket, Timestamp, Ttl};

/// A lease that is held here. Dropped, it is given back; [`release`](Self::release) also says how that went, and
/// [`keep`](Self::keep) leaves it to its expiry.
#[derive(Debug)]
pub struct LeaseGuard {
    core: Arc<Core>,
    lease: Lease,
    ticket: Ticket,
    granted: Instant,
    validity: watch::Sender<Validity>,
    renewal: Option<AbortHandle>,
    is_ours: bool,
}

/// Until when the lease counts as held here.
#[derive(Debug, Clone, Copy)]
struct Validity {
    /// By this process' monotonic clock, counted from before the request was sent, so never later than the truth.
    until: Instant,
    /// By the store's clock.
    expires_at: Timestamp,
    /// Whether the loss was noticed and reported.
    is_lost: bool,
}

/// How giving back a lease went.
#[derive(Debug)]
pub enum ReleaseOutcome {
    /// It is free, or the next waiter's.
    Released,
    /// It was no longer ours, and whoever holds it now was left alone.
    Lost(NotHeld),
    /// The store failed. It is tried again in the background until the lease ends by itself.
    Pending(StoreError),
}

impl LeaseGuard {
    pub(crate) fn new(core: Arc<Core>, lease: Lease, ticket: Ticket, until: Instant) -> Self {
        let validity = Validity {
            until,
            expires_at: lease.expires_at,
            is_lost: false,
        };
        Self {
            core,
            lease,
            ticket,
            granted: Instant::now(),
            validity: watch::Sender::new(validity),
            renewal: None,
            is_ours: true,
        }
    }

    /// The lease, with its newest expiry.
    pub fn lease(&self) -> Lease {
        Lease {
            expires_at: self.validity.borrow().expires_at,
            ..self.lease.clone()
        }
    }

    /// What a function awaits to learn that its lease is over.
    pub fn loss(&self) -> LossNotice {
        LossNotice(self.validity.subscribe())
    }

    /// Extends the lease by `ttl` from now on, three times in each ttl, until this guard is gone.
    pub fn renew(&mut self, ttl: Ttl) {
        self.stop_renewal();
        let renewal = Renewal {
            core: self.core.clone(),
            lease: self.lease.clone(),
            ttl,
            validity: self.validity.clone(),
        };
        self.renewal = Some(tokio::spawn(renewal.run()).abort_handle());
    }

    /// Gives the lease back.
    ///
    /// A release that is itself dropped half-way still gives the lease back.
    pub async fn release(mut self) -> ReleaseOutcome {
        self.stop_renewal();
        let answer = self.core.store.release(&self.lease.name, self.command());
        match answer.await {
            Ok(answer) => {
                self.is_ours = false;
                self.core.report_expired(answer.expired.as_ref());
                match answer.outcome {
                    Ok(_) => {
                        self.report(EventKind::Released);
                        ReleaseOutcome::Released
                    }
                    Err(why) => {
                        self.report(EventKind::ReleaseRefused);
                        if !self.validity.borrow().is_lost {
                            self.report(EventKind::Lost);
                        }
                        ReleaseOutcome::Lost(why)
                    }
                }
            }
            Err(error) => {
                self.report(EventKind::ReleaseFailed);
                self.is_ours = false;
                tokio::spawn(self.retry_release());
                ReleaseOutcome::Pending(error)
            }
        }
    }

    /// Leaves the lease to be released by its owner's token, or to expire. Renewal ends.
    pub fn keep(mut self) -> Lease {
        self.stop_renewal();
        self.is_ours = false;
        self.lease()
    }

    fn command(&self) -> Release {
        Release {
            owner: self.lease.owner.clone(),
            fence: Some(self.lease.fence),
        }
    }

    fn retry_release(&self) -> impl Future<Output = ()> + use<> {
        let (core, name, command) = (self.core.clone(), self.lease.name.clone(), self.command());
        let until = self.validity.borrow().until;
        async move {
            let mut pause = Duration::from_millis(50);
            while Instant::now() < until {
                sleep(pause).await;
                if let Ok(answer) = core.store.release(&name, command.clone()).await {
                    if let Ok(lease) = &answer.outcome {
                        core.report_ended(EventKind::Released, lease, answer.now);
                    }
                    return;
                }
                pause = (pause * 2).min(Duration::from_secs(1));
            }
        }
    }

    fn stop_renewal(&mut self) {
        if let Some(renewal) = self.renewal.take() {
            renewal.abort();
        }
    }

    fn report(&self, kind: EventKind) {
        self.core.reporter.report(
            kind,
            &self.lease.name,
            Some(self.lease.fence),
            Some(self.granted.elapsed()),
        );
    }
}

impl Drop for LeaseGuard {
    fn drop(&mut self) {
        self.stop_renewal();
        if self.is_ours {
            self.core.store.abandon(&self.lease.name, self.ticket);
            self.report(EventKind::Abandoned);
        }
    }
}

/// Tells a function that its lease is over, by the clock of this machine and without asking the store.
///
/// It may fire a little before the store lets the lease go, never after. Once fired it stays so. After the lease was
/// released or kept it never fires.
#[derive(Debug, Clone)]
pub struct LossNotice(watch::Receiver<Validity>);

impl LossNotice {
    /// Returns when the lease is lost.
    pub async fn lost(&self) {
        let mut validity = self.0.clone();
        while !Self(validity.clone()).is_lost() {
            let until = validity.borrow_and_update().until;
            tokio::select! {
                () = sleep_until(until) => {}
                changed = validity.changed() => if changed.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        }
    }

    /// How long the lease lasts for certain.
    pub fn remaining(&self) -> Duration {
        let until = self.0.borrow().until;
        until.saturating_duration_since(Instant::now())
    }

    /// Whether the lease is lost by now.
    pub fn is_lost(&self) -> bool {
        let is_given_up = self.0.has_changed().is_err();
        !is_given_up && self.0.borrow().until <= Instant::now()
    }
}

/// Keeps one lease alive.
struct Renewal {
    core: Arc<Core>,
    lease: Lease,
    ttl: Ttl,
    validity: watch::Sender<Validity>,
}

impl Renewal {
    async fn run(self) {
        let ttl = self.ttl.as_duration();
        // The lease may have been granted with another ttl, of which a part is gone.
        let left = self.validity.borrow().until - Instant::now();
        let mut pause = ttl.min(left) / 3;
        loop {
            sleep(pause).await;
            let sent = Instant::now();
            if sent >= self.validity.borrow().until {
                return self.report_lost();
            }
            let command = Extend {
                owner: self.lease.owner.clone(),
                fence: Some(self.lease.fence),
                ttl: self.ttl,
            };
            match self.core.extend(&self.lease.name, command).await {
                Ok(answer) => match answer.outcome {
                    Ok(lease) => {
                        let renewed = Validity {
                            until: local_end(sent, ttl),
                            expires_at: lease.expires_at,
                            is_lost: false,
                        };
                        if !self.prolong(renewed) {
                            return self.report_lost();
                        }
                        pause = ttl / 3;
                    }
                    Err(_) => {
                        self.validity.send_modify(|validity| validity.until = sent);
                        return self.report_lost();
                    }
                },
                // Not lost yet: what is left of the ttl is for trying again.
                Err(_) => pause = ttl / 12,
            }
        }
    }

    /// An answer that came after the notice had fired comes too late: lost stays lost.
    fn prolong(&self, renewed: Validity) -> bool {
        self.validity.send_if_modified(|validity| {
            let in_time = Instant::now() < validity.until;
            if in_time {
                *validity = renewed;
            }
            in_time
        })
    }

    fn report_lost(&self) {
        self.validity
            .send_modify(|validity| validity.is_lost = true);
        let fence = Some(self.lease.fence);
        self.core
            .reporter
            .report(EventKind::Lost, &self.lease.name, fence, None);
    }
}
