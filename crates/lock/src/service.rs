//! Locks as a server uses them: waiting, limits, expiry and rollback, over any store.
//!
//! The service submits steps to the store, and is the [`Node`] that the store notifies. So a wait is a local channel, not a
//! call that is open at the store.

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};

use crate::alarm::Alarms;
use crate::event::{EventKind, Events, KeyStyle, Observer, Reporter, Stats};
use crate::expiry::Expiry;
use crate::held::HeldLeases;
use crate::model::{
    Acquire, Acquired, Claim, End, LeaseRef, NotHeld, Obstacle, Transition, Wait, Wake, Withdrawn,
};
use crate::node::Node;
use crate::pending::{Pending, WaitPermit};
use crate::store::{
    Answer, ListError, ListRequest, LockStatus, LockStore, LockStoreExt, Page, StoreError, Waiter,
};
use crate::tenure::{Term, local_end};
use crate::unreleased::Unreleased;
use crate::waiters::Waiters;
use crate::watch::{Observation, Watches};
use crate::{
    Attempt, Caller, Fence, Lease, LeaseGuard, LockName, Locks, Note, Owner, Reading, Revision,
    Striped, Ticket, Timestamp, Ttl,
};

/// The configuration of a [`LockService`].
#[derive(Debug, Clone)]
pub struct Config {
    /// The most claims that wait for one key.
    pub max_waiters_per_key: usize,
    /// The most calls that wait in this process.
    pub max_waiters: usize,
    /// How lock names appear in events.
    pub keys: KeyStyle,
    /// How often a watched key is read although nothing was reported about it; `None` for intervals that suit the store.
    pub watch_poll: Option<Duration>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            max_waiters_per_key: 10_000,
            max_waiters: 100_000,
            keys: KeyStyle::default(),
            watch_poll: None,
        }
    }
}

/// Locks over a store. Cheap to clone; all clones are the same service.
#[derive(Debug, Clone)]
pub struct LockService {
    core: Arc<Core>,
    threads: Arc<Striped<PerThread>>,
}

/// State that the calls of one thread change. Their references to the core are counted here, not in one counter for all threads.
#[derive(Debug)]
struct PerThread {
    core: CoreRef,
    first_ticket: u128,
    tickets: AtomicU64,
}

impl PerThread {
    fn new(core: Arc<Core>) -> Self {
        Self {
            core: CoreRef(Arc::new(Counted { core })),
            first_ticket: Ticket::random().0,
            tickets: AtomicU64::new(0),
        }
    }

    fn next_ticket(&self) -> Ticket {
        let count = self.tickets.fetch_add(1, Ordering::Relaxed);
        Ticket(self.first_ticket.wrapping_add(u128::from(count)))
    }
}

/// The reference of a call or a guard to the core.
#[derive(Debug, Clone)]
pub(crate) struct CoreRef(Arc<Counted>);

/// On cache lines of its own, together with the reference count of its `Arc`.
#[derive(Debug)]
#[repr(align(128))]
struct Counted {
    core: Arc<Core>,
}

impl Deref for CoreRef {
    type Target = Core;

    fn deref(&self) -> &Core {
        &self.0.core
    }
}

/// The state that the service shares with its guards and pending calls.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) store: Arc<dyn LockStore>,
    pub(crate) node: Arc<LocalNode>,
    pub(crate) unreleased: Unreleased,
    config: Config,
    waiting: AtomicUsize,
    closed: watch::Sender<bool>,
    expiry: AbortHandle,
}

/// The node that the store notifies. It passes notifications on to the waiting calls and guards of this process, and reports
/// events.
#[derive(Debug)]
pub(crate) struct LocalNode {
    pub(crate) waiters: Waiters,
    pub(crate) held: HeldLeases,
    pub(crate) alarms: Arc<Alarms>,
    pub(crate) reporter: Arc<Reporter>,
    watches: Arc<Watches>,
}

