//! Locks as a server uses them: waiting, limits, expiry and clean-up over any store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::alarm::{Alarm, AlarmClock};
use crate::event::{EventKind, Events, KeyStyle, Observer, Reporter, Stats};
use crate::expiry::{Expiry, until_next_look};
use crate::held::HeldLeases;
use crate::pending::{Pending, WaitingPlace};
use crate::state::{Acquire, Acquired, Claim, Extend, ForceRelease, NotHeld, Release, Wait};
use crate::store::{
    Answer, ListError, ListRequest, LockStatus, LockStore, Page, StoreError, Waiting,
};
use crate::tenure::{Term, local_end};
use crate::unreleased::Unreleased;
use crate::{
    Attempt, Caller, Fence, Lease, LeaseGuard, LockName, Owner, Ticket, Timestamp, Ttl, Waiter,
};

/// Limits and habits of a [`LockService`].
#[derive(Debug, Clone)]
pub struct Config {
    /// How many may wait for one key.
    pub max_waiters_per_key: usize,
    /// How many may wait in this process.
    pub max_waiters: usize,
    /// How lock names appear in events.
    pub keys: KeyStyle,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            max_waiters_per_key: 10_000,
            max_waiters: 100_000,
            keys: KeyStyle::default(),
        }
    }
}

/// Locks over a store. Cheap to clone: all clones are one service.
#[derive(Debug, Clone)]
pub struct LockService {
    core: Arc<Core>,
}

/// What the service shares with its guards and pending calls.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) store: Arc<dyn LockStore>,
    pub(crate) reporter: Arc<Reporter>,
    pub(crate) held: Arc<HeldLeases>,
    pub(crate) unreleased: Unreleased,
    config: Config,
    pub(crate) clock: Arc<AlarmClock>,
    waiting: AtomicUsize,
    closed: watch::Sender<bool>,
    first_ticket: u128,
    tickets: AtomicU64,
    expiry: AbortHandle,
}

/// What a caller asks for.
#[derive(Debug, Clone)]
pub struct AcquireRequest {
    /// Which lock.
    pub name: LockName,
    /// Whose lease it becomes.
    pub owner: Owner,
    /// Who asks, where the server knows its callers.
    pub caller: Option<Caller>,
    /// How long the lease lasts from its grant.
    pub ttl: Ttl,
    /// How long to wait when it is held; at once when omitted.
    pub wait: Option<Duration>,
    /// Repeated by a caller who did not get the answer.
    pub attempt: Option<Attempt>,
}

/// What a caller gets.
#[derive(Debug)]
pub enum AcquireOutcome {
    /// The lock.
    Granted(LeaseGuard),
    /// Somebody else holds it, and the caller did not want to wait.
    Held {
        /// When asking again is worth it: with jitter, and not after the holder's expiry.
        retry_after: Duration,
    },
    /// Somebody else held it for as long as the caller wanted to wait.
    TimedOut {
        /// When asking again is worth it.
        retry_after: Duration,
    },
    /// Somebody else holds it, and too many wait already.
    TooManyWaiters {
        /// Which of the two limits is reached.
        limit: WaiterLimit,
        /// When asking again is worth it.
        retry_after: Duration,
    },
    /// A repetition of this attempt has taken its place in the queue.
    Superseded {
        /// When asking again is worth it.
        retry_after: Duration,
    },
}

/// A limit on how many may wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaiterLimit {
    /// [`Config::max_waiters_per_key`].
    OfLock,
    /// [`Config::max_waiters`].
    OfProcess,
}

/// Why there is no outcome.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// The store failed. Nothing is held.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The service is shutting down.
    #[error("the server is shutting down")]
    Closed,
    /// The last fence has been given out.
    #[error("no fencing tokens are left in this store: nothing can be locked any more")]
    FencesExhausted,
}

/// Callers who are refused come back within this time, even when the holder's lease is long.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(1);

impl LockService {
    /// A service over `store`. Has to be called in a tokio runtime, where it starts one task that minds expiry.
    pub fn new(store: Arc<dyn LockStore>, config: Config) -> Self {
        Self::start(store, config, None)
    }

    /// As [`new`](Self::new), with somebody who hears of everything that happens.
    pub fn observed(
        store: Arc<dyn LockStore>,
        config: Config,
        observer: Arc<dyn Observer>,
    ) -> Self {
        Self::start(store, config, Some(observer))
    }

