//! A table of keys in memory, with indexes by name and by the time at which a lease is due.
//!
//! Each shard of the memory store is one table, and so is the whole embedded store. A step changes keys and then updates the
//! indexes from its transitions.

#[cfg(feature = "embedded")]
mod durable;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::ops::{Bound, DerefMut};
use std::time::Duration;

use foldhash::quality::RandomState;
use forrst_lock::model::{
    Command, Env, Key, Keys, Locks, OneKey, Outcome, ReleaseMemory, Transition, Withdrawal,
    Withdrawn, step,
};
use forrst_lock::{Counts, Fence, Fences, Lease, LockName, LockStatus, Timestamp, Waiter};

/// The keys of a store, or of one shard of it.
///
/// A free key is kept for as long as its last release is remembered. Above the [limit](Remembered), the releases of the oldest
/// keys are forgotten sooner, so that memory is bounded by what is held. Withdrawals are promises and never forgotten early: at
/// the limit, no more are added.
#[derive(Debug)]
pub(crate) struct Table {
    slots: Slots,
    indexes: Indexes,
    max: Remembered,
    /// When all keys were last searched for expired withdrawals.
    forgot_withdrawals_at: Timestamp,
    pub(crate) memory: ReleaseMemory,
    pub(crate) fences: Fences,
    /// The keys that steps have touched since the last [`accept`](Self::accept) or [`roll_back`](Self::roll_back); `None` until
    /// [rollback is enabled](Self::enable_rollback).
    touched: Option<Vec<LockName>>,
    /// An empty list, kept to reuse its allocation.
    pub(crate) spare: Vec<Transition>,
}

type Slots = HashMap<LockName, Slot, RandomState>;

/// Indexes and counts over all keys of a table.
#[derive(Debug, Default)]
struct Indexes {
    /// When each lease expires or has to be confirmed, under its first key; the next one first.
    due: BTreeSet<Due>,
    /// Held keys by name, for listing. They are moved here from `recent`.
    listed: BTreeSet<LockName>,
    /// Keys that were granted since the last listing or sweep. Most are free again by then, and never enter `listed`.
    recent: Vec<LockName>,
    /// How many free keys have a queue. They are reserved for a set that waits for another key.
    reserved: usize,
    /// How many [calls](LockName::call) are under way. They are not locks, and not counted as such.
    calls: usize,
    /// Keys with releases or withdrawals that are remembered, and until when the last of them was when the key was added.
    tombstones: VecDeque<(Timestamp, LockName)>,
    /// The sum over all keys.
    remembered: Remembered,
}

/// Leases of different keys may have the same fence.
type Due = (Timestamp, Fence, LockName);

/// The source of fences for a step: see [`Env::mint`].
pub(crate) type Mint<'a> = &'a mut dyn FnMut(&Locks) -> Option<Fence>;

const SECOND: Duration = Duration::from_secs(1);
/// The maximum length of [`Indexes::recent`].
const MAX_RECENT: usize = 4096;
/// How many names a listing visits beyond its page: those whose leases have expired since the last sweep.
const MAX_VISITED: usize = 1024;
/// How many keys a sweep collects tombstones of.
const MAX_COLLECTED: usize = 1024;
/// A table is not shrunk below this capacity.
const MIN_CAPACITY: usize = 1024;

#[derive(Debug)]
struct Slot {
    key: Key,
    /// The part of [`Indexes::remembered`] that belongs to this key.
    remembered: Remembered,
    /// Is in [`Indexes::tombstones`], at most once.
    has_tombstones: bool,
    /// Is in [`Indexes::recent`], at most once.
    is_recent: bool,
    /// Is in [`Indexes::listed`].
    is_listed: bool,
    /// Is counted in [`Indexes::reserved`].
    is_reserved: bool,
    /// Is counted in [`Indexes::calls`].
    is_running_call: bool,
}

/// The number of releases and withdrawals that are remembered, or its limit.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Remembered {
    pub(crate) releases: usize,
    pub(crate) withdrawals: usize,
}

impl Remembered {
    /// Updates the sum after a change of one key.
    fn update(&mut self, slot: &mut Slot) {
        let now = Self {
            releases: slot.key.releases().len(),
            withdrawals: slot.key.withdrawals().len(),
        };
        self.releases = self.releases + now.releases - slot.remembered.releases;
        self.withdrawals = self.withdrawals + now.withdrawals - slot.remembered.withdrawals;
        slot.remembered = now;
    }
}