/// A request for a lease.
#[derive(Debug, Clone)]
pub struct AcquireRequest {
    /// The keys, each with its share.
    pub locks: Locks,
    /// The owner of the lease.
    pub owner: Owner,
    /// The authenticated caller, if the server knows it.
    pub caller: Option<Caller>,
    /// What the lease is for, for people.
    pub note: Option<Note>,
    /// How long the lease lasts from its grant.
    pub ttl: Ttl,
    /// The longest wait; `None` to be refused at once.
    pub wait: Option<Duration>,
    /// Repeated by a caller that did not receive the answer.
    pub attempt: Option<Attempt>,
}

/// The outcome of a request for a lease.
#[derive(Debug)]
pub enum AcquireOutcome {
    /// The lease, with its guard.
    Granted(LeaseGuard),
    /// It cannot be granted now, and the call does not wait.
    Held {
        /// The keys that block it.
        blocked_by: Vec<LockName>,
        /// When to retry: with jitter, and no later than the end of a blocking lease.
        retry_after: Duration,
    },
    /// It could not be granted before the end of the wait.
    TimedOut {
        /// The keys that block it.
        blocked_by: Vec<LockName>,
        /// When to retry.
        retry_after: Duration,
    },
    /// It cannot be granted now, and too many calls wait already.
    TooManyWaiters {
        /// The limit that is reached.
        limit: WaiterLimit,
        /// The keys that block it.
        blocked_by: Vec<LockName>,
        /// When to retry.
        retry_after: Duration,
    },
    /// The attempt was withdrawn.
    Withdrawn,
    /// The attempt was made before, with other keys or other kinds.
    AttemptMismatch,
}

/// A limit of waiting calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaiterLimit {
    /// [`Config::max_waiters_per_key`].
    PerKey,
    /// [`Config::max_waiters`].
    PerProcess,
}

/// Why a request has no outcome.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// The store failed. Nothing is held.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The service is shutting down.
    #[error("the server is shutting down")]
    Closed,
    /// The last fence was minted.
    #[error("no fencing tokens are left in this store: nothing can be locked any more")]
    FencesExhausted,
}

/// The longest hint to callers that are refused, even if the holder's lease is long.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(1);

impl LockService {
    /// A service over `store`. Must be called in a tokio runtime, where it starts one task that handles expiry.
    pub fn new(store: Arc<dyn LockStore>, config: Config) -> Self {
        Self::start(store, config, None)
    }