    fn start(
        store: Arc<dyn LockStore>,
        config: Config,
        observer: Option<Arc<dyn Observer>>,
    ) -> Self {
        let clock = Arc::new(AlarmClock::default());
        let reporter = Arc::new(Reporter::new(config.keys, store.secret(), observer));
        let held = Arc::new(HeldLeases::new(reporter.clone()));
        let expiry = Expiry {
            store: store.clone(),
            reporter: reporter.clone(),
            held: held.clone(),
            clock: clock.clone(),
        };
        Self {
            core: Arc::new(Core {
                store,
                reporter,
                held,
                unreleased: Unreleased::default(),
                config,
                clock,
                waiting: AtomicUsize::new(0),
                closed: watch::Sender::new(false),
                first_ticket: Ticket::random().0,
                tickets: AtomicU64::new(0),
                expiry: tokio::spawn(expiry.run()).abort_handle(),
            }),
        }
    }

    /// Takes the lock, at once or after waiting in arrival order.
    ///
    /// Dropping the future leaves the queue at once, and returns the lock if it had just been granted.
    pub async fn acquire(&self, request: AcquireRequest) -> Result<AcquireOutcome, LockError> {
        let core = &self.core;
        let AcquireRequest {
            name,
            owner,
            caller,
            ttl,
            wait,
            attempt,
        } = request;
        let pending = Pending::new(core.clone(), name);
        let place = wait.and_then(|timeout| core.waiting_place(&pending.name, ttl, timeout));
        let (wait_in_store, place) = place.unzip();
        let claim = Claim {
            owner,
            caller,
            attempt,
            ticket: pending.ticket,
            ttl,
        };
        let sent = Instant::now();
        let command = Acquire {
            claim,
            wait: wait_in_store,
        };
        let answer = match core.store.acquire(&pending.name, command).await {
            Ok(answer) => answer,
            Err(error) => {
                match error {
                    StoreError::NotDone(_) => pending.ended(EventKind::AcquireFailed),
                    StoreError::MaybeDone(_) => pending.failed(),
                }
                return Err(error.into());
            }
        };
        core.report_expired(answer.expired.as_ref());
        let expires_at = match answer.outcome {
            Acquired::Granted(lease) => {
                // Not the ttl: a repeated attempt gets a lease of which some time is gone.
                let left = lease.expires_at.remaining(answer.now);
                let until = local_end(sent, left, ttl.as_duration());
                if came_too_late(until, ttl.as_duration()) {
                    return Err(pending.came_too_late());
                }
                core.report(EventKind::Acquired, &lease, None);
                let term = Term {
                    until,
                    expires_at: lease.expires_at,
                    sent,
                    read: answer.now,
                };
                return Ok(AcquireOutcome::Granted(pending.granted(lease, term)));
            }
            Acquired::FencesExhausted => {
                pending.ended(EventKind::AcquireFailed);
                return Err(LockError::FencesExhausted);
            }
            Acquired::Held { expires_at }
            | Acquired::QueueFull { expires_at }
            | Acquired::Queued { expires_at } => expires_at,
        };
        core.count(EventKind::Contended, &pending.name);
        let left = expires_at.remaining(answer.now);
        match (answer.outcome, wait, place) {
            (Acquired::Queued { .. }, Some(timeout), Some(place)) => {
                let place = place.join_clock(&pending.name);
                core.set_alarm(&pending.name, left);
                let anchor = (sent, answer.now);
                pending.wait(place, sent + timeout, anchor).await
            }
            (outcome, wait, _) => {
                let retry_after = retry_after(left);
                Ok(if wait.is_some() {
                    pending.ended(EventKind::TooManyWaiters);
                    let limit = match outcome {
                        Acquired::QueueFull { .. } => WaiterLimit::OfLock,
                        _ => WaiterLimit::OfProcess,
                    };
                    AcquireOutcome::TooManyWaiters { limit, retry_after }
                } else {
                    pending.ended(EventKind::Refused);
                    AcquireOutcome::Held { retry_after }
                })
            }
        }
    }

