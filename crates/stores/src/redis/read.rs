//! Read-only calls: the state of locks, their queues, and how many locks there are. They are not batched with commands.

use forrst_lock::{
    Answer, Counts, Fence, Lease, LockName, LockStatus, StoreError, Timestamp, Waiter,
};
use fred::types::Value;
use futures_util::future::try_join_all;

use super::connection::store_error;
use super::group::PartitionGroup;
use super::link::Link;
use super::unpack::{BadReply, Unpacker};

/// How many locks are read with one call.
const READ_AT_ONCE: usize = 64;

impl Link {
    pub(super) async fn inspect(&self, name: &LockName) -> Result<Answer<LockStatus>, StoreError> {
        let some = [name.clone()];
        let mut found = self.inspect_some(self.group_of(name), &some).await?;
        let outcome = found.outcome.pop().ok_or(BadReply("status"))?;
        let now = found.now;
        Ok(Answer { outcome, now })
    }

    /// These locks of one group, and the earliest time at which they were read.
    pub(super) async fn inspect_all(
        &self,
        group: &PartitionGroup,
        names: &[LockName],
    ) -> Result<Answer<Vec<LockStatus>>, StoreError> {
        let some = names.chunks(READ_AT_ONCE);
        let read = try_join_all(some.map(|some| self.inspect_some(group, some))).await?;
        let now = read.iter().map(|answer| answer.now).min();
        Ok(Answer {
            outcome: read.into_iter().flat_map(|answer| answer.outcome).collect(),
            now: now.unwrap_or(Timestamp::from_millis(u64::MAX)),
        })
    }

    async fn inspect_some(
        &self,
        group: &PartitionGroup,
        names: &[LockName],
    ) -> Result<Answer<Vec<LockStatus>>, StoreError> {
        let packed = self
            .read(group, names, "inspect", LockStatus::MAX_HOLDERS)
            .await?;
        let (mut answer, now) = open_answer(&packed)?;
        let found = names.iter().map(|name| answer.status(name));
        Ok(Answer {
            outcome: found.collect::<Result<_, _>>()?,
            now,
        })
    }

    pub(super) async fn queue(
        &self,
        name: &LockName,
        limit: usize,
    ) -> Result<Answer<Vec<Waiter>>, StoreError> {
        let some = [name.clone()];
        let packed = self
            .read(self.group_of(name), &some, "queue", limit.max(1))
            .await?;
        let (mut answer, now) = open_answer(&packed)?;
        Ok(Answer {
            outcome: answer.waiters()?,
            now,
        })
    }

    async fn read(
        &self,
        group: &PartitionGroup,
        names: &[LockName],
        what: &'static str,
        most: usize,
    ) -> Result<Value, StoreError> {
        let [meta, nodes, ..] = &group.keys;
        let group_keys = [meta, nodes].map(|key| Value::from(key.as_str()));
        let locks = names.iter().flat_map(|name| self.keyspace.lock_keys(name));
        let keys = group_keys.into_iter().chain(locks).collect();
        let node = Value::from(self.header.node.as_str());
        let arguments = vec![node, what.into(), most.to_string().into()];
        self.call_function(group, &self.library.read, keys, arguments)
            .await
    }

    pub(super) async fn counts(&self) -> Result<Counts, StoreError> {
        let counts = self.groups.iter().map(async |group| {
            let [.., counters] = &group.keys;
            let counters = Value::from(counters.as_str());
            let keys = [counters]
                .into_iter()
                .chain(self.expiry_indexes(group))
                .collect();
            let counts = self
                .call_function(group, &self.library.counts, keys, Vec::new())
                .await?;
            let Value::Array(counts) = counts else {
                return Err(StoreError::from(BadReply("counts")));
            };
            // The counters are kept in separate keys, so a crash can leave them below zero.
            let mut counts = counts
                .iter()
                .map(|count| count.as_i64().unwrap_or(0).max(0));
            let mut next = || usize::try_from(counts.next().unwrap_or(0)).unwrap_or(0);
            Ok(Counts {
                keys: next(),
                leases: next(),
                reserved: next(),
            })
        });
        let counts: Vec<Counts> = try_join_all(counts).await?;
        Ok(counts
            .into_iter()
            .fold(Counts::default(), |all, one| all + one))
    }

    /// The expiry indexes of a group.
    pub(super) fn expiry_indexes(
        &self,
        group: &PartitionGroup,
    ) -> impl DoubleEndedIterator<Item = Value> + ExactSizeIterator {
        let partitions = self.keyspace.partitions_of(group.number).iter();
        partitions.map(|partition| partition.expiry_index().into())
    }

    pub(super) async fn call_function(
        &self,
        group: &PartitionGroup,
        function: &str,
        keys: Vec<Value>,
        arguments: Vec<Value>,
    ) -> Result<Value, StoreError> {
        let connection = self.connections.connection_for(group.slot)?;
        let answer = self
            .library
            .call(&connection, function, keys, arguments)
            .await;
        answer.map_err(store_error)
    }
}

/// The packed values of each lock, and the time of the answer.
fn open_answer(packed: &Value) -> Result<(Unpacker<'_>, Timestamp), BadReply> {
    let mut answer = Unpacker::new(packed.as_bytes().ok_or(BadReply("answer"))?);
    answer.list("answer")?;
    let now = answer.time()?;
    answer.list("locks")?;
    Ok((answer, now))
}

impl Unpacker<'_> {
    fn status(&mut self, name: &LockName) -> Result<LockStatus, BadReply> {
        self.list("status")?;
        let holder_count = self.size()?;
        let share = self.share()?;
        let waiters = self.size()?;
        let count = self.list("leases")?;
        let holders = (0..count).map(|_| self.lease(name));
        let holders: Vec<Lease> = holders.collect::<Result<_, _>>()?;
        // Zero if it is that of the last lease.
        let last_fence = Fence::new(self.number("last fence")?);
        Ok(LockStatus {
            name: name.clone(),
            kind: (holder_count > 0).then(|| share.kind()),
            last_fence: last_fence.or(holders.last().map(|lease| lease.fence)),
            holders,
            holder_count,
            waiters,
        })
    }

    fn waiters(&mut self) -> Result<Vec<Waiter>, BadReply> {
        let count = self.list("waiters")?;
        let waiters = (0..count).map(|_| {
            self.list("waiter")?;
            Ok(Waiter {
                owner: self.owner()?,
                caller: self.caller()?,
                note: self.note()?,
                since: self.time()?,
                until: self.time()?,
            })
        });
        waiters.collect()
    }
}
