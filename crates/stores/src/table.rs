//! Many keys in memory, each with its state machine, and indexes over them.

use std::collections::{BTreeMap, HashMap, VecDeque};

use forrst_lock::state::{Command, MintFence, State, Step, Tombstone, step};
use forrst_lock::{
    Fence, Lease, LockName, LockStatus, ReleaseMemory, Settled, Timestamp, Waiter, Waiting,
};

/// The keys of a store, or of one shard of it.
///
/// A key that is free is remembered as long as its last release is. Of more than `max_remembered` releases those of the
/// oldest keys are forgotten sooner, so that memory is bounded by what is held.
#[derive(Debug)]
pub(crate) struct Table {
    slots: HashMap<LockName, Slot>,
    /// When which lease ends: what is due stands first.
    expiries: BTreeMap<(Timestamp, Fence), LockName>,
    /// Keys whose releases are remembered, and until when the last one was when they were put here.
    tombstones: VecDeque<(Timestamp, LockName)>,
    /// How many releases are remembered, over all keys.
    remembered: usize,
    max_remembered: usize,
    memory: ReleaseMemory,
    /// What is not as it was written down; only kept for a store that writes things down.
    changes: Option<Changes>,
}

/// Keys that are not as they were written down, some of them perhaps more than once.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// Somebody is told that this has happened.
    pub(crate) made: Vec<LockName>,
    /// The time of something is over. What is written says so, too: it can be cleared away at leisure.
    pub(crate) over: Vec<LockName>,
}

#[derive(Debug)]
struct Slot {
    state: State<Waiter>,
    /// Is in [`Table::tombstones`], at most once.
    has_tombstones: bool,
}

impl Table {
    pub(crate) fn new(memory: ReleaseMemory, max_remembered: usize) -> Self {
        Self {
            slots: HashMap::new(),
            expiries: BTreeMap::new(),
            tombstones: VecDeque::new(),
            remembered: 0,
            max_remembered,
            memory,
            changes: None,
        }
    }

    /// From now on [`take_changes`](Self::take_changes) tells which keys have changed.
    pub(crate) fn track_changes(&mut self) {
        self.changes = Some(Changes::default());
    }

    /// What has changed since the last call.
    pub(crate) fn take_changes(&mut self) -> Changes {
        self.changes
            .as_mut()
            .map(std::mem::take)
            .unwrap_or_default()
    }

    /// A key of which nothing that is written matters any more.
    pub(crate) fn clear_away(&mut self, names: impl IntoIterator<Item = LockName>) {
        if let Some(changes) = &mut self.changes {
            changes.over.extend(names);
        }
    }

    /// Puts a key back that was there before the process was.
    pub(crate) fn restore(&mut self, name: LockName, state: State<Waiter>) {
        if let Some(lease) = state.lease() {
            self.expiries.insert(due(lease), name.clone());
        }
        let until = last_release(&state).map(|release| release.until);
        if let Some(until) = until {
            self.tombstones.push_back((until, name.clone()));
        }
        self.remembered += state.releases().len();
        let has_tombstones = until.is_some();
        let slot = Slot {
            state,
            has_tombstones,
        };
        self.slots.insert(name, slot);
    }

    /// One step on one key. Those who were woken have not been told yet.
    pub(crate) fn apply<C: Command<Waiter>>(
        &mut self,
        name: &LockName,
        command: C,
        now: Timestamp,
        mint: MintFence<'_>,
    ) -> Step<Waiter, C::Outcome> {
        let slot = self.slots.entry(name.clone()).or_insert_with(|| Slot {
            state: State::new(name.clone()),
            has_tombstones: false,
        });
        let due_before = slot.state.lease().map(due);
        let ticket_before = slot.state.holder().map(|holder| holder.ticket);
        let released_before = last_release(&slot.state).map(|release| release.fence);
        let remembered_before = slot.state.releases().len();
        let done = step(&mut slot.state, command, now, self.memory, mint);
        let due_after = slot.state.lease().map(due);
        let released = last_release(&slot.state);
        self.remembered += slot.state.releases().len();
        self.remembered -= remembered_before;
        let has_moved = due_before != due_after;
        if has_moved {
            due_before.and_then(|due| self.expiries.remove(&due));
            due_after.and_then(|due| self.expiries.insert(due, name.clone()));
        }
        let has_released = released_before != released.map(|release| release.fence);
        let has_changed =
            has_moved || has_released || ticket_before != slot.state.holder().map(|h| h.ticket);
        if let Some(changes) = &mut self.changes
            && has_changed
        {
            let has_only_expired = done.expired.is_some() && due_after.is_none() && !has_released;
            let kind = if has_only_expired {
                &mut changes.over
            } else {
                &mut changes.made
            };
            kind.push(name.clone());
        }
        match released.map(|release| release.until) {
            Some(until) if !slot.has_tombstones => {
                slot.has_tombstones = true;
                self.tombstones.push_back((until, name.clone()));
            }
            None if !slot.has_tombstones && slot.state.is_vacant(now) => {
                self.slots.remove(name);
            }
            _ => {}
        }
        self.collect_tombstones(now);
        done
    }