    /// Gives back a lease by its owner's token, and by its fence where one is named.
    pub async fn release(
        &self,
        name: &LockName,
        owner: Owner,
        fence: Option<Fence>,
    ) -> Result<Result<Lease, NotHeld>, StoreError> {
        let command = Release { owner, fence };
        let answer = self.core.store.release(name, command).await;
        let answer = answer.inspect_err(|_| self.core.count(EventKind::ReleaseFailed, name))?;
        match &answer.outcome {
            Ok(lease) => {
                self.core
                    .report_ended(EventKind::Released, lease, answer.now);
                self.core.held.ended(name, lease.fence);
            }
            Err(why) => {
                self.core.count(EventKind::ReleaseRefused, name);
                self.core.refused(name, fence, *why);
            }
        }
        Ok(self.core.outcome(answer))
    }

    /// Lets the lease end a full ttl from now.
    pub async fn extend(
        &self,
        name: &LockName,
        owner: Owner,
        fence: Option<Fence>,
        ttl: Ttl,
    ) -> Result<Result<Lease, NotHeld>, StoreError> {
        let command = Extend { owner, fence, ttl };
        let answer = self.core.extend(name, command).await?;
        if let Ok(lease) = &answer.outcome {
            // It may end earlier now than those who wait were told.
            let left = lease.expires_at.remaining(answer.now);
            self.core.set_alarm(name, left);
        }
        Ok(self.core.outcome(answer))
    }

    /// Ends the lease, whichever owner has it; only that of the fence where one is named.
    pub async fn force_release(
        &self,
        name: &LockName,
        fence: Option<Fence>,
    ) -> Result<Result<Lease, NotHeld>, StoreError> {
        let command = ForceRelease { fence };
        let answer = self.core.store.force_release(name, command).await;
        let answer = answer.inspect_err(|_| self.core.count(EventKind::ReleaseFailed, name))?;
        if let Ok(lease) = &answer.outcome {
            self.core.report_ended(EventKind::Forced, lease, answer.now);
            self.core.held.ended(name, lease.fence);
        }
        Ok(self.core.outcome(answer))
    }

    /// The lock if it is held, and the store's time of the look.
    pub async fn inspect(
        &self,
        name: &LockName,
    ) -> Result<(Option<LockStatus>, Timestamp), StoreError> {
        let answer = self.core.store.inspect(name).await?;
        Ok((answer.outcome, answer.now))
    }

    /// Who waits for a lock, the next one first, and the store's time of the look.
    pub async fn queue(
        &self,
        name: &LockName,
        limit: usize,
    ) -> Result<(Vec<Waiting>, Timestamp), StoreError> {
        let answer = self.core.store.queue(name, limit).await?;
        Ok((answer.outcome, answer.now))
    }

    /// Some of the locks that are held.
    pub async fn list(&self, request: &ListRequest) -> Result<Page, ListError> {
        self.core.store.list(request).await
    }

    /// The store behind the service.
    pub fn store(&self) -> &Arc<dyn LockStore> {
        &self.core.store
    }

    /// How many wait in this process.
    pub fn waiting(&self) -> usize {
        self.core.waiting.load(Ordering::Relaxed)
    }

    /// How often what has happened.
    pub fn stats(&self) -> &Stats {
        self.core.reporter.stats()
    }

    /// What happens from now on.
    pub fn events(&self) -> Events {
        self.core.reporter.subscribe()
    }

    /// Sends away everyone who waits, and lets nobody wait any more. Leases that are held stay held.
    pub fn close(&self) {
        self.core.closed.send_replace(true);
    }

    /// The end of the service: leases whose release failed and is still retried are rolled back by their tickets, and the
    /// store finishes what it does in the background.
    pub async fn shut_down(&self) {
        self.close();
        for (ticket, name) in self.core.unreleased.take() {
            self.core.store.abandon(&name, ticket);
        }
        self.core.store.close().await;
    }
}

impl Core {
    /// A place among those who wait, and what the store needs to reach it; none when there are too many.
    fn waiting_place(
        self: &Arc<Self>,
        name: &LockName,
        ttl: Ttl,
        timeout: Duration,
    ) -> Option<(Wait<Waiter>, WaitingPlace)> {
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= self.config.max_waiters {
            self.leave_waiting_place();
            return None;
        }
        let (waiter, wake) = Waiter::channel();
        let alarm = Alarm {
            clock: self.clock.clone(),
            name: name.clone(),
            after: self.until_next_look(ttl.as_duration()),
        };
        let wait = Wait {
            timeout,
            max_ahead: self.config.max_waiters_per_key,
            waiter: waiter.with_alarm(alarm),
        };
        let place = WaitingPlace::new(self.clone(), wake);
        Some((wait, place))
    }

