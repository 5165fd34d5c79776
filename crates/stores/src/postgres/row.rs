//! One key as a row: its state is JSON, so that an operator can read it.
//!
//! The columns beside the state are for queries: when a sweep has to visit the key, and how many leases and claims it has.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use forrst_lock::model::{
    Call, Claim, Holder, Key, KeySnapshot, Position, Release, Waiting, Withdrawal,
};
use forrst_lock::{Fence, LockName, NodeId, StoreError, Timestamp};
use serde::{Deserialize, Serialize};

/// A visit of the sweep is put off by no more than this, so that a row that is often written keeps its place in the index.
const VISIT_SLACK: Duration = Duration::from_secs(60);

/// A key that was loaded.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) key: Key,
    /// The nodes through which each lease was granted whose first key this is. They are notified when it ends.
    pub(super) nodes: BTreeMap<Fence, Vec<NodeId>>,
    /// When a sweep has to visit it.
    pub(super) due: Option<u64>,
    /// Whether it is in the table. A row that is missing is only read.
    pub(super) exists: bool,
    /// The state as it is in the table.
    loaded: String,
}

/// What a transaction does to a row.
#[derive(Debug)]
pub(super) enum Write {
    Nothing,
    Row(WrittenRow),
    Delete,
}

/// What is written of a row.
#[derive(Debug)]
pub(super) struct WrittenRow {
    pub(super) state: String,
    pub(super) fence: i64,
    pub(super) due: i64,
    pub(super) holders: i32,
    /// The leases whose first key this is.
    pub(super) leases: i32,
    pub(super) waiters: i32,
}

#[derive(Serialize)]
struct WrittenState<'a> {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    holders: Vec<&'a Holder>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    queue: Vec<WrittenWaiting<'a>>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    releases: &'a [Release],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    withdrawals: &'a [Withdrawal],
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    nodes: BTreeMap<u64, &'a Vec<NodeId>>,
}

#[derive(Serialize)]
struct WrittenWaiting<'a> {
    position: Position,
    claim: &'a Claim,
    calls: &'a [Call],
    since: Timestamp,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ReadState {
    holders: Vec<Holder>,
    queue: Vec<ReadWaiting>,
    releases: Vec<Release>,
    withdrawals: Vec<Withdrawal>,
    nodes: BTreeMap<u64, Vec<NodeId>>,
}

#[derive(Deserialize)]
struct ReadWaiting {
    position: Position,
    claim: Claim,
    calls: Vec<Call>,
    since: Timestamp,
}

/// The state of a key that has none.
pub(super) const VACANT: &str = "{}";

impl Row {
    /// A row that is not in the table.
    pub(super) fn missing(name: &LockName) -> Self {
        Self {
            key: Key::new(name.clone()),
            nodes: BTreeMap::new(),
            due: None,
            exists: false,
            loaded: VACANT.to_owned(),
        }
    }

    /// Reads a row of the table.
    pub(super) fn read(
        name: &LockName,
        state: String,
        due: Option<i64>,
    ) -> Result<Self, StoreError> {
        let bad = |why: String| {
            tracing::error!(%name, why, "a row of the lock table cannot be read");
            StoreError::NotDone(format!("the row of {name} cannot be read: {why}").into())
        };
        let read: ReadState = serde_json::from_str(&state).map_err(|why| bad(why.to_string()))?;
        let mut nodes = BTreeMap::new();
        for (fence, ids) in read.nodes {
            let fence = Fence::new(fence).ok_or_else(|| bad(format!("{fence} is not a fence")))?;
            nodes.insert(fence, ids);
        }
        let queue = read.queue.into_iter().map(|waiting| Waiting {
            position: waiting.position,
            claim: Arc::new(waiting.claim),
            calls: waiting.calls.into(),
            since: waiting.since,
        });
        let snapshot = KeySnapshot {
            holders: read.holders,
            releases: read.releases,
            withdrawals: read.withdrawals,
            queue: queue.collect(),
        };
        let key = Key::restored(name.clone(), snapshot);
        let key = key.ok_or_else(|| bad("its leases do not fit together".to_owned()))?;
        Ok(Self {
            key,
            nodes,
            due: due.and_then(|due| u64::try_from(due).ok()),
            exists: true,
            loaded: state,
        })
    }

    /// What has to be written. A sweep also removes what nobody needs any more.
    pub(super) fn write(&mut self, now: Timestamp, fence: u64, is_visited: bool) -> Write {
        self.key.forget_old(now);
        let is_new = self.loaded == VACANT && fence == 0;
        if (is_visited || is_new) && self.key.is_vacant(now) {
            return if self.exists {
                Write::Delete
            } else {
                Write::Nothing
            };
        }
        let state = self.state();
        if state == self.loaded && !is_visited {
            return Write::Nothing;
        }
        let due = self.next_visit(now, is_visited);
        let name = self.key.name();
        let leases = self.key.holders();
        let leases = leases.filter(|holder| holder.lease.name() == name).count();
        Write::Row(WrittenRow {
            state,
            fence: i64::try_from(fence).unwrap_or(i64::MAX),
            due: i64::try_from(due).unwrap_or(i64::MAX),
            holders: count(self.key.holder_count()),
            leases: count(leases),
            waiters: count(self.key.queue().len()),
        })
    }

    fn state(&self) -> String {
        let queue = self.key.queue().iter().map(|waiting| WrittenWaiting {
            position: waiting.position,
            claim: &waiting.claim,
            calls: &waiting.calls,
            since: waiting.since,
        });
        let state = WrittenState {
            holders: self.key.holders().collect(),
            queue: queue.collect(),
            releases: self.key.releases(),
            withdrawals: self.key.withdrawals(),
            nodes: self
                .nodes
                .iter()
                .map(|(fence, ids)| (fence.number(), ids))
                .collect(),
        };
        // It only fails for maps whose keys are not text.
        serde_json::to_string(&state).unwrap_or_default()
    }

    /// When a sweep has to visit the row. Changing it costs an index entry, so a row keeps the time that it has if that is not much
    /// too late: a lease that expires is noticed in time, while a free row may stay for a while.
    fn next_visit(&self, now: Timestamp, is_visited: bool) -> u64 {
        let first_due = self.key.holders().map(Holder::due).min();
        let is_urgent = first_due.is_some();
        let queue = self.key.queue().iter().map(Waiting::until).max();
        let wanted = first_due.or(self.key.remembers_until().max(queue));
        let wanted = wanted.unwrap_or(now);
        let soon = wanted.min(now + VISIT_SLACK).as_millis();
        let wanted = wanted.as_millis();
        match self.due {
            _ if is_visited => wanted,
            None => soon,
            Some(due) if due <= now.as_millis() => soon,
            Some(due) if due <= wanted && (is_urgent || due + 10_000 >= wanted) => due,
            Some(due) if due <= wanted => wanted,
            Some(_) if is_urgent => wanted,
            Some(due) if due - wanted <= slack_millis() => due,
            Some(_) => soon,
        }
    }
}

fn slack_millis() -> u64 {
    u64::try_from(VISIT_SLACK.as_millis()).unwrap_or(u64::MAX)
}

fn count(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}
