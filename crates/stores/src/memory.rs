//! Locks in the memory of this process.

use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::BuildHasher;
use std::sync::PoisonError;

use async_trait::async_trait;
use forrst_lock::state::{
    Abandon, Acquire, Acquired, Command, Extend, ForceRelease, Release, Settle, State, step,
};
use forrst_lock::{
    Answer, Capabilities, Fence, Lease, ListError, ListRequest, LockName, LockStatus, LockStore,
    NotHeld, Page, Settled, StoreError, Ticket, Timestamp, Waiter, Wake,
};

use crate::clock::Clock;
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering};

/// The state machine of [`forrst_lock::state`] itself, many keys to a shard. Nothing outlives the process.
///
/// A released key is remembered for [`TOMBSTONE_TTL`](forrst_lock::state::TOMBSTONE_TTL). Of more than
/// 131 072 such keys the oldest are forgotten sooner, so that memory is bounded by what is held.
#[derive(Debug)]
pub struct MemoryStore {
    shards: Box<[Mutex<Shard>]>,
    hasher: RandomState,
    last_fence: AtomicU64,
    clock: Clock,
}

#[derive(Debug, Default)]
struct Shard {
    slots: HashMap<LockName, Slot>,
    /// When which lease ends: what is due stands first.
    expiries: BTreeMap<(Timestamp, Fence), LockName>,
    /// Keys whose last release is remembered, and until when it was when they were put here.
    graves: VecDeque<(Timestamp, LockName)>,
}

#[derive(Debug)]
struct Slot {
    state: State<Waiter>,
    /// Stands in [`Shard::graves`], at most once.
    is_buried: bool,
}