    /// Forgets the releases whose time is over, and the oldest of too many. A few keys a step are enough: a step adds one
    /// release.
    pub(crate) fn collect_tombstones(&mut self, now: Timestamp) {
        for _ in 0..4 {
            let is_full = self.remembered > self.max_remembered;
            let is_due = |(until, _): &mut (Timestamp, LockName)| is_full || *until <= now;
            let Some((_, name)) = self.tombstones.pop_front_if(is_due) else {
                return;
            };
            let Some(slot) = self.slots.get_mut(&name) else {
                continue;
            };
            let remembered_before = slot.state.releases().len();
            if is_full {
                slot.state.forget_releases();
            } else {
                slot.state.forget_old_releases(now);
            }
            self.remembered -= remembered_before - slot.state.releases().len();
            match last_release(&slot.state).map(|release| release.until) {
                // Released once more since: its time is still to come.
                Some(until) => self.tombstones.push_back((until, name)),
                None => {
                    slot.has_tombstones = false;
                    if slot.state.is_vacant(now) {
                        self.slots.remove(&name);
                    }
                    self.clear_away([name]);
                }
            }
        }
    }

    /// A key whose lease has run out; none when there is no such key.
    pub(crate) fn first_due(&self, now: Timestamp) -> Option<LockName> {
        let ((at, _), name) = self.expiries.first_key_value()?;
        (*at <= now).then(|| name.clone())
    }

    /// When the lease ran out that did so last, of those that are not settled yet.
    pub(crate) fn last_expiry(&self, now: Timestamp) -> Option<Timestamp> {
        let mut due = self.expiries.range(..=(now, Fence::MAX));
        due.next_back().map(|((at, _), _)| *at)
    }

    /// How many leases are held, including those that ran out and have not been settled yet.
    pub(crate) fn held(&self) -> usize {
        self.expiries.len()
    }

    pub(crate) fn get(&self, name: &LockName) -> Option<&State<Waiter>> {
        self.slots.get(name).map(|slot| &slot.state)
    }

    pub(crate) fn settled(&self, name: &LockName) -> Settled {
        let state = self.get(name);
        Settled {
            expires_at: state.and_then(State::lease).map(|lease| lease.expires_at),
            waiters: state.map_or(0, State::waiters),
        }
    }

    pub(crate) fn inspect(&self, name: &LockName, now: Timestamp) -> Option<LockStatus> {
        status(self.get(name)?, now)
    }

    pub(crate) fn queue(&self, name: &LockName, limit: usize) -> Vec<Waiting> {
        let waiting = self.get(name).into_iter().flat_map(State::queue);
        waiting.take(limit).collect()
    }

    /// The first `limit` that are held and start with `prefix`, behind `after`, by name.
    pub(crate) fn list(
        &self,
        prefix: &str,
        after: Option<&LockName>,
        limit: usize,
        now: Timestamp,
    ) -> Vec<LockStatus> {
        let is_held = |slot: &Slot| slot.state.lease().is_some_and(|lease| lease.is_live(now));
        let mut found: Vec<(&LockName, &Slot)> = self
            .slots
            .iter()
            .filter(|(name, slot)| name.as_str().starts_with(prefix) && is_held(slot))
            .filter(|(name, _)| after.is_none_or(|after| *name > after))
            .collect();
        if found.len() > limit {
            found.select_nth_unstable_by_key(limit, |(name, _)| *name);
            found.truncate(limit);
        }
        found.sort_unstable_by_key(|(name, _)| *name);
        let found = found.into_iter();
        found
            .filter_map(|(_, slot)| status(&slot.state, now))
            .collect()
    }

    #[cfg(all(test, not(shuttle)))]
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }
}

fn last_release(state: &State<Waiter>) -> Option<&Tombstone> {
    state.releases().last()
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