    /// Like [`new`](Self::new), with an observer that receives every event.
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
        let reporter = Arc::new(Reporter::new(config.keys, store.secret(), observer));
        let node = Arc::new(LocalNode {
            waiters: Waiters::default(),
            held: HeldLeases::new(reporter.clone()),
            alarms: Arc::new(Alarms::default()),
            reporter,
            watches: Arc::new(Watches::new(config.watch_poll)),
        });
        let weak: Weak<LocalNode> = Arc::downgrade(&node);
        store.subscribe(weak);
        let expiry = Expiry {
            store: store.clone(),
            alarms: node.alarms.clone(),
        };
        let core = Arc::new(Core {
            store,
            node,
            unreleased: Unreleased::default(),
            config,
            waiting: AtomicUsize::new(0),
            closed: watch::Sender::new(false),
            expiry: tokio::spawn(expiry.run()).abort_handle(),
        });
        let threads = Striped::from_fn(|| PerThread::new(core.clone()));
        Self {
            core,
            threads: Arc::new(threads),
        }
    }

    /// Acquires a lease, at once or after waiting in arrival order.
    ///
    /// Dropping the future leaves the queue, and ends the lease if it had just been granted.
    pub async fn acquire(&self, request: AcquireRequest) -> Result<AcquireOutcome, LockError> {
        let thread = self.threads.own();
        let core = &thread.core;
        let AcquireRequest {
            locks,
            owner,
            caller,
            note,
            ttl,
            wait,
            attempt,
        } = request;
        let pending = Pending::new(core.clone(), thread.next_ticket(), locks.clone());
        let permit = wait.and_then(|_| core.wait_permit(pending.ticket));
        let acquire = Acquire {
            claim: Claim {
                locks,
                owner,
                caller,
                note,
                attempt,
                ttl,
            },
            ticket: pending.ticket,
            node: None,
            wait: wait.filter(|_| permit.is_some()).map(|timeout| Wait {
                timeout,
                max_queue: core.config.max_waiters_per_key,
                rejoin: None,
            }),
        };
        let sent = Instant::now();
        let Answer { outcome, now } = match core.store.acquire(acquire).await {
            Ok(answer) => answer,
            Err(error) => {
                match error {
                    StoreError::MaybeDone(_) => pending.failed(),
                    StoreError::NotDone(_) | StoreError::Unsupported(_) => {
                        pending.ended(EventKind::AcquireFailed);
                    }
                }
                return Err(error.into());
            }
        };
        // Without a limit, the call waits from now on.
        let (obstacle, limit) = match outcome {
            Acquired::Granted(lease) => {
                let answered = Instant::now();
                // Not the ttl: for a repeated attempt, part of it has passed.
                let left = lease.expires_at.remaining(now);
                let lost_at = local_end(sent, left, ttl.as_duration());
                if is_expired_on_arrival(lost_at, ttl.as_duration(), answered) {
                    return Err(pending.expired_on_arrival());
                }
                let term = Term {
                    ends_at: sent + left,
                    lost_at,
                    expires_at: lease.expires_at,
                    sent,
                    store_time: now,
                };
                let guard = pending.granted(lease, term, answered);
                return Ok(AcquireOutcome::Granted(guard));
            }
            Acquired::FencesExhausted => {
                pending.ended(EventKind::AcquireFailed);
                return Err(LockError::FencesExhausted);
            }
            Acquired::Withdrawn => {
                pending.ended(EventKind::GivenUp);
                return Ok(AcquireOutcome::Withdrawn);
            }
            Acquired::TimedOut => {
                pending.ended(EventKind::TimedOut);
                return Ok(AcquireOutcome::TimedOut {
                    blocked_by: Vec::new(),
                    retry_after: retry_after(Duration::ZERO),
                });
            }
            Acquired::AttemptMismatch => {
                pending.ended(EventKind::Refused);
                return Ok(AcquireOutcome::AttemptMismatch);
            }
            Acquired::Held(obstacle) => (obstacle, Some(WaiterLimit::PerProcess)),
            Acquired::QueueFull(obstacle) => (obstacle, Some(WaiterLimit::PerKey)),
            Acquired::Queued { obstacle, .. } => (obstacle, None),
        };
        let Obstacle {
            blocked_by,
            retry_at,
        } = obstacle;
        core.count(EventKind::Contended, pending.locks.first());
        let left = retry_at.remaining(now);
        match (limit, wait, permit) {
            (None, Some(timeout), Some(mut permit)) => {
                permit.keep_alarms(&pending.locks);
                core.node.set_alarms(&pending.locks, left);
                let deadline = sent + timeout;
                // Boxed to keep the future small, because most calls do not wait.
                Box::pin(pending.wait(permit, sent, deadline, blocked_by)).await
            }
            (limit, wait, _) => {
                let retry_after = retry_after(left);
                Ok(if wait.is_some() {
                    pending.ended(EventKind::TooManyWaiters);
                    AcquireOutcome::TooManyWaiters {
                        limit: limit.unwrap_or(WaiterLimit::PerProcess),
                        blocked_by,
                        retry_after,
                    }
                } else {
                    pending.ended(EventKind::Refused);
                    AcquireOutcome::Held {
                        blocked_by,
                        retry_after,
                    }
                })
            }
        }
    }

    /// Releases a lease by its owner's token, and by its fence if one is named.
    pub async fn release(&self, lease_ref: LeaseRef) -> Result<Result<Lease, NotHeld>, StoreError> {
        let (name, fence) = (lease_ref.name.clone(), lease_ref.fence);
        let answer = self.core.store.release(lease_ref).await;
        let answer = answer.inspect_err(|_| self.core.count(EventKind::ReleaseFailed, &name))?;
        if let Err(why) = &answer.outcome {
            self.core.count(EventKind::ReleaseRefused, &name);
            self.core.note_refusal(&name, fence, *why);
        }
        Ok(answer.outcome)
    }

    /// Lets the lease expire a full ttl from now.
    pub async fn extend(
        &self,
        lease_ref: LeaseRef,
        ttl: Ttl,
    ) -> Result<Result<Lease, NotHeld>, StoreError> {
        Ok(self.core.extend(lease_ref, ttl).await?.outcome)
    }

    /// Ends every lease on a key, in one step; only those with these fences if there are any.
    pub async fn force_release(
        &self,
        name: &LockName,
        fences: impl IntoIterator<Item = Fence> + Send,
    ) -> Result<Result<Vec<Lease>, NotHeld>, StoreError> {
        let answer = self.core.store.force_release(name, fences).await;
        let answer = answer.inspect_err(|_| self.core.count(EventKind::ReleaseFailed, name))?;
        Ok(answer.outcome)
    }

    /// Cancels an attempt whose outcome its caller does not know.
    pub async fn withdraw(
        &self,
        name: &LockName,
        owner: Owner,
        attempt: Attempt,
    ) -> Result<Withdrawn, StoreError> {
        let answer = self.core.store.withdraw(name, owner, attempt).await;
        let answer = answer.inspect_err(|_| self.core.count(EventKind::ReleaseFailed, name))?;
        Ok(answer.outcome)
    }

    /// The status of one key, and the store's time when it was read.
    pub async fn inspect(&self, name: &LockName) -> Result<(LockStatus, Timestamp), StoreError> {
        let answer = self.core.store.inspect(name).await?;
        Ok((answer.outcome, answer.now))
    }

    /// The state of one key as soon as its revision is not `since`; when `wait` is over, its state then.
    ///
    /// # Errors
    ///
    /// When the store fails, or the service shuts down.
    pub async fn watch(
        &self,
        name: &LockName,
        since: Option<Revision>,
        wait: Duration,
    ) -> Result<Observation, LockError> {
        self.watch_as(name, None, since, wait).await
    }

    /// Like [`watch`](Self::watch), for an owner that may not observe the leases of others. While it has no lease on the key, the
    /// revision is [`Revision::FREE`], and it waits for its own.
    ///
    /// # Errors
    ///
    /// When the store fails, or the service shuts down.
    pub async fn watch_own(
        &self,
        name: &LockName,
        owner: &Owner,
        since: Option<Revision>,
        wait: Duration,
    ) -> Result<Observation, LockError> {
        self.watch_as(name, Some(owner), since, wait).await
    }

    async fn watch_as(
        &self,
        name: &LockName,
        owner: Option<&Owner>,
        since: Option<Revision>,
        wait: Duration,
    ) -> Result<Observation, LockError> {
        let core = &self.core;
        if since.is_none() {
            let answer = core.store.inspect(name).await?;
            return Ok(Observation::new(answer).shown_to(owner));
        }
        let deadline = Instant::now() + wait;
        // Before the first read, so that no change after it is missed.
        let mut watcher = core.node.watches.join(name, &core.store);
        let mut seen = watcher.read().await?.shown_to(owner);
        while since == Some(seen.revision) {
            tokio::select! {
                biased;
                () = core.closed() => return Err(LockError::Closed),
                () = sleep_until(deadline) => return Ok(watcher.read().await?.shown_to(owner)),
                next = watcher.next() => seen = next.shown_to(owner),
            }
        }
        Ok(seen)
    }

    /// The first `limit` claims that wait for a lock, in their order, and the store's time when they were read.
    pub async fn queue(
        &self,
        name: &LockName,
        limit: usize,
    ) -> Result<(Vec<Waiter>, Timestamp), StoreError> {
        let answer = self.core.store.queue(name, limit).await?;
        Ok((answer.outcome, answer.now))
    }

    /// A page of the locks that are held.
    pub async fn list(&self, request: &ListRequest) -> Result<Page, ListError> {
        // Only locks: the names of calls begin otherwise.
        let prefix = if request.prefix.starts_with(LockName::PREFIX) {
            return self.core.store.list(request).await;
        } else if LockName::PREFIX.starts_with(&request.prefix) {
            LockName::PREFIX
        } else {
            ListRequest::NO_PREFIX
        };
        let request = ListRequest {
            prefix: prefix.to_owned(),
            ..request.clone()
        };
        self.core.store.list(&request).await
    }

    /// The store behind the service.
    pub fn store(&self) -> &Arc<dyn LockStore> {
        &self.core.store
    }

    /// How many calls wait in this process.
    pub fn waiting(&self) -> usize {
        self.core.waiting.load(Ordering::Relaxed)
    }

    /// How many keys are watched in this process.
    pub fn watched_keys(&self) -> usize {
        self.core.node.watches.count()
    }

    /// The number of events of each kind.
    pub fn stats(&self) -> &Stats {
        self.core.node.reporter.stats()
    }

    /// A stream of the events from now on.
    pub fn events(&self) -> Events {
        self.core.node.reporter.subscribe()
    }

    /// Ends all waits, and admits no new ones. Leases stay held.
    pub fn close(&self) {
        self.core.closed.send_replace(true);
    }

    /// Shuts the service down: leases whose release is still retried are rolled back by their tickets, and the store finishes its
    /// work in the background.
    pub async fn shut_down(&self) {
        self.close();
        for (ticket, name) in self.core.unreleased.take() {
            self.core.store.abandon(&name, ticket);
        }
        self.core.store.close().await;
    }
}

