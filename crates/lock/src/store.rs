//! The contract between [`LockService`](crate::LockService) and a store of locks.
//!
//! A store only executes atomic steps of the model. Everything that waits, retries or watches is in the service.

use std::error::Error;
use std::fmt;
use std::sync::Weak;

use async_trait::async_trait;

use crate::model::{
    Abandoned, Acquire, Acquired, Command, Key, LeaseRef, NotHeld, Outcome, Settled, Waiting,
    Withdrawn,
};
use crate::{
    Attempt, Caller, Fence, Kind, Lease, LockName, Node, Note, Owner, ReleaseMemory, Secret, Share,
    Ticket, Timestamp, Ttl,
};

/// A store of locks: each call is one atomic step.
///
/// A store executes the model of [`crate::model`], with calls that may fail. It does not wait, time out, renew or retry:
/// [`LockService`](crate::LockService) does that for every store. Typed calls are in [`LockStoreExt`]. The following sections
/// are the contract; [`crate::contract`] tests it.
///
/// # Atomicity
///
/// Each command is one [`step`](crate::model::step). Steps on a key are serialised across all processes that share the store,
/// and a step on several keys is never visible in part.
///
/// # Time
///
/// Only the store's clock decides which leases are live. It is read inside the atomic step, not before it, and never runs
/// backwards. [`Answer::now`] is that reading.
///
/// # Fences
///
/// A fence is minted in the same atomic step as the grant. The fences of a key grow strictly, even after expiry and, in a
/// durable store, across restarts.
///
/// # Waiting
///
/// A claim keeps its position until it is granted, its last call times out, or its last call is abandoned. The step that frees
/// its keys grants it, and the store [wakes](Node::wake) its calls. If none of them waits any more, the store ends the lease and
/// continues with the next claim. A durable store need not persist its queues: after a restart, their callers have lost the
/// connection.
///
/// A store has no timers for leases: the service sends [`Command::Settle`] when a lease that blocks claims is due, and at no other
/// time. A store whose processes notify each other recovers from lost messages by itself, for all keys together: a call that
/// waits has its grant, or its position back, within seconds after the store can be reached.
///
/// # Notifications
///
/// The changes of a step are reported to the [`Node`] that made it, before the command is answered.
///
/// When a step of another node has [ended](Node::ended_elsewhere) or [changed](Node::changed_elsewhere) a lease, a shared store
/// also notifies the node through which the lease was granted, so that its guard is lost at once and not at its local deadline.
///
/// # Errors
///
/// A lock that is held is an outcome, not an error. A [`StoreError`] means that the store has failed, and says whether the step
/// may have been executed. If it may have been, the caller [abandons](LockStore::abandon) its ticket.
#[async_trait]
pub trait LockStore: fmt::Debug + Send + Sync + 'static {
    /// The optional features of this store.
    fn capabilities(&self) -> Capabilities;

    /// The secret for hashes of keys and owners: random, the same for all processes that share the store, and as durable as its
    /// locks.
    fn secret(&self) -> Secret;

    /// Adds a node to notify of changes, until it is dropped.
    fn subscribe(&self, node: Weak<dyn Node>);

    /// Executes one step.
    async fn submit(&self, command: Command) -> Result<Answer<Outcome>, StoreError>;

    /// Executes one step if that needs neither waiting nor I/O; otherwise does nothing and returns `None`.
    fn submit_now(&self, command: &Command) -> Option<Answer<Outcome>> {
        let _ = command;
        None
    }

    /// Rolls back a call whose caller is gone: it leaves the queue, or its lease ends.
    ///
    /// Called from `drop`, so it neither waits nor fails. A store that needs a round trip retries it in the background until it
    /// succeeds or the lease has ended.
    fn abandon(&self, name: &LockName, ticket: Ticket);

    /// Inspects one lock without changing it. Expired leases are not shown.
    async fn inspect(&self, name: &LockName) -> Result<Answer<LockStatus>, StoreError>;

    /// Begins to report changes of a key by other processes to [`Node::may_have_changed`], until the returned value is dropped.
    ///
    /// Changes by this process are reported to [`Node::changed`] anyway, so a store that is not shared does nothing. Reports may be
    /// late, merged or unfounded. `None` if the store cannot report changes: then a watched key is polled.
    fn watch(&self, name: &LockName) -> Option<Box<dyn KeyWatch>> {
        let _ = name;
        None
    }

    /// The first `limit` claims that wait for a lock, in their order.
    async fn queue(&self, name: &LockName, limit: usize)
    -> Result<Answer<Vec<Waiter>>, StoreError>;

    /// A page of the locks that are held. A lock that is held during the whole listing is on exactly one page; the order depends
    /// on the store.
    async fn list(&self, request: &ListRequest) -> Result<Page, ListError>;

    /// Ends up to `limit` expired leases, grants their locks to waiting claims, and returns how many there were.
    ///
    /// The service calls it about once a second, for keys without alarms. A store whose entries expire by themselves does nothing.
    async fn sweep(&self, limit: usize) -> Result<usize, StoreError>;

    /// Whether the store works, including writes: one round trip, without waiting for a disk.
    async fn health(&self) -> Result<(), StoreError>;

    /// Finishes work in the background, such as rollbacks. Called at shutdown, after the last command; returns soon even if the
    /// work cannot be finished.
    async fn close(&self) {}

    /// The numbers of keys and leases, for metrics, without [calls](LockName::call). A lease that has just expired may still be
    /// counted.
    ///
    /// The default lists all locks; a store that keeps counts overrides it.
    async fn counts(&self) -> Result<Counts, StoreError> {
        let mut request = ListRequest {
            prefix: LockName::PREFIX.to_owned(),
            limit: 1000,
            ..ListRequest::default()
        };
        let mut keys = 0;
        loop {
            let page = match self.list(&request).await {
                Ok(page) => page,
                Err(ListError::Store(error)) => return Err(error),
                // The cursor is the store's own, so there is nothing more to list.
                Err(ListError::BadCursor) => return Ok(Counts::exclusive(keys)),
            };
            keys += page.locks.len();
            match page.cursor {
                Some(cursor) => request.cursor = Some(cursor),
                None => return Ok(Counts::exclusive(keys)),
            }
        }
    }
}