/// Enough that two cores seldom meet, few enough to visit all of them every second.
const SHARDS: usize = 64;
const MAX_GRAVES_PER_SHARD: usize = 2048;

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::with_last_fence(0)
    }

    /// A store whose next fence is the one after `last`.
    fn with_last_fence(last: u64) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            last_fence: AtomicU64::new(last),
            clock: Clock::start(),
        }
    }

    /// How many leases are held, including those that ran out within the last second.
    pub fn held(&self) -> usize {
        self.shards.iter().map(|s| lock(s).expiries.len()).sum()
    }

    fn run<C: Command<Waiter>>(&self, name: &LockName, command: C) -> Answer<C::Outcome> {
        let mut shard = lock(self.shard(name));
        shard.run(name, command, self.clock.now(), &mut || self.mint())
    }

    fn shard_index(&self, name: &LockName) -> usize {
        // The low bits choose the place inside the shard's own table.
        let high_bits = self.hasher.hash_one(name) >> 32;
        usize::try_from(high_bits).unwrap_or_default() % self.shards.len()
    }

    fn shard(&self, name: &LockName) -> &Mutex<Shard> {
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
fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shard {
    /// One step, and everything that follows from it: waiters told, indexes kept, vacant keys forgotten.
    fn run<C: Command<Waiter>>(
        &mut self,
        name: &LockName,
        command: C,
        now: Timestamp,
        mint: &mut dyn FnMut() -> Option<Fence>,
    ) -> Answer<C::Outcome> {
        let slot = self.slots.entry(name.clone()).or_insert_with(|| Slot {
            state: State::new(name.clone()),
            is_buried: false,
        });
        let before = slot.state.lease().map(due);
        let done = step(&mut slot.state, command, now, mint);
        let mut to_tell = done.woken;
        while let Some(woken) = to_tell.pop() {
            let is_grant = matches!(woken.wake, Wake::Granted(_));
            if !woken.waiter.wake(woken.wake) && is_grant {
                let ticket = woken.ticket;
                to_tell.extend(step(&mut slot.state, Abandon { ticket }, now, mint).woken);
            }
        }
        let after = slot.state.lease().map(due);
        if before != after {
            before.and_then(|due| self.expiries.remove(&due));
            after.and_then(|due| self.expiries.insert(due, name.clone()));
        }
        match slot.state.tombstone_until() {
            Some(until) if !slot.is_buried => {
                slot.is_buried = true;
                self.graves.push_back((until, name.clone()));
            }
            None if !slot.is_buried && slot.state.is_vacant(now) => {
                self.slots.remove(name);
            }
            _ => {}
        }
        self.tend_graves(now);
        Answer {
            outcome: done.outcome,
            now,
            expired: done.expired,
        }
    }

    /// Forgets the releases whose time is over, and the oldest of too many. A few a step are enough: a step adds one.
    fn tend_graves(&mut self, now: Timestamp) {
        for _ in 0..4 {
            let is_full = self.graves.len() > MAX_GRAVES_PER_SHARD;
            let is_due = |(until, _): &mut (Timestamp, LockName)| is_full || *until <= now;
            let Some((_, name)) = self.graves.pop_front_if(is_due) else {
                return;
            };
            let Some(slot) = self.slots.get_mut(&name) else {
                continue;
            };
            match slot.state.tombstone_until() {
                // Released once more since: its time is still to come.
                Some(until) if until > now && !is_full => self.graves.push_back((until, name)),
                _ => {
                    slot.state.forget_release();
                    slot.is_buried = false;
                    if slot.state.is_vacant(now) {
                        self.slots.remove(&name);
                    }
                }
            }
        }
    }
}

/// What a lease is listed under among the expiries.
fn due(lease: &Lease) -> (Timestamp, Fence) {
    (lease.expires_at, lease.fence)
}

fn status(state: &State<Waiter>, now: Timestamp) -> Option<LockStatus> {
    let lease = state.lease().filter(|lease| lease.is_live(now))?;
    Some(LockStatus {
        lease: lease.clone(),
        waiters: state.waiters(),
    })
}

#[async_trait]
impl LockStore for MemoryStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            durable: false,
            shared: false,
            notifies: false,
        }
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

    async fn force_release(&self, name: &LockName) -> Result<Answer<Option<Lease>>, StoreError> {
        Ok(self.run(name, ForceRelease))
    }

    async fn settle(&self, name: &LockName) -> Result<Answer<Settled>, StoreError> {
        let mut shard = lock(self.shard(name));
        let answer = shard.run(name, Settle, self.clock.now(), &mut || self.mint());
        let state = shard.slots.get(name).map(|slot| &slot.state);
        Ok(Answer {
            outcome: Settled {
                expires_at: state.and_then(State::lease).map(|lease| lease.expires_at),
                waiters: state.map_or(0, State::waiters),
            },
            now: answer.now,
            expired: answer.expired,
        })
    }

    async fn inspect(&self, name: &LockName) -> Result<Answer<Option<LockStatus>>, StoreError> {
        let shard = lock(self.shard(name));
        let now = self.clock.now();
        let slot = shard.slots.get(name);
        Ok(Answer {
            outcome: slot.and_then(|slot| status(&slot.state, now)),
            now,
            expired: None,
        })
    }

    /// Shard by shard, by name in each: a page costs one shard's time, not everyone's.
    async fn list(&self, request: &ListRequest) -> Result<Page, ListError> {
        let (first_shard, mut after) = match &request.cursor {
            None => (0, None),
            Some(cursor) => {
                let name = LockName::parse(cursor).map_err(|_| ListError::BadCursor)?;
                (self.shard_index(&name), Some(name))
            }
        };
        let now = self.clock.now();
        let limit = request.limit.max(1);
        let mut locks = Vec::new();
        for shard in &self.shards[first_shard..] {
            let shard = lock(shard);
            let mut found: Vec<LockStatus> = shard
                .slots
                .iter()
                .filter(|(name, _)| name.as_str().starts_with(&request.prefix))
                .filter(|(name, _)| after.as_ref().is_none_or(|after| *name > after))
                .filter_map(|(_, slot)| status(&slot.state, now))
                .collect();
            drop(shard);
            found.sort_unstable_by(|a, b| a.lease.name.cmp(&b.lease.name));
            locks.append(&mut found);
            if locks.len() > limit {
                break;
            }
            after = None;
        }
        let has_more = locks.len() > limit;
        locks.truncate(limit);
        let last = locks.last().map(|last| last.lease.name.to_string());
        Ok(Page {
            locks,
            now,
            cursor: last.filter(|_| has_more),
        })
    }

    async fn expire(&self, limit: usize) -> Result<Vec<Lease>, StoreError> {
        let mut expired = Vec::new();
        for shard in &self.shards {
            let mut shard = lock(shard);
            let now = self.clock.now();
            while expired.len() < limit {
                let Some(((at, _), name)) = shard.expiries.first_key_value() else {
                    break;
                };
                if *at > now {
                    break;
                }
                let name = name.clone();
                let answer = shard.run(&name, Settle, now, &mut || self.mint());
                expired.extend(answer.expired);
            }
            shard.tend_graves(now);
        }
        Ok(expired)
    }

    async fn health(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
