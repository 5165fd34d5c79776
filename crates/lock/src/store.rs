//! Where locks live: the contract between [`LockService`](crate::LockService) and a store.

use std::error::Error;
use std::fmt;
use std::sync::Weak;

use async_trait::async_trait;

use crate::model::{
    Abandoned, Acquire, Acquired, Command, Held, Key, NotHeld, Outcome, Settled, Waiting, Withdrawn,
};
use crate::{
    Attempt, Caller, Fence, Kind, Lease, LockName, Node, Note, Owner, ReleaseMemory, Secret, Share,
    Ticket, Timestamp, Ttl,
};

/// A place where locks are kept: one atomic step per call.
///
/// A store is the model of [`crate::model`] behind calls that may fail. It does not wait, time out, renew or retry: that is
/// [`LockService`](crate::LockService)'s part, written once. Typed calls are in [`LockStoreExt`]. What follows is the
/// contract; [`crate::contract`] tests it.
///
/// # Atomicity
///
/// Each command is one [`step`](crate::model::step), and no two steps on a key overlap, over all processes that share the
/// store. A step on several keys is one act: nobody sees a part of it.
///
/// # Time
///
/// The store's clock alone decides what is live. It is read inside the atomic step, not before it, and never runs
/// backwards. [`Answer::now`] is that reading.
///
/// # Fences
///
/// A fence is minted in the same atomic step as the grant. For any one key fences grow strictly, also after
/// expiry and, in a durable store, across restarts.
///
/// # Waiting
///
/// A claim that waits keeps its position until it is granted, its time is over, or its last call is abandoned. The step that frees
/// its keys grants it, and the store [wakes](Node::wake) its calls; if none of them is there any more, the store takes the
/// lease back and goes on with the next claim. A durable store need not keep its waiters: their callers saw the connection break.
///
/// A store has no timers for leases: the service sends [`Command::Settle`] when one that claims wait for is due, and at no other
/// time. A store whose processes notify each other makes up for lost messages by itself, for all keys together: a call that
/// waits has its grant, or its position back, within some seconds after the store can be reached, whatever was lost.
///
/// # Notifications
///
/// Whatever a step changes is reported to the [`Node`] that made it, before the command is answered.
///
/// A shared store also notifies the node through which a lease was granted when a step of another node has
/// [ended](Node::ended_elsewhere) or [changed](Node::changed_elsewhere) it, so that its guard is lost at once and not when its
/// own clock says so.
///
/// # Errors
///
/// That a lock is held is an outcome. A [`StoreError`] means that the store could not do its work, and says whether
/// the step may have happened all the same. After one that may have, the caller [abandons](LockStore::abandon) its ticket.
#[async_trait]
pub trait LockStore: fmt::Debug + Send + Sync + 'static {
    /// What this store can and cannot do.
    fn capabilities(&self) -> Capabilities;

    /// What the hashes of its keys and owners are made with: random, the same for all processes that share the store, and as
    /// durable as its locks.
    fn secret(&self) -> Secret;

    /// From now on `node` is notified of what concerns it, as long as it lives.
    fn subscribe(&self, node: Weak<dyn Node>);

    /// One step.
    async fn submit(&self, command: Command) -> Result<Answer<Outcome>, StoreError>;

    /// The same step if it takes neither waiting nor I/O; `None`, and nothing is done, if it does.
    fn submit_now(&self, command: &Command) -> Option<Answer<Outcome>> {
        let _ = command;
        None
    }

    /// Rolls back a call that nobody waits for any more: it leaves the queue, or returns the lock it was just given.
    ///
    /// Called from `drop`, so it neither waits nor fails. A store that needs a round trip for it does it in the
    /// background until it is done or the lease has ended.
    fn abandon(&self, name: &LockName, ticket: Ticket);

    /// Inspects one lock without changing anything. A lease that has run out is not shown.
    async fn inspect(&self, name: &LockName) -> Result<Answer<LockStatus>, StoreError>;

    /// The claims that wait for a lock, the next one first; at most `limit` of them.
    async fn queue(&self, name: &LockName, limit: usize)
    -> Result<Answer<Vec<Waiter>>, StoreError>;

    /// The locks that are held, page by page. A lock that is held during the whole listing is on exactly one page;
    /// the order is the store's own.
    async fn list(&self, request: &ListRequest) -> Result<Page, ListError>;

    /// Ends up to `limit` leases that have run out, hands their locks on, and says how many there were.
    ///
    /// The service calls it about once a second, for the leases that nobody asks about. A store whose entries vanish
    /// by themselves has nothing to do.
    async fn sweep(&self, limit: usize) -> Result<usize, StoreError>;

    /// Whether the store does its work, writing included: one round trip, and nothing that waits for a disk.
    async fn health(&self) -> Result<(), StoreError>;

    /// Sends a message to every process that uses the store, this one included: see [`Node::message`]. It may get lost.
    async fn broadcast(&self, message: &[u8]) -> Result<(), StoreError> {
        let _ = message;
        Err(StoreError::Unsupported(
            "it does not pass messages between processes",
        ))
    }

    /// Finishes what it does in the background, such as rolling back calls. Called at the end, when nobody asks
    /// for anything any more; returns soon even if it cannot.
    async fn close(&self) {}

    /// How much there is, for metrics. A lease that ran out a moment ago may still be counted.
    ///
    /// A store that can tell without visiting each lock does so.
    async fn counts(&self) -> Result<Counts, StoreError> {
        let mut request = ListRequest {
            limit: 1000,
            ..ListRequest::default()
        };
        let mut keys = 0;
        loop {
            let page = match self.list(&request).await {
                Ok(page) => page,
                Err(ListError::Store(error)) => return Err(error),
                // The store's own cursor: there is nothing more that it can list.
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

/// How much is in a store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Keys that are held.
    pub keys: usize,
    /// Leases that hold them: more where they are shared, fewer where they are sets.
    pub leases: usize,
    /// Free keys that nobody gets, because the first in their queue still waits for another key.
    pub reserved: usize,
}

impl Counts {
    /// Of a store that has only exclusive locks of one key.
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
    /// Submits a command, at once if the store can do that.
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
        held: Held,
    ) -> impl Future<Output = Result<Answer<Result<Lease, NotHeld>>, StoreError>> + Send {
        async move { self.step(Command::Release(held)).await?.lease() }
    }

    /// [`Command::Extend`].
    fn extend(
        &self,
        held: Held,
        ttl: Ttl,
    ) -> impl Future<Output = Result<Answer<Result<Lease, NotHeld>>, StoreError>> + Send {
        async move { self.step(Command::Extend(held, ttl)).await?.lease() }
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

    /// [`Command::Abandon`], with its answer.
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

/// What a store answers, with the reading of its clock.
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
                "the store has answered another command".into(),
            )),
        }
    }
}