/// A key that is watched in a store, until this is dropped.
pub trait KeyWatch: fmt::Debug + Send + Sync {
    /// Whether changes are reported at the moment. If not, the key has to be polled. When it becomes live, the key is reported as
    /// changed, because it may have been.
    fn is_live(&self) -> bool;

    /// A change was found that has not been reported: whatever stopped the reports, they have to begin again.
    fn renew(&self);
}

/// The numbers of keys and leases in a store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Keys that are held.
    pub keys: usize,
    /// Leases: more than keys if locks are shared, fewer if leases have several keys.
    pub leases: usize,
    /// Free keys that cannot be granted, because the first claim in their queue waits for another key.
    pub reserved: usize,
}

impl Counts {
    /// The counts of a store that only has exclusive locks of one key.
    pub const fn exclusive(keys: usize) -> Self {
        Self {
            keys,
            leases: keys,
            reserved: 0,
        }
    }
}

impl std::ops::Add for Counts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            keys: self.keys + other.keys,
            leases: self.leases + other.leases,
            reserved: self.reserved + other.reserved,
        }
    }
}

/// [`LockStore::submit`], one method for each command.
pub trait LockStoreExt: LockStore {
    /// Executes a command, without waiting if the store can.
    fn step(
        &self,
        command: Command,
    ) -> impl Future<Output = Result<Answer<Outcome>, StoreError>> + Send {
        async move {
            match self.submit_now(&command) {
                Some(answer) => Ok(answer),
                None => self.submit(command).await,
            }
        }
    }

    /// [`Command::Acquire`].
    fn acquire(
        &self,
        acquire: Acquire,
    ) -> impl Future<Output = Result<Answer<Acquired>, StoreError>> + Send {
        async move {
            let answer = self.step(Command::Acquire(acquire)).await?;
            answer.expect(|outcome| match outcome {
                Outcome::Acquired(acquired) => Some(acquired),
                _ => None,
            })
        }
    }

    /// [`Command::Release`].
    fn release(
        &self,
        lease_ref: LeaseRef,
    ) -> impl Future<Output = Result<Answer<Result<Lease, NotHeld>>, StoreError>> + Send {
        async move { self.step(Command::Release(lease_ref)).await?.lease() }
    }

    /// [`Command::Extend`].
    fn extend(
        &self,
        lease_ref: LeaseRef,
        ttl: Ttl,
    ) -> impl Future<Output = Result<Answer<Result<Lease, NotHeld>>, StoreError>> + Send {
        async move { self.step(Command::Extend(lease_ref, ttl)).await?.lease() }
    }