impl Slot {
    fn new(key: Key) -> Self {
        Self {
            key,
            remembered: Remembered::default(),
            has_tombstones: false,
            is_recent: false,
            is_listed: false,
            is_reserved: false,
            is_running_call: false,
        }
    }
}

impl Table {
    pub(crate) fn new(max: Remembered, memory: ReleaseMemory, fences: Fences) -> Self {
        Self {
            slots: HashMap::default(),
            indexes: Indexes::default(),
            max,
            forgot_withdrawals_at: Timestamp::from_millis(0),
            memory,
            fences,
            touched: None,
            spare: Vec::new(),
        }
    }

    /// One step of a command on a single key that has no sets. `None` for any other command, which may concern other keys.
    #[cfg(feature = "memory")]
    pub(crate) fn step_single(
        &mut self,
        command: &Command,
        now: Timestamp,
        transitions: &mut Vec<Transition>,
    ) -> Option<Outcome> {
        let mut fences = self.fences;
        let outcome = self.step_single_with(command, now, &mut |_| fences.next(now), transitions);
        self.fences = fences;
        outcome
    }

    /// As [`step_single`](Self::step_single), with fences from `mint`.
    pub(crate) fn step_single_with(
        &mut self,
        command: &Command,
        now: Timestamp,
        mint: Mint<'_>,
        transitions: &mut Vec<Transition>,
    ) -> Option<Outcome> {
        let name = command.single()?;
        if let Some(outcome) = self.refusal(command, now) {
            return Some(outcome);
        }
        let slot = slot(&mut self.slots, &mut self.touched, name);
        if slot.key.has_sets() {
            return None;
        }
        let mut env = Env::single_node(now, mint, self.memory);
        let first = transitions.len();
        let mut key = OneKey(&mut slot.key);
        let outcome = step(&mut key, command, &mut env, transitions);
        for transition in &transitions[first..] {
            self.indexes.reindex(transition);
        }
        if !self.indexes.update(slot, now) {
            self.slots.remove(name);
        }
        self.collect(now);
        Some(outcome)
    }

    /// The outcome of a withdrawal that is refused because the table is full of them.
    fn refusal(&mut self, command: &Command, now: Timestamp) -> Option<Outcome> {
        let Command::Withdraw {
            name,
            owner,
            attempt,
        } = command
        else {
            return None;
        };
        let is_full = |table: &Self| table.indexes.remembered.withdrawals >= table.max.withdrawals;
        if is_full(self) {
            self.forget_old_withdrawals(now);
        }
        let is_known = |known: &Withdrawal| {
            known.until > now && known.owner == *owner && known.attempt == *attempt
        };
        let mut known = self.get(name).into_iter().flat_map(Key::withdrawals);
        let is_refused = is_full(self) && !known.any(is_known);
        is_refused.then_some(Outcome::Withdrawn(Withdrawn::TooMany))
    }

    /// Forgets all expired withdrawals, at most once a second. They may be behind releases that are remembered longer.
    fn forget_old_withdrawals(&mut self, now: Timestamp) {
        if now < self.forgot_withdrawals_at + SECOND {
            return;
        }
        self.forgot_withdrawals_at = now;
        for (_, name) in &self.indexes.tombstones {
            if let Some(slot) = self.slots.get_mut(name) {
                slot.key.forget_old(now);
                self.indexes.remembered.update(slot);
            }
        }
    }

    /// The key of this name, for a step. [`after_step`](Self::after_step) has to follow.
    fn key(&mut self, name: &LockName) -> &mut Key {
        &mut slot(&mut self.slots, &mut self.touched, name).key
    }

    /// Updates the indexes for a key that a step has touched.
    fn after_step(&mut self, name: &LockName, now: Timestamp) {
        if let Some(slot) = self.slots.get_mut(name)
            && !self.indexes.update(slot, now)
        {
            self.slots.remove(name);
        }
        self.collect(now);
    }

    /// The upkeep after every step.
    fn collect(&mut self, now: Timestamp) {
        if self.indexes.recent.len() > MAX_RECENT {
            self.list_recent(now);
        }
        // A step adds one release to each of its keys.
        self.collect_tombstones(now, 4);
    }

    /// Moves recent keys that are still held to `listed`.
    fn list_recent(&mut self, now: Timestamp) {
        for name in std::mem::take(&mut self.indexes.recent) {
            let Some(slot) = self.slots.get_mut(&name) else {
                continue;
            };
            slot.is_recent = false;
            if slot.key.holder_count() > 0 {
                slot.is_listed = true;
                self.indexes.listed.insert(name);
            } else if !slot.has_tombstones && slot.key.is_vacant(now) {
                self.slots.remove(&name);
            }
        }
    }

