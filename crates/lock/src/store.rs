//! Where locks live: the contract between [`LockService`](crate::LockService) and a store.

use std::error::Error;
use std::fmt;

use async_trait::async_trait;

use crate::state::{Acquire, Acquired, Extend, ForceRelease, NotHeld, Release};
use crate::{Caller, Lease, LockName, Owner, ReleaseMemory, Secret, Ticket, Timestamp, Waiter};

/// A place where locks are kept: one atomic step per call.
///
/// A store is the state machine of [`crate::state`], one for each key, behind calls that may fail. It does not wait,
/// time out, renew or retry: that is [`LockService`](crate::LockService)'s part, written once. What follows is the
/// contract; [`crate::contract`] tests it.
///
/// # Atomicity
///
/// Each call is one step of [`state::step`](crate::state::step) on one key, and no two steps on a key overlap,
/// over all processes that share the store. The check of owner, fence and expiry and the change that follows from it
/// are one act.
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
/// A queued [`Waiter`] stays in its place until it is woken, abandoned or superseded. The step that frees a lock hands it
/// to the first waiter, who is then told with [`Waiter::wake`]; if that waiter has gone, the store takes the lease
/// back and goes on with the next one. A durable store need not keep its waiters: their callers saw the connection break.
///
/// Nobody tells a store that a lease has run out while others wait. [`LockStore::settle`] is called at that time.
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

    /// Takes the lock if it is free. If it is held, queues the waiter, when there is one.
    async fn acquire(
        &self,
        name: &LockName,
        command: Acquire<Waiter>,
    ) -> Result<Answer<Acquired>, StoreError>;

    /// Undoes a call that nobody waits for any more: it leaves the queue, or returns the lock it was just given.
    ///
    /// Called from `drop`, so it neither waits nor fails. A store that needs a round trip for it sees to it in the
    /// background until it is done or the lease has ended.
    fn abandon(&self, name: &LockName, ticket: Ticket);

    /// Gives back the lease of that owner, and of that fence where one is named.
    async fn release(
        &self,
        name: &LockName,
        command: Release,
    ) -> Result<Answer<Result<Lease, NotHeld>>, StoreError>;

    /// Lets the lease of that owner end a full ttl from now. Never revives one that has run out.
    async fn extend(
        &self,
        name: &LockName,
        command: Extend,
    ) -> Result<Answer<Result<Lease, NotHeld>>, StoreError>;

    /// Ends the lease, whichever owner has it; only that of the fence where one is named.
    async fn force_release(
        &self,
        name: &LockName,
        command: ForceRelease,
    ) -> Result<Answer<Result<Lease, NotHeld>>, StoreError>;

    /// Ends the lease if it has run out, and hands the lock to the next waiter.
    async fn settle(&self, name: &LockName) -> Result<Answer<Settled>, StoreError>;

    /// Looks at one lock without changing anything. A lease that has run out is not shown.
    async fn inspect(&self, name: &LockName) -> Result<Answer<Option<LockStatus>>, StoreError>;

    /// Who waits for a lock, the next one first; at most `limit` of them.
    async fn queue(
        &self,
        name: &LockName,
        limit: usize,
    ) -> Result<Answer<Vec<Waiting>>, StoreError>;

    /// Looks at many locks, page by page. A lock that is held during the whole listing is on exactly one page;
    /// the order is the store's own.
    async fn list(&self, request: &ListRequest) -> Result<Page, ListError>;

    /// Ends up to `limit` leases that have run out, hands their locks on, and returns them.
    ///
    /// The service calls it about once a second, for the leases that nobody asks about. A store whose entries vanish
    /// by themselves returns nothing.
    async fn expire(&self, limit: usize) -> Result<Vec<Lease>, StoreError>;

    /// Whether the store does its work, writing included: one round trip, and nothing that waits for a disk.
    async fn health(&self) -> Result<(), StoreError>;

    /// Finishes what it does in the background, such as undoing calls that were given up. Called at the end, when nobody asks
    /// for anything any more; returns soon even if it cannot.
    async fn close(&self) {}

    /// How many locks are held, for those who watch. One that ran out a moment ago may still be counted.
    ///
    /// Stores that can tell without looking at each lock do so.
    async fn held(&self) -> Result<usize, StoreError> {
        let mut request = ListRequest {
            limit: 1000,
            ..ListRequest::default()
        };
        let mut count = 0;
        loop {
            let page = match self.list(&request).await {
                Ok(page) => page,
                Err(ListError::Store(error)) => return Err(error),
                // The store's own cursor: there is nothing more that it can list.
                Err(ListError::BadCursor) => return Ok(count),
            };
            count += page.locks.len();
            match page.cursor {
                Some(cursor) => request.cursor = Some(cursor),
                None => return Ok(count),
            }
        }
    }
}

/// What a store answers, with the reading of its clock.
#[derive(Debug)]
pub struct Answer<T> {
    /// The outcome of the step.
    pub outcome: T,
    /// The store's time of the step.
    pub now: Timestamp,
    /// The lease that the step found to have run out.
    pub expired: Option<Lease>,
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

/// A key after [`LockStore::settle`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settled {
    /// When the lease that holds it now ends; none when it is free.
    pub expires_at: Option<Timestamp>,
    /// How many wait for it.
    pub waiters: usize,
}

/// A lock that is held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockStatus {
    /// The lease that holds it.
    pub lease: Lease,
    /// How many wait for it.
    pub waiters: usize,
}

/// One who waits for a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// Whose lease it would become.
    pub owner: Owner,
    /// Who asked, where the server knows its callers.
    pub caller: Option<Caller>,
    /// Since when.
    pub since: Timestamp,
    /// When it gives up.
    pub until: Timestamp,
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
        let cursor = last.map(|last| last.lease.name.to_string());
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
    /// The change may have been made: the answer was lost, or it came too late.
    #[error("the lock store did not answer: {0}")]
    MaybeDone(#[source] Box<dyn Error + Send + Sync>),
}