    /// [`Command::ForceRelease`].
    fn force_release(
        &self,
        name: &LockName,
        fences: impl IntoIterator<Item = Fence> + Send,
    ) -> impl Future<Output = Result<Answer<Result<Vec<Lease>, NotHeld>>, StoreError>> + Send {
        async move {
            let (name, fences) = (name.clone(), fences.into_iter().collect());
            let answer = self.step(Command::ForceRelease { name, fences }).await?;
            answer.expect(|outcome| match outcome {
                Outcome::Forced(forced) => Some(forced),
                _ => None,
            })
        }
    }

    /// [`Command::Withdraw`].
    fn withdraw(
        &self,
        name: &LockName,
        owner: Owner,
        attempt: Attempt,
    ) -> impl Future<Output = Result<Answer<Withdrawn>, StoreError>> + Send {
        async move {
            let command = Command::Withdraw {
                name: name.clone(),
                owner,
                attempt,
            };
            self.step(command).await?.expect(|outcome| match outcome {
                Outcome::Withdrawn(withdrawn) => Some(withdrawn),
                _ => None,
            })
        }
    }

    /// [`Command::Abandon`]. Unlike [`LockStore::abandon`], it waits for the answer.
    fn leave(
        &self,
        name: &LockName,
        ticket: Ticket,
    ) -> impl Future<Output = Result<Answer<Abandoned>, StoreError>> + Send {
        async move {
            let name = name.clone();
            let answer = self.step(Command::Abandon { name, ticket }).await?;
            answer.expect(|outcome| match outcome {
                Outcome::Abandoned(abandoned) => Some(abandoned),
                _ => None,
            })
        }
    }

    /// [`Command::Settle`].
    fn settle(
        &self,
        name: &LockName,
    ) -> impl Future<Output = Result<Answer<Settled>, StoreError>> + Send {
        async move {
            let answer = self.step(Command::Settle(name.clone())).await?;
            answer.expect(|outcome| match outcome {
                Outcome::Settled(settled) => Some(settled),
                _ => None,
            })
        }
    }
}

impl<S: LockStore + ?Sized> LockStoreExt for S {}

/// An answer of a store, with the time of its step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer<T> {
    /// The outcome.
    pub outcome: T,
    /// The store's time of the step.
    pub now: Timestamp,
}

impl Answer<Outcome> {
    fn lease(self) -> Result<Answer<Result<Lease, NotHeld>>, StoreError> {
        self.expect(|outcome| match outcome {
            Outcome::Lease(lease) => Some(lease),
            _ => None,
        })
    }

    fn expect<T>(self, take: impl FnOnce(Outcome) -> Option<T>) -> Result<Answer<T>, StoreError> {
        let Self { outcome, now } = self;
        match take(outcome) {
            Some(outcome) => Ok(Answer { outcome, now }),
            None => Err(StoreError::MaybeDone(
                "the store answered a different command".into(),
            )),
        }
    }
}

/// The optional features of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// Leases and fences survive the end of the process.
    pub durable: bool,
    /// Several processes can use it at once and see the same locks.
    pub shared: bool,
    /// A release in another process wakes a waiting call in this one.
    pub notifies: bool,
    /// How long it remembers a release.
    pub release_memory: ReleaseMemory,
}

/// The public state of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockStatus {
    /// The key.
    pub name: LockName,
    /// The kind of its leases; `None` if it is free.
    pub kind: Option<Kind>,
    /// The live leases, the smallest fence first; at most [`MAX_HOLDERS`](Self::MAX_HOLDERS).
    pub holders: Vec<Lease>,
    /// How many live leases there are.
    pub holder_count: usize,
    /// The largest fence of a live lease, which may not be among those of `holders`.
    pub last_fence: Option<Fence>,
    /// How many claims wait.
    pub waiters: usize,
}

impl LockStatus {
    /// The most leases that are shown.
    pub const MAX_HOLDERS: usize = 100;

    /// The status of a key at the time `now`.
    pub fn new(key: &Key, now: Timestamp) -> Self {
        let leases = key.holders().map(|holder| &holder.lease);
        let live = leases.filter(|lease| lease.is_live(now));
        let holders: Vec<Lease> = live.take(Self::MAX_HOLDERS).cloned().collect();
        let holder_count = key.live_count(now);
        let last_fence = if holder_count > holders.len() {
            let live = key.holders().filter(|holder| holder.lease.is_live(now));
            live.map(|holder| holder.lease.fence).max()
        } else {
            holders.last().map(|lease| lease.fence)
        };
        Self {
            name: key.name().clone(),
            kind: holders
                .first()
                .and_then(|lease| lease.locks.share_of(key.name()))
                .map(Share::kind),
            holders,
            holder_count,
            last_fence,
            waiters: key.queue().len(),
        }
    }

