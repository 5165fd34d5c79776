//! The keys that a transaction has locked, as the model sees them.
//!
//! Which keys a step concerns is known only when it runs: the end of a lease of several keys may unblock claims at each of them. A step
//! that asks for a key that is not locked is discarded, and the transaction begins again with that key.

use std::collections::HashMap;

use forrst_lock::model::{
    Acquired, Command, Env, Key, Keys, Locks, Outcome, ReleaseMemory, Transition, Wake, step,
};
use forrst_lock::{Fence, Fences, Lease, LockName, NodeId, Timestamp};

use super::message::News;
use super::row::Row;

/// The time and the nodes, as a transaction reads them after its rows are locked.
#[derive(Debug, Clone)]
pub(super) struct Moment {
    pub(super) now: Timestamp,
    /// The nodes that are alive; `None` if that is unknown, because the server itself was unavailable.
    pub(super) alive: Option<Vec<NodeId>>,
    /// No smaller than the largest fence of all keys that have no row.
    pub(super) fence_floor: u64,
}

/// The rows of a transaction.
#[derive(Debug, Default)]
pub(super) struct Rows {
    pub(super) by_name: HashMap<LockName, Row>,
    /// The largest fence of each key.
    pub(super) fences: HashMap<LockName, u64>,
}

/// The node that runs steps, and how long releases are remembered.
#[derive(Debug, Clone)]
pub(super) struct Runner {
    pub(super) node: NodeId,
    pub(super) memory: ReleaseMemory,
}

/// What a step did.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) outcome: Outcome,
    /// Those that concern this node.
    pub(super) transitions: Vec<Transition>,
    pub(super) news: Vec<(NodeId, News)>,
}

impl Rows {
    /// Adds those of the keys that have no row.
    pub(super) fn add_missing<'n>(&mut self, names: impl IntoIterator<Item = &'n LockName>) {
        for name in names {
            if !self.by_name.contains_key(name) {
                self.by_name.insert(name.clone(), Row::missing(name));
            }
        }
    }

    /// Runs one step. If it needs other keys, nothing is changed, and they are returned.
    pub(super) fn step(
        &mut self,
        command: &Command,
        moment: &Moment,
        runner: &Runner,
    ) -> Result<Step, Vec<LockName>> {
        let Self { by_name, fences } = self;
        let mut keys = LoadedKeys {
            rows: by_name,
            touched: Vec::new(),
            missing: HashMap::new(),
        };
        let mut mint = |locks: &Locks| {
            let last = locks.names().filter_map(|name| fences.get(name)).max();
            let last = last.copied().unwrap_or(0).max(moment.fence_floor);
            let fence = Fences::after(Fence::new(last)).next(moment.now)?;
            for name in locks.names() {
                fences.insert(name.clone(), fence.number());
            }
            Some(fence)
        };
        let alive = moment.alive.as_ref();
        let is_alive = |id: &NodeId| alive.is_none_or(|alive| alive.contains(id));
        let mut env = Env {
            now: moment.now,
            mint: &mut mint,
            node: Some(&runner.node),
            is_alive: &is_alive,
            memory: runner.memory,
        };
        let mut transitions = Vec::new();
        let outcome = step(&mut keys, command, &mut env, &mut transitions);
        let LoadedKeys {
            touched, missing, ..
        } = keys;
        for name in touched {
            if let Some(row) = self.by_name.get_mut(&name) {
                match missing.is_empty() {
                    true => row.key.commit(),
                    false => row.key.roll_back(),
                }
            }
        }
        match missing.is_empty() {
            true => Ok(self.share_news(outcome, transitions, runner)),
            false => Err(missing.into_keys().collect()),
        }
    }

    /// Finds out which node has to be notified of what.
    fn share_news(
        &mut self,
        outcome: Outcome,
        transitions: Vec<Transition>,
        runner: &Runner,
    ) -> Step {
        let own = &runner.node;
        let mut news = Vec::new();
        if let Outcome::Acquired(Acquired::Granted(lease)) = &outcome {
            self.granted_through(lease, own);
        }
        let mut for_this_node = Vec::with_capacity(transitions.len());
        for transition in transitions {
            match &transition {
                Transition::Woken { call, wake } => {
                    if let Wake::Granted(lease) = wake {
                        let node = call.node.as_ref().unwrap_or(own);
                        self.granted_through(lease, node);
                    }
                    if let Some(node) = call.node.as_ref().filter(|node| *node != own) {
                        news.push((node.clone(), News::Woken(call.ticket)));
                        continue;
                    }
                }
                Transition::Ended { lease, .. } => {
                    let row = self.by_name.get_mut(lease.name());
                    let nodes = row.and_then(|row| row.nodes.remove(&lease.fence));
                    let others = nodes.into_iter().flatten().filter(|node| node != own);
                    let ended = || News::Ended(lease.name().clone(), lease.fence);
                    news.extend(others.map(|node| (node, ended())));
                }
                Transition::Extended { lease, .. } => {
                    let row = self.by_name.get(lease.name());
                    let nodes = row.and_then(|row| row.nodes.get(&lease.fence));
                    let others = nodes.into_iter().flatten().filter(|node| *node != own);
                    let name = lease.name();
                    let changed = || News::Changed(name.clone(), lease.fence, lease.expires_at);
                    news.extend(others.map(|node| (node.clone(), changed())));
                }
                Transition::Granted { .. } | Transition::Confirmed { .. } => {}
            }
            for_this_node.push(transition);
        }
        Step {
            outcome,
            transitions: for_this_node,
            news,
        }
    }

    fn granted_through(&mut self, lease: &Lease, node: &NodeId) {
        let Some(row) = self.by_name.get_mut(lease.name()) else {
            return;
        };
        // It may have ended in the same step.
        if row.key.holder(lease.fence).is_none() {
            return;
        }
        let nodes = row.nodes.entry(lease.fence).or_default();
        if !nodes.contains(node) {
            nodes.push(node.clone());
        }
    }
}

/// The keys of a step. Those that are not locked are shown as vacant, and the step is discarded.
struct LoadedKeys<'a> {
    rows: &'a mut HashMap<LockName, Row>,
    touched: Vec<LockName>,
    missing: HashMap<LockName, Key>,
}

impl Keys for LoadedKeys<'_> {
    fn key(&mut self, name: &LockName) -> &mut Key {
        match self.rows.get_mut(name) {
            Some(row) => {
                if row.key.record() {
                    self.touched.push(name.clone());
                }
                &mut row.key
            }
            None => {
                let missing = self.missing.entry(name.clone());
                missing.or_insert_with_key(|name| Key::new(name.clone()))
            }
        }
    }

    fn is_loaded(&self, name: &LockName) -> bool {
        self.rows.contains_key(name)
    }

    fn is_discarded(&self) -> bool {
        !self.missing.is_empty()
    }
}

#[cfg(test)]
mod tests;