impl LocalNode {
    /// Sets the alarms of these keys for the end of a lease that blocks calls for them.
    fn set_alarms(&self, locks: &Locks, left: Duration) {
        let at = Instant::now() + left;
        for name in locks.names() {
            self.alarms.set(name, at);
        }
    }

    fn notify_watchers(&self, lease: &Lease) {
        for name in lease.locks.names() {
            self.watches.changed(name);
        }
    }

    fn report(&self, kind: EventKind, lease: &Lease, after: Option<Duration>) {
        self.reporter
            .report(kind, lease.name(), Some(lease.fence), after);
    }
}

impl Node for LocalNode {
    fn wake(&self, ticket: Ticket, wake: Wake, reading: Reading) -> bool {
        if let Wake::Granted(lease) = &wake {
            // For the claims behind it, even if the future of this call is never polled again.
            self.set_alarms(&lease.locks, lease.expires_at.remaining(reading.now));
        }
        self.waiters.wake(ticket, wake, reading)
    }

    fn changed(&self, transition: &Transition, now: Timestamp) {
        match transition {
            Transition::Granted {
                lease,
                waited_since,
                ..
            } => {
                self.notify_watchers(lease);
                if lease.fence >= Fence::WARN {
                    tracing::warn!(fence = %lease.fence, "fencing tokens are running out");
                }
                let waited = waited_since.map(|since| now.remaining(since));
                let kind = match waited {
                    Some(_) => EventKind::GrantedAfterWait,
                    None => EventKind::Acquired,
                };
                self.report(kind, lease, waited);
            }
            Transition::Extended { lease, .. } => {
                self.report(EventKind::Extended, lease, None);
                self.notify_watchers(lease);
                // It may end earlier now than the alarms expect.
                self.set_alarms(&lease.locks, lease.expires_at.remaining(now));
            }
            Transition::Ended { lease, cause, .. } => {
                let kind = match cause {
                    End::Released => EventKind::Released,
                    End::Forced => EventKind::Forced,
                    End::Expired => EventKind::Expired,
                    End::Abandoned | End::Unconfirmed => EventKind::Abandoned,
                };
                let end = now.min(lease.expires_at);
                self.report(kind, lease, Some(end.remaining(lease.acquired_at)));
                for name in lease.locks.names() {
                    self.held.ended(name, lease.fence);
                }
                self.notify_watchers(lease);
            }
            Transition::Confirmed { .. } | Transition::Woken { .. } => {}
        }
    }