    /// How many more leases a limit admits; `None` for other kinds and for a free key.
    pub fn available(&self) -> Option<u32> {
        match self.kind? {
            Kind::Limit(limit) => {
                let count = u32::try_from(self.holder_count).unwrap_or(u32::MAX);
                Some(limit.saturating_sub(count))
            }
            Kind::Exclusive | Kind::Shared => None,
        }
    }

    /// Whether a lease of this owner is among [`holders`](Self::holders).
    pub fn shows(&self, owner: &Owner) -> bool {
        self.holders.iter().any(|lease| lease.owner == *owner)
    }

    /// The lease with the smallest fence: the one to show where only one is shown.
    pub fn holder(&self) -> Option<&Lease> {
        self.holders.first()
    }
}

/// A claim that waits for a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiter {
    /// The owner of the lease that it waits for.
    pub owner: Owner,
    /// The authenticated caller, if the server knows it.
    pub caller: Option<Caller>,
    /// What the lease is for, for people.
    pub note: Option<Note>,
    /// When it began to wait.
    pub since: Timestamp,
    /// When the last of its calls times out.
    pub until: Timestamp,
}

impl From<&Waiting> for Waiter {
    fn from(waiting: &Waiting) -> Self {
        Self {
            owner: waiting.claim.owner.clone(),
            caller: waiting.claim.caller.clone(),
            note: waiting.claim.note.clone(),
            since: waiting.since,
            until: waiting.until(),
        }
    }
}

/// Which locks to list.
#[derive(Debug, Clone, Default)]
pub struct ListRequest {
    /// Only names that start with this; all if empty.
    pub prefix: String,
    /// The most locks on the page. Zero counts as one.
    pub limit: usize,
    /// The cursor of the previous page.
    pub cursor: Option<String>,
}

impl ListRequest {
    /// A prefix that no name has.
    pub const NO_PREFIX: &'static str = "-";

    /// The cursor as a name, for a store whose cursors are the last names of pages.
    ///
    /// # Errors
    ///
    /// If the cursor is not the name of a lock.
    pub fn after(&self) -> Result<Option<LockName>, ListError> {
        let cursor = self.cursor.as_deref().map(LockName::parse);
        cursor.transpose().map_err(|_| ListError::BadCursor)
    }
}

/// A page of the locks that are held.
#[derive(Debug)]
pub struct Page {
    /// The locks, in an order that depends on the store.
    pub locks: Vec<LockStatus>,
    /// The store's time when it read them.
    pub now: Timestamp,
    /// The cursor of the next page; `None` if this is the last.
    pub cursor: Option<String>,
}

impl Page {
    /// The first `limit` of these locks, with the last name as the cursor if there are more.
    pub fn cut(mut locks: Vec<LockStatus>, limit: usize, now: Timestamp) -> Self {
        let limit = limit.max(1);
        let has_more = locks.len() > limit;
        locks.truncate(limit);
        let last = locks.last().filter(|_| has_more);
        let cursor = last.map(|last| last.name.to_string());
        Self { locks, now, cursor }
    }
}

/// Why a page could not be listed.
#[derive(Debug, thiserror::Error)]
pub enum ListError {
    /// The cursor is not one that this store returned.
    #[error("the cursor is not one that this server gave out")]
    BadCursor,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A failure of the store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Nothing was changed.
    #[error("the lock store is unavailable: {0}")]
    NotDone(#[source] Box<dyn Error + Send + Sync>),
    /// This store does not support the operation, and did nothing.
    #[error("this lock store cannot do that: {0}")]
    Unsupported(&'static str),
    /// The change may have been made: the answer was lost, or arrived too late.
    #[error("the lock store did not answer: {0}")]
    MaybeDone(#[source] Box<dyn Error + Send + Sync>),
}

impl StoreError {
    /// The same error for another call that waited for the same answer.
    pub(crate) fn shared(&self) -> Self {
        match self {
            Self::NotDone(why) => Self::NotDone(why.to_string().into()),
            Self::Unsupported(why) => Self::Unsupported(why),
            Self::MaybeDone(why) => Self::MaybeDone(why.to_string().into()),
        }
    }
}
