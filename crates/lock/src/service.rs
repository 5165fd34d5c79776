//! Locks as a server uses them: waiting, limits, expiry and clean-up over any store.

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::alarm::AlarmClock;
use crate::event::{EventKind, Events, KeyStyle, Observer, Reporter, Stats};
use crate::expiry::Expiry;
use crate::held::HeldLeases;
use crate::model::{
    Acquire, Acquired, Claim, End, Held, NotHeld, Obstacle, Transition, Wait, Wake, Withdrawn,
};
use crate::node::Node;
use crate::pending::{Pending, WaitPermit};
use crate::store::{
    Answer, ListError, ListRequest, LockStatus, LockStore, LockStoreExt, Page, StoreError, Waiter,
};
use crate::tenure::{Term, local_end};
use crate::unreleased::Unreleased;
use crate::waiters::Waiters;
use crate::{
    Attempt, Caller, Fence, Lease, LeaseGuard, LockName, Locks, Note, Owner, Reading, Striped,
    Ticket, Timestamp, Ttl,
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
    threads: Arc<Striped<OfThread>>,
}

/// What the calls of one thread change. The references to the core that they have are counted here.
#[derive(Debug)]
struct OfThread {
    core: CoreRef,
    first_ticket: u128,
    tickets: AtomicU64,
}

impl OfThread {
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

/// What a call or a guard has of the core.
#[derive(Debug, Clone)]
pub(crate) struct CoreRef(Arc<Counted>);

/// On cache lines of its own, with its count.
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

/// What the service shares with its guards and pending calls.
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

/// What the store notifies: the waiting calls and the guards of this process, and its observer.
#[derive(Debug)]
pub(crate) struct LocalNode {
    pub(crate) waiters: Waiters,
    pub(crate) held: HeldLeases,
    pub(crate) clock: Arc<AlarmClock>,
    pub(crate) reporter: Arc<Reporter>,
}

/// What a caller asks for.
#[derive(Debug, Clone)]
pub struct AcquireRequest {
    /// Which keys, and how much of each.
    pub locks: Locks,
    /// Whose lease it becomes.
    pub owner: Owner,
    /// Who asks, where the server knows its callers.
    pub caller: Option<Caller>,
    /// What it is for, for people.
    pub note: Option<Note>,
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
    /// It cannot be had now, and the caller did not want to wait.
    Held {
        /// The keys in the way.
        blocked_by: Vec<LockName>,
        /// When asking again is worth it: with jitter, and not after the end of a lease in the way.
        retry_after: Duration,
    },
    /// It could not be had for as long as the caller wanted to wait.
    TimedOut {
        /// The keys in the way.
        blocked_by: Vec<LockName>,
        /// When asking again is worth it.
        retry_after: Duration,
    },
    /// It cannot be had now, and too many wait already.
    TooManyWaiters {
        /// Which of the two limits is reached.
        limit: WaiterLimit,
        /// The keys in the way.
        blocked_by: Vec<LockName>,
        /// When asking again is worth it.
        retry_after: Duration,
    },
    /// The attempt was withdrawn.
    Withdrawn,
    /// The attempt is known, with other keys or other kinds.
    AnotherAttempt,
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
    /// A service over `store`. Has to be called in a tokio runtime, where it starts one task that looks after expiry.
    pub fn new(store: Arc<dyn LockStore>, config: Config) -> Self {
        Self::start(store, config, None)
    }

