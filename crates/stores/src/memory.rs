//! Locks in the memory of this process: the model itself, on sharded tables of keys.

use std::hash::BuildHasher;
use std::ops::Add;
use std::sync::{PoisonError, Weak};

use async_trait::async_trait;
use forrst_lock::model::{Command, Env, Locks, Outcome};
use forrst_lock::{
    Answer, Capabilities, Counts, Fence, Fences, ListError, ListRequest, LockName, LockStatus,
    LockStore, Node, Nodes, Page, ReleaseMemory, Secret, StoreError, Ticket, Waiter,
};

use crate::clock::Clock;
use crate::fences::mint;
use crate::report::report;
use crate::sync::{Mutex, MutexGuard, NameHasher};
use crate::table::{Remembered, Table, step_any};

/// Runs the [model](forrst_lock::model) itself. Nothing outlives the process.
///
/// A command on one key locks its shard. One that concerns several keys locks all shards, in their order, and runs alone for
/// about a microsecond.
///
/// A release is remembered for a [while](ReleaseMemory). Above 131 072 releases, the oldest are forgotten sooner, so that memory
/// is bounded by what is held.
#[derive(Debug)]
pub struct MemoryStore {
    shards: Box<[Mutex<Table>]>,
    hasher: NameHasher,
    clock: Clock,
    secret: Secret,
    memory: ReleaseMemory,
    nodes: Nodes,
}

/// Enough that two cores seldom contend, and few enough to sweep all of them every second.
#[cfg(not(shuttle))]
const SHARDS: usize = 64;
/// Each mutex multiplies the schedules to explore.
#[cfg(shuttle)]
const SHARDS: usize = 2;
const MAX_REMEMBERED_PER_SHARD: Remembered = Remembered {
    releases: 2048,
    withdrawals: 4096,
};

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::remembering(ReleaseMemory::default())
    }

    /// An empty store that remembers releases for this long.
    pub fn remembering(memory: ReleaseMemory) -> Self {
        Self::with_last_fence(None, memory)
    }

    /// A store whose next fence is after `last`.
    fn with_last_fence(last: Option<Fence>, memory: ReleaseMemory) -> Self {
        let fences = Fences::after(last);
        let shard = |_| Mutex::new(Table::new(MAX_REMEMBERED_PER_SHARD, memory, fences));
        Self {
            shards: (0..SHARDS).map(shard).collect(),
            hasher: NameHasher::default(),
            clock: Clock::start(),
            secret: Secret::random(),
            memory,
            nodes: Nodes::default(),
        }
    }

    /// How many keys are held, including those whose leases expired within the last second.
    pub fn held(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).held()).sum()
    }

    fn run(&self, command: &Command) -> Answer<Outcome> {
        let single = command.single();
        let answer = single.and_then(|name| self.run_single(name, command));
        answer.unwrap_or_else(|| self.run_in_all(command))
    }

    /// A command on one key, if it concerns no other.
    fn run_single(&self, name: &LockName, command: &Command) -> Option<Answer<Outcome>> {
        let mut table = lock(self.shard(name));
        let reading = self.clock.reading();
        let now = reading.now;
        let mut transitions = std::mem::take(&mut table.spare);
        let Some(outcome) = table.step_single(command, now, &mut transitions) else {
            table.spare = transitions;
            return None;
        };
        report(
            &self.nodes,
            &mut transitions,
            reading,
            |command, transitions| {
                // A rollback concerns no other key either: the shard has been locked since the step.
                table.step_single(command, now, transitions);
            },
        );
        table.spare = transitions;
        Some(Answer { outcome, now })
    }

    /// A command that may concern several keys.
    fn run_in_all(&self, command: &Command) -> Answer<Outcome> {
        // In their order, so that two commands that lock all of them cannot deadlock.
        let mut tables: Vec<_> = self.shards.iter().map(lock).collect();
        let reading = self.clock.reading();
        let now = reading.now;
        let mut fences: Vec<Fences> = tables.iter().map(|table| table.fences).collect();
        let index_of = |name: &LockName| self.shard_index(name);
        let mut mint = |locks: &Locks| mint(&mut fences, index_of, locks, now);
        let mut env = Env::single_node(now, &mut mint, self.memory);
        let mut transitions = Vec::new();
        let outcome = step_any(&mut tables, &index_of, command, &mut env, &mut transitions);
        report(
            &self.nodes,
            &mut transitions,
            reading,
            |command, transitions| {
                step_any(&mut tables, &index_of, command, &mut env, transitions);
            },
        );
        for (table, fences) in tables.iter_mut().zip(fences) {
            table.fences = fences;
        }
        Answer { outcome, now }
    }

    fn shard_index(&self, name: &LockName) -> usize {
        // The low bits choose the bucket in the shard's own hash table.
        let high_bits = self.hasher.hash_one(name) >> 32;
        usize::try_from(high_bits).unwrap_or_default() % self.shards.len()
    }

    fn shard(&self, name: &LockName) -> &Mutex<Table> {
        &self.shards[self.shard_index(name)]
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

/// A step cannot panic half-way, so a poisoned shard is still consistent.
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

    fn subscribe(&self, node: Weak<dyn Node>) {
        self.nodes.add(node);
    }

    async fn submit(&self, command: Command) -> Result<Answer<Outcome>, StoreError> {
        Ok(self.run(&command))
    }

    fn submit_now(&self, command: &Command) -> Option<Answer<Outcome>> {
        Some(self.run(command))
    }

    fn abandon(&self, name: &LockName, ticket: Ticket) {
        let name = name.clone();
        self.run(&Command::Abandon { name, ticket });
    }

    async fn inspect(&self, name: &LockName) -> Result<Answer<LockStatus>, StoreError> {
        let table = lock(self.shard(name));
        let now = self.clock.now();
        Ok(Answer {
            outcome: table.inspect(name, now),
            now,
        })
    }

    async fn queue(
        &self,
        name: &LockName,
        limit: usize,
    ) -> Result<Answer<Vec<Waiter>>, StoreError> {
        let table = lock(self.shard(name));
        Ok(Answer {
            outcome: table.queue(name, limit),
            now: self.clock.now(),
        })
    }

    /// Shard by shard, and by name in each: a page locks one shard at a time.
    async fn list(&self, request: &ListRequest) -> Result<Page, ListError> {
        let mut after = request.after()?;
        let first_shard = after.as_ref().map_or(0, |name| self.shard_index(name));
        let now = self.clock.now();
        let mut locks = Vec::new();
        for shard in &self.shards[first_shard..] {
            loop {
                let wanted = request.limit + 1 - locks.len();
                let (mut found, next) =
                    lock(shard).list(&request.prefix, after.as_ref(), wanted, now);
                locks.append(&mut found);
                after = next;
                if after.is_none() || locks.len() > request.limit {
                    break;
                }
            }
            if locks.len() > request.limit {
                break;
            }
        }
        Ok(Page::cut(locks, request.limit, now))
    }

    async fn sweep(&self, limit: usize) -> Result<usize, StoreError> {
        let mut count = 0;
        for shard in &self.shards {
            let now = self.clock.now();
            while count < limit {
                let Some(name) = lock(shard).first_due(now) else {
                    break;
                };
                self.run(&Command::Settle(name));
                count += 1;
            }
            lock(shard).tidy(now);
        }
        Ok(count)
    }

    async fn health(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn counts(&self) -> Result<Counts, StoreError> {
        let counts = self.shards.iter().map(|shard| lock(shard).counts());
        Ok(counts.fold(Counts::default(), Add::add))
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
