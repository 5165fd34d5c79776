//! Iteration over locks: pages of those that are held, and a sweep of those that are due.
//!
//! There is no index by name. The expiry index of a partition contains all locks that are held there. A page scans it completely, in
//! small steps; a partition has one sixty-fourth of all locks.

use std::collections::BTreeSet;
use std::sync::Arc;

use forrst_lock::model::Command;
use forrst_lock::{ListError, ListRequest, LockName, Page, StoreError, Timestamp};
use fred::types::Value;
use futures_util::future::{join_all, try_join_all};

use super::command::LibraryCommand;
use super::connection::{NOT_CONNECTED, store_error};
use super::group::PartitionGroup;
use super::keyspace::{Partition, name_of};
use super::link::Link;
use super::unpack::BadReply;

/// How many partitions are listed concurrently.
const LISTED_AT_ONCE: usize = 16;
/// How many entries of an expiry index are read in one step.
const SCANNED_AT_ONCE: &str = "1000";
/// How many locks are settled concurrently.
const SETTLED_AT_ONCE: usize = 64;

impl Link {
    /// A page of held locks, sorted by partition, and by name within each.
    pub(super) async fn list(&self, request: &ListRequest) -> Result<Page, ListError> {
        let mut after = request.after()?;
        self.check_connected()?;
        let mut now = Timestamp::from_millis(u64::MAX);
        let partitions = self.keyspace.partitions();
        let mut next = after
            .as_ref()
            .map_or(0, |name| self.keyspace.index_of(name));
        let mut locks = Vec::new();
        while next < partitions.len() && locks.len() <= request.limit {
            let wanted = request.limit + 1 - locks.len();
            let indexes = self.next_partitions(next, wanted).await?;
            let names = try_join_all(indexes.map(|index| {
                let after = after.as_ref().filter(|_| index == next);
                self.names(&partitions[index], &request.prefix, after, wanted)
            }))
            .await?;
            after = None;
            for names in names {
                let group = &self.groups[next % self.groups.len()];
                let found = self.inspect_all(group, &names).await?;
                now = now.min(found.now);
                locks.extend(found.outcome.into_iter().filter(|it| it.holder_count > 0));
                // There may be more, as expired leases are not listed.
                if names.len() == wanted {
                    after = names.into_iter().next_back();
                    break;
                }
                next += 1;
                if locks.len() > request.limit {
                    break;
                }
            }
        }
        if now.as_millis() == u64::MAX {
            now = self.time()?;
        }
        Ok(Page::cut(locks, request.limit, now))
    }

    /// The indexes of the partitions from `first` on that probably have enough locks for a page.
    async fn next_partitions(
        &self,
        first: usize,
        wanted: usize,
    ) -> Result<impl Iterator<Item = usize> + use<>, StoreError> {
        let partitions = self.keyspace.partitions()[first..].iter();
        let sizes = try_join_all(partitions.take(LISTED_AT_ONCE).map(async |partition| {
            let connection = self.connections.connection_for(partition.slot)?;
            let size = connection
                .command("ZCARD", vec![partition.expiry_index().into()])
                .await;
            Ok::<_, StoreError>(size.map_err(store_error)?.as_usize().unwrap_or(0))
        }))
        .await?;
        let mut sum = 0;
        let needed = sizes.iter().take_while(|size| {
            let is_needed = sum < wanted;
            sum += **size;
            is_needed
        });
        let count = needed.count();
        Ok(first..first + count)
    }

    /// The first `count` names of locks in one partition, after `after`.
    async fn names(
        &self,
        partition: &Partition,
        prefix: &str,
        after: Option<&LockName>,
        count: usize,
    ) -> Result<Vec<LockName>, StoreError> {
        let connection = self.connections.connection_for(partition.slot)?;
        let pattern = partition.pattern(prefix);
        let mut found = BTreeSet::new();
        let mut cursor = "0".to_owned();
        loop {
            let arguments = [
                &partition.expiry_index(),
                &cursor,
                "MATCH",
                &pattern,
                "COUNT",
                SCANNED_AT_ONCE,
            ];
            let arguments = arguments.map(Value::from).into();
            let answer = connection
                .command("ZSCAN", arguments)
                .await
                .map_err(store_error)?;
            let (next, entries) = scanned(answer).ok_or(BadReply("scan"))?;
            // Each entry is followed by its score.
            let names = entries
                .into_iter()
                .step_by(2)
                .filter_map(|entry| name_of(&entry.into_string()?));
            found.extend(names.filter(|name| after.is_none_or(|after| name > after)));
            while found.len() > count {
                found.pop_last();
            }
            cursor = next;
            if cursor == "0" {
                return Ok(found.into_iter().collect());
            }
        }
    }

    fn time(&self) -> Result<Timestamp, StoreError> {
        let reading = self.groups.first().and_then(|group| self.reading(group));
        let not_connected = || StoreError::NotDone(NOT_CONNECTED.into());
        reading.map(|reading| reading.now).ok_or_else(not_connected)
    }

    /// Settles locks that are due. It starts at another partition each time, so that one with many due locks does not starve the
    /// others.
    pub(super) async fn sweep(
        self: &Arc<Self>,
        limit: usize,
        first: usize,
    ) -> Result<usize, StoreError> {
        self.check_connected()?;
        let mut groups: Vec<&PartitionGroup> = self.groups.iter().collect();
        groups.rotate_left(first % self.groups.len());
        let due = join_all(groups.into_iter().map(async |group| {
            let mut ends: Vec<Value> = self.expiry_indexes(group).collect();
            let count = ends.len();
            ends.rotate_left(first % count);
            let arguments = vec![Value::from(limit.to_string())];
            self.call_function(group, &self.library.due, ends, arguments)
                .await
        }));
        let due = successes(due.await)?.into_iter().flat_map(lock_names);
        let due: Vec<LockName> = due.take(limit).collect();
        for names in due.chunks(SETTLED_AT_ONCE) {
            let settled = names.iter().map(async |name| {
                let settle = LibraryCommand::Step(Command::Settle(name.clone()));
                self.submit(self.group_of(name), settle).await.map(drop)
            });
            successes(join_all(settled).await)?;
        }
        Ok(due.len())
    }
}

/// The next cursor and the entries of a scan.
fn scanned(answer: Value) -> Option<(String, Vec<Value>)> {
    let Value::Array(parts) = answer else {
        return None;
    };
    let mut parts = parts.into_iter();
    let next = parts.next()?.into_string()?;
    match parts.next()? {
        Value::Array(entries) => Some((next, entries)),
        _ => None,
    }
}

fn lock_names(keys: Value) -> Vec<LockName> {
    let Value::Array(keys) = keys else {
        return Vec::new();
    };
    let names = keys.into_iter().filter_map(Value::into_string);
    names.filter_map(|key| name_of(&key)).collect()
}

/// The values of the results that succeeded; an error only if none did.
fn successes<T>(results: Vec<Result<T, StoreError>>) -> Result<Vec<T>, StoreError> {
    let (mut done, mut failed) = (Vec::new(), None);
    for result in results {
        match result {
            Ok(value) => done.push(value),
            Err(error) => failed = Some(error),
        }
    }
    match failed {
        Some(error) if done.is_empty() => Err(error),
        _ => Ok(done),
    }
}