    /// As [`new`](Self::new), with an observer of everything that happens.
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
            clock: Arc::new(AlarmClock::default()),
            reporter,
        });
        let weak: Weak<LocalNode> = Arc::downgrade(&node);
        store.subscribe(weak);
        let expiry = Expiry {
            store: store.clone(),
            clock: node.clock.clone(),
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
        let threads = Striped::from_fn(|| OfThread::new(core.clone()));
        Self {
            core,
            threads: Arc::new(threads),
        }
    }

    /// Takes the lock, at once or after waiting in arrival order.
    ///
    /// Dropping the future leaves the queue at once, and returns the lock if it had just been granted.
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
                again: None,
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
        // Without a limit, it waits from now on.
        let (obstacle, limit) = match outcome {
            Acquired::Granted(lease) => {
                let answered = Instant::now();
                // Not the ttl: a repeated attempt gets a lease of which some time is gone.
                let left = lease.expires_at.remaining(now);
                let until = local_end(sent, left, ttl.as_duration());
                if came_too_late(until, ttl.as_duration(), answered) {
                    return Err(pending.came_too_late());
                }
                let term = Term {
                    ends: sent + left,
                    until,
                    expires_at: lease.expires_at,
                    sent,
                    read: now,
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
            Acquired::AnotherAttempt => {
                pending.ended(EventKind::Refused);
                return Ok(AcquireOutcome::AnotherAttempt);
            }
            Acquired::Held(obstacle) => (obstacle, Some(WaiterLimit::OfProcess)),
            Acquired::QueueFull(obstacle) => (obstacle, Some(WaiterLimit::OfLock)),
            Acquired::Queued { obstacle, .. } => (obstacle, None),
        };
        let Obstacle {
            blocked_by,
            look_at,
        } = obstacle;
        core.count(EventKind::Contended, pending.locks.first());
        let left = look_at.remaining(now);
        match (limit, wait, permit) {
            (None, Some(timeout), Some(mut permit)) => {
                permit.join_clock(&pending.locks);
                core.node.set_alarms(&pending.locks, left);
                let deadline = sent + timeout;
                // Boxed, since most calls do not come here.
                Box::pin(pending.wait(permit, sent, deadline, blocked_by)).await
            }
            (limit, wait, _) => {
                let retry_after = retry_after(left);
                Ok(if wait.is_some() {
                    pending.ended(EventKind::TooManyWaiters);
                    AcquireOutcome::TooManyWaiters {
                        limit: limit.unwrap_or(WaiterLimit::OfProcess),
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

    /// Gives back a lease by its owner's token, and by its fence where one is named.
    pub async fn release(&self, held: Held) -> Result<Result<Lease, NotHeld>, StoreError> {
        let (name, fence) = (held.name.clone(), held.fence);
        let answer = self.core.store.release(held).await;
        let answer = answer.inspect_err(|_| self.core.count(EventKind::ReleaseFailed, &name))?;
        if let Err(why) = &answer.outcome {
            self.core.count(EventKind::ReleaseRefused, &name);
            self.core.refused(&name, fence, *why);
        }
        Ok(answer.outcome)
    }

    /// Lets the lease end a full ttl from now.
    pub async fn extend(&self, held: Held, ttl: Ttl) -> Result<Result<Lease, NotHeld>, StoreError> {
        Ok(self.core.extend(held, ttl).await?.outcome)
    }

    /// Ends every lease on a key, in one step; only those of some fences where any is named.
    pub async fn force_release(
        &self,
        name: &LockName,
        fences: impl IntoIterator<Item = Fence> + Send,
    ) -> Result<Result<Vec<Lease>, NotHeld>, StoreError> {
        let answer = self.core.store.force_release(name, fences).await;
        let answer = answer.inspect_err(|_| self.core.count(EventKind::ReleaseFailed, name))?;
        Ok(answer.outcome)
    }

    /// Takes back an attempt whose outcome its caller does not know.
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

    /// The state of one key, and the store's time of it.
    pub async fn inspect(&self, name: &LockName) -> Result<(LockStatus, Timestamp), StoreError> {
        let answer = self.core.store.inspect(name).await?;
        Ok((answer.outcome, answer.now))
    }

    /// The claims that wait for a lock, the next one first, and the store's time of it.
    pub async fn queue(
        &self,
        name: &LockName,
        limit: usize,
    ) -> Result<(Vec<Waiter>, Timestamp), StoreError> {
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
        self.core.node.reporter.stats()
    }

    /// What happens from now on.
    pub fn events(&self) -> Events {
        self.core.node.reporter.subscribe()
    }

    /// Ends all waits, and begins no new one. Leases that are held stay held.
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

impl LocalNode {
    /// Rings when a lease that is in the way of calls for these keys has ended.
    fn set_alarms(&self, locks: &Locks, left: Duration) {
        let at = Instant::now() + left;
        for name in locks.names() {
            self.clock.set(name, at);
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
            // For the claims behind it, even if its own future is never polled again.
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
                // It may end earlier now than the waiting calls expect.
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
            }
            Transition::Confirmed { .. } | Transition::Woken { .. } => {}
        }
    }

    fn ended_elsewhere(&self, name: &LockName, fence: Fence) {
        self.held.ended(name, fence);
    }

    fn changed_elsewhere(
        &self,
        name: &LockName,
        fence: Fence,
        expires_at: Timestamp,
        reading: Reading,
    ) {
        let left = expires_at.remaining(reading.now);
        // With which ttl the step was made is not known here: what is left of it at that moment is no more.
        let term = Term::read(expires_at, left, reading);
        self.held.extended(name, fence, &term);
        // It may end earlier now than the waiting calls expect.
        self.clock.set(name, Instant::now() + left);
    }
}

impl CoreRef {
    /// A permit to wait; none when too many wait.
    fn wait_permit(&self, ticket: Ticket) -> Option<WaitPermit> {
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= self.config.max_waiters {
            self.give_back_wait_permit();
            return None;
        }
        Some(WaitPermit::new(self.clone(), ticket))
    }
}

impl Core {
    pub(crate) fn give_back_wait_permit(&self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) async fn closed(&self) {
        // The sender lives in `self`, so it cannot be gone.
        let _ = self.closed.subscribe().wait_for(|closed| *closed).await;
    }

    /// Extends a lease, and reports how that went.
    pub(crate) async fn extend(
        &self,
        held: Held,
        ttl: Ttl,
    ) -> Result<Answer<Result<Lease, NotHeld>>, StoreError> {
        let (name, fence) = (held.name.clone(), held.fence);
        let sent = Instant::now();
        let answer = self.store.extend(held, ttl).await;
        match &answer {
            Ok(Answer { outcome, now }) => match outcome {
                Ok(lease) => {
                    let ttl = ttl.as_duration();
                    let term = Term {
                        ends: sent + ttl,
                        until: local_end(sent, ttl, ttl),
                        expires_at: lease.expires_at,
                        sent,
                        read: *now,
                    };
                    for name in lease.locks.names() {
                        self.node.held.extended(name, lease.fence, &term);
                    }
                }
                Err(why) => {
                    self.count(EventKind::ExtendRefused, &name);
                    self.refused(&name, fence, *why);
                }
            },
            Err(_) => self.count(EventKind::ExtendFailed, &name),
        }
        answer
    }

    /// A lease that is named by its fence and remembered as released is over for certain.
    fn refused(&self, name: &LockName, fence: Option<Fence>, why: NotHeld) {
        if let (Some(fence), NotHeld::AlreadyReleased { .. }) = (fence, why) {
            self.node.held.ended(name, fence);
        }
    }

    /// What happened without a lease.
    pub(crate) fn count(&self, kind: EventKind, name: &LockName) {
        self.node.reporter.report(kind, name, None, None);
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
pub(crate) fn came_too_late(until: Instant, ttl: Duration, answered: Instant) -> bool {
    ttl >= PROMPT && answered >= until
}

/// A hint for the next try, from half of it to all of it at random, so that those refused together do not
/// come back together.
pub(crate) fn retry_after(left: Duration) -> Duration {
    let most = left.min(MAX_RETRY_AFTER).max(Duration::from_millis(1));
    let most = u64::try_from(most.as_millis()).unwrap_or(1);
    Duration::from_millis(fastrand::u64(most.div_ceil(2)..=most))
}

#[cfg(test)]
mod scripted;
#[cfg(test)]
mod tests;