    fn ended_elsewhere(&self, name: &LockName, fence: Fence) {
        self.held.ended(name, fence);
        self.watches.changed(name);
    }

    fn may_have_changed(&self, name: &LockName) {
        self.watches.changed(name);
    }

    fn changed_elsewhere(
        &self,
        name: &LockName,
        fence: Fence,
        expires_at: Timestamp,
        reading: Reading,
    ) {
        let left = expires_at.remaining(reading.now);
        // The ttl of the step is not known here; the remaining time is never longer.
        let term = Term::from_reading(expires_at, left, reading);
        self.held.extended(name, fence, &term);
        self.watches.changed(name);
        // It may end earlier now than the alarm expects.
        self.alarms.set(name, Instant::now() + left);
    }
}

impl CoreRef {
    /// A permit to wait; `None` if too many calls wait.
    fn wait_permit(&self, ticket: Ticket) -> Option<WaitPermit> {
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= self.config.max_waiters {
            self.return_wait_permit();
            return None;
        }
        Some(WaitPermit::new(self.clone(), ticket))
    }
}

impl Core {
    pub(crate) fn return_wait_permit(&self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) async fn closed(&self) {
        // The sender is in `self`, so it is not dropped meanwhile.
        let _ = self.closed.subscribe().wait_for(|closed| *closed).await;
    }