    pub(crate) fn leave_waiting_place(&self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    fn set_alarm(&self, name: &LockName, left: Duration) {
        let at = Instant::now() + self.until_next_look(left);
        self.clock.set(name, at);
    }

    fn until_next_look(&self, left: Duration) -> Duration {
        until_next_look(self.store.as_ref(), left)
    }

    pub(crate) async fn closed(&self) {
        // The sender lives in `self`, so it cannot be gone.
        let _ = self.closed.subscribe().wait_for(|closed| *closed).await;
    }

    pub(crate) fn next_ticket(&self) -> Ticket {
        let count = self.tickets.fetch_add(1, Ordering::Relaxed);
        Ticket(self.first_ticket.wrapping_add(u128::from(count)))
    }

    /// Extends a lease, and reports how that went.
    pub(crate) async fn extend(
        &self,
        name: &LockName,
        command: Extend,
    ) -> Result<Answer<Result<Lease, NotHeld>>, StoreError> {
        let (fence, ttl) = (command.fence, command.ttl.as_duration());
        let sent = Instant::now();
        let answer = self.store.extend(name, command).await;
        match &answer {
            Ok(answer) => match &answer.outcome {
                Ok(lease) => {
                    self.report(EventKind::Extended, lease, None);
                    let term = Term {
                        until: local_end(sent, ttl, ttl),
                        expires_at: lease.expires_at,
                        sent,
                        read: answer.now,
                    };
                    self.held.extended(name, lease.fence, &term);
                }
                Err(why) => {
                    self.count(EventKind::ExtendRefused, name);
                    self.refused(name, fence, *why);
                }
            },
            Err(_) => self.count(EventKind::ExtendFailed, name),
        }
        answer
    }

    fn outcome<T>(&self, answer: Answer<T>) -> T {
        self.report_expired(answer.expired.as_ref());
        answer.outcome
    }

    pub(crate) fn report_expired(&self, expired: Option<&Lease>) {
        if let Some(lease) = expired {
            self.reporter.report_expired(lease);
            self.held.ended(&lease.name, lease.fence);
        }
    }

    /// A lease that is named by its fence and remembered as released is over for certain.
    fn refused(&self, name: &LockName, fence: Option<Fence>, why: NotHeld) {
        if let (Some(fence), NotHeld::AlreadyReleased { .. }) = (fence, why) {
            self.held.ended(name, fence);
        }
    }

    /// What happened without a lease.
    pub(crate) fn count(&self, kind: EventKind, name: &LockName) {
        self.reporter.report(kind, name, None, None);
    }

    pub(crate) fn report_ended(&self, kind: EventKind, lease: &Lease, now: Timestamp) {
        self.report(kind, lease, Some(now.remaining(lease.acquired_at)));
    }

    pub(crate) fn report(&self, kind: EventKind, lease: &Lease, after: Option<Duration>) {
        let is_grant = matches!(kind, EventKind::Acquired | EventKind::GrantedAfterWait);
        if is_grant && lease.fence >= Fence::WARN {
            tracing::warn!(fence = %lease.fence, "fencing tokens are running out");
        }
        self.reporter
            .report(kind, &lease.name, Some(lease.fence), after);
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.expiry.abort();
    }
}

/// A lease that is shorter than a store may take to answer is its caller's own wish.
const PROMPT: Duration = Duration::from_millis(100);

/// Whether a grant was so long on its way that nothing may be begun under it any more.
///
/// Not by what is left of the lease: of a repeated attempt's that may be short without anybody having asked for it.
pub(crate) fn came_too_late(until: Instant, ttl: Duration) -> bool {
    ttl >= PROMPT && Instant::now() >= until
}

/// A hint for the next try, from half of it to all of it at random, so that those refused together do not
/// come back together.
pub(crate) fn retry_after(left: Duration) -> Duration {
    let most = left.min(MAX_RETRY_AFTER).max(Duration::from_millis(1));
    let most = u64::try_from(most.as_millis()).unwrap_or(1);
    Duration::from_millis(fastrand::u64(most.div_ceil(2)..=most))
}
