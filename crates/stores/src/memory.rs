//! Locks in the memory of this process.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::PoisonError;

use async_trait::async_trait;
use forrst_lock::state::{
    Abandon, Acquire, Acquired, Command, Extend, ForceRelease, Release, Settle,
};
use forrst_lock::{
    Answer, Capabilities, Fence, Lease, ListError, ListRequest, LockName, LockStatus, LockStore,
    NotHeld, Page, ReleaseMemory, Secret, Settled, StoreError, Ticket, Timestamp, Waiter, Waiting,
    Wake,
};

use crate::clock::Clock;
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering};
use crate::table::Table;

/// The state machine of [`forrst_lock::state`] itself, many keys to a shard. Nothing outlives the process.
///
/// A release is remembered for a [while](ReleaseMemory). Of more than 131 072 releases the oldest are forgotten sooner, so
/// that memory is bounded by what is held.
#[derive(Debug)]
pub struct MemoryStore {
    shards: Box<[Mutex<Table>]>,
    hasher: RandomState,
    last_fence: AtomicU64,
    clock: Clock,
    secret: Secret,
    memory: ReleaseMemory,
}

/// Enough that two cores seldom meet, few enough to visit all of them every second.
const SHARDS: usize = 64;
const MAX_REMEMBERED_PER_SHARD: usize = 2048;

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::remembering(ReleaseMemory::default())
    }

    /// An empty store that remembers releases for this long.
    pub fn remembering(memory: ReleaseMemory) -> Self {
        Self::with_last_fence(0, memory)
    }

    /// A store whose next fence is the one after `last`.
    fn with_last_fence(last: u64, memory: ReleaseMemory) -> Self {
        let shard = |_| Mutex::new(Table::new(memory, MAX_REMEMBERED_PER_SHARD));
        Self {
            shards: (0..SHARDS).map(shard).collect(),
            hasher: RandomState::new(),
            last_fence: AtomicU64::new(last),
            clock: Clock::start(),
            secret: Secret::random(),
            memory,
        }
    }

    /// How many leases are held, including those that ran out within the last second.
    pub fn held(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).held()).sum()
    }

    fn run<C: Command<Waiter>>(&self, name: &LockName, command: C) -> Answer<C::Outcome> {
        let mut table = lock(self.shard(name));
        self.run_in(&mut table, name, command, self.clock.now())
    }

    /// One step, and everyone told whom it concerns.
    fn run_in<C: Command<Waiter>>(
        &self,
        table: &mut Table,
        name: &LockName,
        command: C,
        now: Timestamp,
    ) -> Answer<C::Outcome> {
        let mint = &mut || self.mint();
        let done = table.apply(name, command, now, mint);
        let mut to_tell = done.woken;
        while let Some(woken) = to_tell.pop() {
            let is_grant = matches!(woken.wake, Wake::Granted(_));
            if !woken.waiter.wake(woken.wake) && is_grant {
                let ticket = woken.ticket;
                to_tell.extend(table.apply(name, Abandon { ticket }, now, mint).woken);
            }
        }
        Answer {
            outcome: done.outcome,
            now,
            expired: done.expired,
        }
    }

    fn shard_index(&self, name: &LockName) -> usize {
        // The low bits choose the place inside the shard's own table.
        let high_bits = self.hasher.hash_one(name) >> 32;
        usize::try_from(high_bits).unwrap_or_default() % self.shards.len()
    }

    fn shard(&self, name: &LockName) -> &Mutex<Table> {
        &self.shards[self.shard_index(name)]
    }

    fn mint(&self) -> Option<Fence> {
        let next = |last: u64| Fence::new(last + 1).map(Fence::number);
        let last = self
            .last_fence
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next)
            .ok()?;
        Fence::new(last + 1)
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

/// A step cannot panic half-way, so a poisoned shard is as good as any.
fn lock(shard: &Mutex<Table>) -> MutexGuard<'_, Table> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

#[async_trait]
impl LockStore for MemoryStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            durable: false,
            shared: false,
            notifies: false,
            release_memory: self.memory,
        }
    }

    fn secret(&self) -> Secret {
        self.secret
    }

    async fn acquire(
        &self,
        name: &LockName,
        command: Acquire<Waiter>,
    ) -> Result<Answer<Acquired>, StoreError> {
        Ok(self.run(name, command))
    }

    fn abandon(&self, name: &LockName, ticket: Ticket) {
        self.run(name, Abandon { ticket });
    }

    async fn release(
        &self,
        name: &LockName,
        command: Release,
    ) -> Result<Answer<Result<Lease, NotHeld>>, StoreError> {
        Ok(self.run(name, command))
    }

    async fn extend(
        &self,
        name: &LockName,
        command: Extend,
    ) -> Result<Answer<Result<Lease, NotHeld>>, StoreError> {
        Ok(self.run(name, command))
    }

    async fn force_release(
        &self,
        name: &LockName,
        command: ForceRelease,
    ) -> Result<Answer<Result<Lease, NotHeld>>, StoreError> {
        Ok(self.run(name, command))
    }

    async fn settle(&self, name: &LockName) -> Result<Answer<Settled>, StoreError> {
        let mut table = lock(self.shard(name));
        let answer = self.run_in(&mut table, name, Settle, self.clock.now());
        Ok(Answer {
            outcome: table.settled(name),
            now: answer.now,
            expired: answer.expired,
        })
    }

    async fn inspect(&self, name: &LockName) -> Result<Answer<Option<LockStatus>>, StoreError> {
        let table = lock(self.shard(name));
        let now = self.clock.now();
        Ok(Answer {
            outcome: table.inspect(name, now),
            now,
            expired: None,
        })
    }

    async fn queue(
        &self,
        name: &LockName,
        limit: usize,
    ) -> Result<Answer<Vec<Waiting>>, StoreError> {
        let table = lock(self.shard(name));
        Ok(Answer {
            outcome: table.queue(name, limit),
            now: self.clock.now(),
            expired: None,
        })
    }

    /// Shard by shard, by name in each: a page costs one shard's time, not everyone's.
    async fn list(&self, request: &ListRequest) -> Result<Page, ListError> {
        let mut after = request.after()?;
        let first_shard = after.as_ref().map_or(0, |name| self.shard_index(name));
        let now = self.clock.now();
        let mut locks = Vec::new();
        for shard in &self.shards[first_shard..] {
            let wanted = request.limit + 1 - locks.len();
            locks.append(&mut lock(shard).list(&request.prefix, after.as_ref(), wanted, now));
            if locks.len() > request.limit {
                break;
            }
            after = None;
        }
        Ok(Page::cut(locks, request.limit, now))
    }

    async fn expire(&self, limit: usize) -> Result<Vec<Lease>, StoreError> {
        let mut expired = Vec::new();
        for shard in &self.shards {
            let mut table = lock(shard);
            let now = self.clock.now();
            while expired.len() < limit
                && let Some(name) = table.first_due(now)
            {
                expired.extend(self.run_in(&mut table, &name, Settle, now).expired);
            }
            table.collect_tombstones(now);
        }
        Ok(expired)
    }

    async fn health(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn held(&self) -> Result<usize, StoreError> {
        Ok(Self::held(self))
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