    /// Extends a lease, updates its guards, and reports failures.
    pub(crate) async fn extend(
        &self,
        lease_ref: LeaseRef,
        ttl: Ttl,
    ) -> Result<Answer<Result<Lease, NotHeld>>, StoreError> {
        let (name, fence) = (lease_ref.name.clone(), lease_ref.fence);
        let sent = Instant::now();
        let answer = self.store.extend(lease_ref, ttl).await;
        match &answer {
            Ok(Answer { outcome, now }) => match outcome {
                Ok(lease) => {
                    let ttl = ttl.as_duration();
                    let term = Term {
                        ends_at: sent + ttl,
                        lost_at: local_end(sent, ttl, ttl),
                        expires_at: lease.expires_at,
                        sent,
                        store_time: *now,
                    };
                    for name in lease.locks.names() {
                        self.node.held.extended(name, lease.fence, &term);
                    }
                }
                Err(why) => {
                    self.count(EventKind::ExtendRefused, &name);
                    self.note_refusal(&name, fence, *why);
                }
            },
            Err(_) => self.count(EventKind::ExtendFailed, &name),
        }
        answer
    }

    /// A refusal may show that a lease has ended: if it is named by its fence, and remembered as released.
    fn note_refusal(&self, name: &LockName, fence: Option<Fence>, why: NotHeld) {
        if let (Some(fence), NotHeld::AlreadyReleased { .. }) = (fence, why) {
            self.node.held.ended(name, fence);
        }
    }

    /// Reports an event without a lease.
    pub(crate) fn count(&self, kind: EventKind, name: &LockName) {
        self.node.reporter.report(kind, name, None, None);
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.expiry.abort();
    }
}

/// Leases with a shorter ttl may expire while the answer is under way; that is their caller's choice.
const MIN_CHECKED_TTL: Duration = Duration::from_millis(100);

/// Whether a lease was lost by the time that its grant arrived, so that nothing may begin under it.
///
/// The exception for short leases depends on the ttl, because the remaining time is also short if an attempt is repeated late.
pub(crate) fn is_expired_on_arrival(lost_at: Instant, ttl: Duration, answered: Instant) -> bool {
    ttl >= MIN_CHECKED_TTL && answered >= lost_at
}

/// A hint when to retry. Jitter takes off up to half, so that callers that are refused together do not retry together.
pub(crate) fn retry_after(left: Duration) -> Duration {
    let most = left.min(MAX_RETRY_AFTER).max(Duration::from_millis(1));
    let most = u64::try_from(most.as_millis()).unwrap_or(1);
    Duration::from_millis(fastrand::u64(most.div_ceil(2)..=most))
}

#[cfg(test)]
mod scripted;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod watching;