    /// The upkeep of a sweep, about once a second.
    pub(crate) fn tidy(&mut self, now: Timestamp) {
        self.list_recent(now);
        self.collect_tombstones(now, MAX_COLLECTED);
        if self.slots.capacity() > MIN_CAPACITY.max(self.slots.len() * 8) {
            self.slots.shrink_to(self.slots.len() * 2);
        }
    }

    /// Forgets expired releases and withdrawals, and the oldest releases above the limit, of at most so many keys.
    fn collect_tombstones(&mut self, now: Timestamp, keys: usize) {
        for _ in 0..keys {
            let is_full = self.indexes.remembered.releases > self.max.releases;
            let is_due = |(until, _): &mut (Timestamp, LockName)| is_full || *until <= now;
            let Some((_, name)) = self.indexes.tombstones.pop_front_if(is_due) else {
                return;
            };
            let Some(slot) = self.slots.get_mut(&name) else {
                continue;
            };
            if is_full {
                slot.key.forget_releases();
            } else {
                slot.key.forget_old(now);
            }
            self.indexes.remembered.update(slot);
            match slot.key.remembers_until() {
                // Released again since it was added: not expired yet.
                Some(until) => self.indexes.tombstones.push_back((until, name)),
                None => {
                    slot.has_tombstones = false;
                    if !slot.is_recent && slot.key.is_vacant(now) {
                        self.slots.remove(&name);
                    }
                }
            }
        }
    }

    /// The first key of a lease that is due, if there is one.
    pub(crate) fn first_due(&self, now: Timestamp) -> Option<LockName> {
        let (at, _, name) = self.indexes.due.first()?;
        (*at <= now).then(|| name.clone())
    }

    /// How many keys are held, including those whose leases have expired and are not settled yet.
    pub(crate) fn held(&self) -> usize {
        let recent = self
            .indexes
            .recent
            .iter()
            .filter_map(|name| self.slots.get(name));
        let recent = recent.filter(|slot| slot.key.holder_count() > 0 && !slot.is_listed);
        self.indexes.listed.len() + recent.count()
    }

    /// The number of keys and leases. A lease is counted in the table that has its first key.
    pub(crate) fn counts(&self) -> Counts {
        Counts {
            keys: self.held() - self.indexes.calls,
            leases: self.indexes.due.len() - self.indexes.calls,
            reserved: self.indexes.reserved,
        }
    }

    pub(crate) fn get(&self, name: &LockName) -> Option<&Key> {
        self.slots.get(name).map(|slot| &slot.key)
    }

    pub(crate) fn inspect(&self, name: &LockName, now: Timestamp) -> LockStatus {
        match self.get(name) {
            Some(key) => LockStatus::new(key, now),
            None => LockStatus::new(&Key::new(name.clone()), now),
        }
    }

    pub(crate) fn queue(&self, name: &LockName, limit: usize) -> Vec<Waiter> {
        let waiting = self.get(name).into_iter().flat_map(Key::queue);
        waiting.take(limit).map(Waiter::from).collect()
    }

    /// Up to `limit` held keys that start with `prefix` and come after `after`, by name; and the name to continue after, if there
    /// may be more. It costs no more than a page, however many leases have expired and are not swept yet.
    pub(crate) fn list(
        &mut self,
        prefix: &str,
        after: Option<&LockName>,
        limit: usize,
        now: Timestamp,
    ) -> (Vec<LockStatus>, Option<LockName>) {
        self.list_recent(now);
        let from: (Bound<&str>, Bound<&str>) = match after {
            Some(after) if after.as_str() >= prefix => {
                (Bound::Excluded(after.as_str()), Bound::Unbounded)
            }
            _ => (Bound::Included(prefix), Bound::Unbounded),
        };
        let names = self.indexes.listed.range::<str, _>(from);
        let names = names.take_while(|name| name.as_str().starts_with(prefix));
        let mut locks = Vec::new();
        for (visited, name) in names.enumerate() {
            let status = self.inspect(name, now);
            if status.holder_count > 0 {
                locks.push(status);
            }
            if locks.len() >= limit || visited >= limit + MAX_VISITED {
                return (locks, Some(name.clone()));
            }
        }
        (locks, None)
    }

    #[cfg(all(test, not(shuttle)))]
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }
}

