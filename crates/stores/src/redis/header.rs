//! The keys and arguments of a call: a header for the whole batch, then one packed command each.
//!
//! `FCALL` has to declare its keys: each lock is declared once, and commands refer to it by its number.

use foldhash::{HashMap, HashMapExt};
use forrst_lock::{LockName, Timestamp};
use fred::types::Value;

use super::command::Packer;
use super::group::PartitionGroup;
use super::keyspace::Keyspace;
use super::queue::{Batch, Job};

/// The part of the header that is the same in all calls of a node.
#[derive(Debug)]
pub(super) struct CallHeader {
    pub(super) node: String,
    pub(super) channel: String,
    pub(super) release_memory_millis: u64,
    /// Whether every grant to a waiter has to be confirmed by its node.
    pub(super) must_confirm: bool,
    /// The number of the database: the library keeps state for each, since the same key may exist in several.
    pub(super) database: String,
    /// The lifetime of the tombstone of a call that was abandoned before it arrived.
    pub(super) tombstone_millis: u64,
}

impl CallHeader {
    /// The keys and the arguments of a call.
    pub(super) fn call(
        &self,
        group: &PartitionGroup,
        keyspace: &Keyspace,
        batch: &Batch<'_>,
        not_after: impl Fn(&Job) -> Timestamp,
    ) -> (Vec<Value>, Vec<Value>) {
        let mut declared = DeclaredKeys::new(keyspace);
        let mut commands = Packer::default();
        let mut arguments = Vec::with_capacity(batch.jobs.len() + 1);
        arguments.push(Value::Null);
        commands.list(2 * batch.jobs.len());
        for job in &batch.jobs {
            commands.number(not_after(job).as_millis());
            let numbers: Vec<u64> = job.names.iter().map(|name| declared.number(name)).collect();
            match &numbers[..job.named] {
                [] => commands.number(0),
                [one] => commands.number(*one),
                several => {
                    commands.list(several.len());
                    several.iter().for_each(|number| {
                        commands.number(*number);
                    });
                    &mut commands
                }
            };
            arguments.push(Value::Bytes(job.command.pack(self.tombstone_millis).into()));
        }
        let DeclaredKeys {
            indexes,
            ends,
            locks,
            ..
        } = declared;
        let mut header = Packer::default();
        header
            .text(&self.node)
            .text(&self.channel)
            .number(self.release_memory_millis)
            .flag(self.must_confirm)
            .number(group.highest_fence())
            .text(&self.database)
            .number(ends.len() as u64)
            .list(indexes.len());
        for index in indexes {
            header.number(index);
        }
        header.0.extend_from_slice(&commands.0);
        header.number(batch.number).flag(batch.is_pipelined);
        arguments[0] = Value::Bytes(header.0.into());
        let group_keys = group.keys.iter().map(|key| Value::from(key.as_str()));
        (group_keys.chain(ends).chain(locks).collect(), arguments)
    }
}

/// The keys that a call declares: each lock once, and the expiry indexes of their partitions. Both are numbered from 1.
struct DeclaredKeys<'a> {
    keyspace: &'a Keyspace,
    numbers: HashMap<LockName, u64>,
    /// The number of each lock's expiry index.
    indexes: Vec<u64>,
    partitions: HashMap<usize, u64>,
    ends: Vec<Value>,
    locks: Vec<Value>,
}

impl<'a> DeclaredKeys<'a> {
    fn new(keyspace: &'a Keyspace) -> Self {
        Self {
            keyspace,
            numbers: HashMap::new(),
            indexes: Vec::new(),
            partitions: HashMap::new(),
            ends: Vec::new(),
            locks: Vec::new(),
        }
    }

    /// The number of a lock, which is declared if it was not yet.
    fn number(&mut self, name: &LockName) -> u64 {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let partition = self.keyspace.index_of(name);
        let index = *self.partitions.entry(partition).or_insert_with(|| {
            let ends = self.keyspace.partitions()[partition].expiry_index();
            self.ends.push(ends.into());
            self.ends.len() as u64
        });
        self.indexes.push(index);
        self.locks.extend(self.keyspace.lock_keys(name));
        let number = self.indexes.len() as u64;
        self.numbers.insert(name.clone(), number);
        number
    }
}