/// What a store can and cannot do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// Leases and fences survive the end of the process.
    pub durable: bool,
    /// Several processes can use it at once and see the same locks.
    pub shared: bool,
    /// A release in another process wakes a waiter in this one.
    pub notifies: bool,
    /// How long it remembers a release.
    pub release_memory: ReleaseMemory,
}

/// A key, as far as others may know of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockStatus {
    /// The key.
    pub name: LockName,
    /// How it is held; none when it is free.
    pub kind: Option<Kind>,
    /// The live leases, the smallest fence first; at most [`MAX_HOLDERS`](Self::MAX_HOLDERS).
    pub holders: Vec<Lease>,
    /// How many live leases there are.
    pub holder_count: usize,
    /// How many claims wait.
    pub waiters: usize,
}

impl LockStatus {
    /// How many leases are shown.
    pub const MAX_HOLDERS: usize = 100;

    /// What a key shows at the time `now`.
    pub fn of(key: &Key, now: Timestamp) -> Self {
        let leases = key.holders().map(|holder| &holder.lease);
        let live = leases.filter(|lease| lease.is_live(now));
        let holders: Vec<Lease> = live.take(Self::MAX_HOLDERS).cloned().collect();
        let holder_count = key.live_count(now);
        Self {
            name: key.name().clone(),
            kind: holders
                .first()
                .and_then(|lease| lease.locks.share_of(key.name()))
                .map(Share::kind),
            holders,
            holder_count,
            waiters: key.queue().len(),
        }
    }

    /// How many more leases of the present kind there is room for, where that is limited.
    pub fn available(&self) -> Option<u32> {
        match self.kind? {
            Kind::Limit(limit) => {
                let count = u32::try_from(self.holder_count).unwrap_or(u32::MAX);
                Some(limit.saturating_sub(count))
            }
            Kind::Exclusive | Kind::Shared => None,
        }
    }

    /// The lease that counts as the holder: that of the smallest fence.
    pub fn holder(&self) -> Option<&Lease> {
        self.holders.first()
    }
}

/// A claim that waits for a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiter {
    /// Whose lease it would become.
    pub owner: Owner,
    /// Who asked, where the server knows its callers.
    pub caller: Option<Caller>,
    /// What it is for, for people.
    pub note: Option<Note>,
    /// Since when.
    pub since: Timestamp,
    /// When the last of its calls gives up.
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
    /// Only names that start with this; all when empty.
    pub prefix: String,
    /// At most so many; at least one is returned if there is any.
    pub limit: usize,
    /// Where the page before ended.
    pub cursor: Option<String>,
}

impl ListRequest {
    /// The cursor of a store that uses the last name of a page as one.
    ///
    /// # Errors
    ///
    /// When the cursor is no name of a lock.
    pub fn after(&self) -> Result<Option<LockName>, ListError> {
        let cursor = self.cursor.as_deref().map(LockName::parse);
        cursor.transpose().map_err(|_| ListError::BadCursor)
    }
}

/// Some of the locks that are held.
#[derive(Debug)]
pub struct Page {
    /// The locks, in the store's own order.
    pub locks: Vec<LockStatus>,
    /// The store's time of the look.
    pub now: Timestamp,
    /// What to send for the next page; none when this is the last.
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

/// Why a page could not be had.
#[derive(Debug, thiserror::Error)]
pub enum ListError {
    /// The cursor is none that this store gave out.
    #[error("the cursor is not one that this server gave out")]
    BadCursor,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A store that could not do its work.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Nothing was changed.
    #[error("the lock store is unavailable: {0}")]
    NotDone(#[source] Box<dyn Error + Send + Sync>),
    /// This store cannot do what was asked, and did nothing.
    #[error("this lock store cannot do that: {0}")]
    Unsupported(&'static str),
    /// The change may have been made: the answer was lost, or it came too late.
    #[error("the lock store did not answer: {0}")]
    MaybeDone(#[source] Box<dyn Error + Send + Sync>),
}