/// What a transition changes in [`Indexes::due`]: the entry that was there before it, and the one that is there after it.
fn due_change(transition: &Transition) -> (Option<Due>, Option<Due>) {
    let entry = |at, lease: &Lease| Some((at, lease.fence, lease.name().clone()));
    let to_confirm = |by: Timestamp, lease: &Lease| entry(by.min(lease.expires_at), lease);
    match transition {
        Transition::Granted {
            lease,
            confirm_by: Some(by),
            ..
        } => (None, to_confirm(*by, lease)),
        Transition::Granted { lease, .. } => (None, entry(lease.expires_at, lease)),
        Transition::Confirmed { lease, confirm_by } => (
            to_confirm(*confirm_by, lease),
            entry(lease.expires_at, lease),
        ),
        Transition::Extended { lease, before } => {
            (entry(*before, lease), entry(lease.expires_at, lease))
        }
        Transition::Ended { lease, due, .. } => (entry(*due, lease), None),
        Transition::Woken { .. } => (None, None),
    }
}

fn replace(due: &mut BTreeSet<Due>, old: Option<Due>, new: Option<Due>) {
    if let Some(old) = old {
        due.remove(&old);
    }
    due.extend(new);
}

/// One step of any command on keys of several tables. `index_of` gives the table of a key.
pub(crate) fn step_any<T: DerefMut<Target = Table>>(
    tables: &mut [T],
    index_of: &dyn Fn(&LockName) -> usize,
    command: &Command,
    env: &mut Env<'_>,
    transitions: &mut Vec<Transition>,
) -> Outcome {
    let now = env.now;
    if let Some(name) = command.single()
        && let Some(outcome) = tables[index_of(name)].refusal(command, now)
    {
        return outcome;
    }
    let first = transitions.len();
    let mut keys = AllKeys {
        tables,
        index_of,
        touched: BTreeSet::new(),
    };
    let outcome = step(&mut keys, command, env, transitions);
    let AllKeys { touched, .. } = keys;
    for transition in &transitions[first..] {
        if let Some(lease) = transition.lease() {
            tables[index_of(lease.name())].indexes.reindex(transition);
        }
    }
    for name in touched {
        tables[index_of(&name)].after_step(&name, now);
    }
    outcome
}

/// The keys of several tables, for a step that may touch any of them.
struct AllKeys<'a, T> {
    tables: &'a mut [T],
    index_of: &'a dyn Fn(&LockName) -> usize,
    touched: BTreeSet<LockName>,
}

impl<T: DerefMut<Target = Table>> Keys for AllKeys<'_, T> {
    fn key(&mut self, name: &LockName) -> &mut Key {
        if !self.touched.contains(name) {
            self.touched.insert(name.clone());
        }
        self.tables[(self.index_of)(name)].key(name)
    }
}

/// The slot of a key, noted as touched: it may change from now on.
fn slot<'a>(
    slots: &'a mut Slots,
    touched: &mut Option<Vec<LockName>>,
    name: &LockName,
) -> &'a mut Slot {
    let slot = slots
        .entry(name.clone())
        .or_insert_with_key(|name| Slot::new(Key::new(name.clone())));
    if let Some(touched) = touched
        && slot.key.record()
    {
        touched.push(name.clone());
    }
    slot
}

impl Indexes {
    /// Updates `due` after a transition of a lease whose first key is here.
    fn reindex(&mut self, transition: &Transition) {
        let (before, after) = due_change(transition);
        replace(&mut self.due, before, after);
    }

    /// Updates the indexes and counts after a step on a key. `false` if the key need not be kept.
    fn update(&mut self, slot: &mut Slot, now: Timestamp) -> bool {
        let name = slot.key.name();
        let is_held = slot.key.holder_count() > 0;
        if is_held && !slot.is_listed && !slot.is_recent {
            slot.is_recent = true;
            self.recent.push(name.clone());
        }
        if !is_held && slot.is_listed {
            slot.is_listed = false;
            self.listed.remove(name);
        }
        let is_reserved = !is_held && !slot.key.queue().is_empty();
        self.reserved += usize::from(is_reserved);
        self.reserved -= usize::from(slot.is_reserved);
        slot.is_reserved = is_reserved;
        let is_running_call = is_held && name.is_call();
        self.calls += usize::from(is_running_call);
        self.calls -= usize::from(slot.is_running_call);
        slot.is_running_call = is_running_call;
        let remembers_until = slot.key.remembers_until();
        if let Some(until) = remembers_until
            && !slot.has_tombstones
        {
            slot.has_tombstones = true;
            self.tombstones.push_back((until, name.clone()));
        }
        self.remembered.update(slot);
        slot.has_tombstones || slot.is_recent || !slot.key.is_vacant(now)
    }
}

#[cfg(all(test, feature = "embedded", not(shuttle)))]
mod tests;
