//! Read-only calls: the state of locks, their queues, and how many locks there are.

use forrst_lock::{Answer, Counts, LockName, LockStatus, StoreError, Timestamp, Waiter};
use fred::types::Value;
use futures_util::future::try_join_all;

use super::connection::store_error;
use super::lane::Lane;
use super::link::Link;
use super::unpack::{BadReply, Unpacker};

/// How many locks are read with one call.
const READ_AT_ONCE: usize = 64;

impl Link {
    pub(super) async fn inspect(&self, name: &LockName) -> Result<Answer<LockStatus>, StoreError> {
        let some = [name.clone()];
        let mut found = self.inspect_some(self.lane_of(name), &some).await?;
        let outcome = found.outcome.pop().ok_or(BadReply("status"))?;
        let now = found.now;
        Ok(Answer { outcome, now })
    }

    /// These locks of one lane, and the earliest time at which they were read.
    pub(super) async fn inspect_all(
        &self,
        lane: &Lane,
        names: &[LockName],
    ) -> Result<Answer<Vec<LockStatus>>, StoreError> {
        let some = names.chunks(READ_AT_ONCE);
        let read = try_join_all(some.map(|some| self.inspect_some(lane, some))).await?;
        let now = read.iter().map(|answer| answer.now).min();
        Ok(Answer {
            outcome: read.into_iter().flat_map(|answer| answer.outcome).collect(),
            now: now.unwrap_or(Timestamp::from_millis(u64::MAX)),
        })
    }

    async fn inspect_some(
        &self,
        lane: &Lane,
        names: &[LockName],
    ) -> Result<Answer<Vec<LockStatus>>, StoreError> {
        let packed = self
            .read(lane, names, "inspect", LockStatus::MAX_HOLDERS)
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
            .read(self.lane_of(name), &some, "queue", limit.max(1))
            .await?;
        let (mut answer, now) = open_answer(&packed)?;
        Ok(Answer {
            outcome: answer.waiters()?,
            now,
        })
    }

    async fn read(
        &self,
        lane: &Lane,
        names: &[LockName],
        what: &'static str,
        most: usize,
    ) -> Result<Value, StoreError> {
        let [meta, nodes, ..] = &lane.keys;
        let lane_keys = [meta, nodes].map(|key| Value::from(key.as_str()));
        let locks = names.iter().flat_map(|name| self.keyspace.lock_keys(name));
        let keys = lane_keys.into_iter().chain(locks).collect();
        let node = Value::from(self.header.node.as_str());
        let arguments = vec![node, what.into(), most.to_string().into()];
        self.call_function(lane, &self.library.read, keys, arguments)
            .await
    }

    pub(super) async fn counts(&self) -> Result<Counts, StoreError> {
        let counts = self.lanes.iter().map(async |lane| {
            let news = Value::from(lane.keys[3].as_str());
            let keys = [news].into_iter().chain(self.ends_of(lane)).collect();
            let counts = self
                .call_function(lane, &self.library.counts, keys, Vec::new())
                .await?;
            let Value::Array(counts) = counts else {
                return Err(StoreError::from(BadReply("counts")));
            };
            // These counters are separate keys, so a crash can leave them below zero.
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

    /// The expiry indexes of a lane.
    pub(super) fn ends_of(
        &self,
        lane: &Lane,
    ) -> impl DoubleEndedIterator<Item = Value> + ExactSizeIterator {
        let partitions = self.keyspace.partitions_of(lane.number).iter();
        partitions.map(|partition| partition.ends().into())
    }

    pub(super) async fn call_function(
        &self,
        lane: &Lane,
        function: &str,
        keys: Vec<Value>,
        arguments: Vec<Value>,
    ) -> Result<Value, StoreError> {
        let connection = self.connections.to(lane.slot)?;
        let answer = self
            .library
            .call(&connection, function, keys, arguments)
            .await;
        answer.map_err(store_error)
    }
}

/// The time of the answer, and the packed values of each lock.
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
        Ok(LockStatus {
            name: name.clone(),
            kind: (holder_count > 0).then(|| share.kind()),
            holders: holders.collect::<Result<_, _>>()?,
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
