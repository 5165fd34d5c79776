//! The engine of a durable store: the model in memory, one batch of messages and one commit at a time.
//!
//! The commands of a batch run in memory first; then their changes are written. If the commit fails, their steps are rolled back.

use std::collections::HashSet;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::Duration;

use forrst_lock::model::{
    Command, End, Env, Key, LeaseRef, NotHeld, Outcome, Transition, Withdrawal, Withdrawn,
};
use forrst_lock::{
    Answer, Fence, Fences, LockName, Locks, Nodes, Reading, StoreError, Ticket, Timestamp,
};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::calls::{Inbox, Message, Read};
use super::failures::Failures;
use super::{Changes, Journal, LeaseId};
use crate::fences::mint;
use crate::report::notify;
use crate::table::{Table, step_any};

/// How many partitions of the names mint fences. Only the largest fence is written: after a restart, all of them continue above it.
const PARTITIONS: u64 = 64;

/// The state with which an engine starts.
#[derive(Debug)]
pub(crate) struct Start {
    /// The keys, as the journal has them: leases that have expired since end in the next steps.
    pub(crate) table: Table,
    /// The largest fence that was ever granted.
    pub(crate) last_fence: Option<Fence>,
    /// The time of the last commit.
    pub(crate) written_at: Timestamp,
    /// After a reboot with a slow clock: leases up to this fence may have expired unnoticed, and cannot be extended.
    pub(crate) uncertain: Option<Fence>,
}

/// Runs commands, and writes what they change before it answers them or notifies the nodes.
pub(crate) struct Engine<J> {
    journal: J,
    table: Table,
    fences: Vec<Fences>,
    hasher: RandomState,
    nodes: Arc<Nodes>,
    uncertain: Option<Fence>,
    batch: Batch,
    /// Expired leases that the journal still has. They are deleted with the next commit, or in a sweep.
    stale: HashSet<LeaseId>,
    /// The keys of leases that expired after the last commit: the time in the journal does not show it yet.
    expired: HashSet<LockName>,
    /// The time of the last commit.
    written_at: Timestamp,
    /// Calls that have to be rolled back: given up by their callers, or granted when their waiters had disconnected.
    pub(super) pending_rollbacks: Vec<(LockName, Ticket)>,
    failures: Failures,
}

/// What was done since the last commit, and the answers that wait for the next one.
#[derive(Default)]
struct Batch {
    /// Leases that have to be written before the answers are sent.
    dirty: HashSet<LeaseId>,
    withdrawals: Vec<(LockName, Withdrawal)>,
    /// An answer says that a lease has expired, and the journal has no time yet that shows it.
    needs_time: bool,
    /// The transitions of all steps, and when they happened.
    transitions: Vec<(Reading, Transition)>,
    /// Calls that were rolled back.
    rolled_back: Vec<(LockName, Ticket)>,
    /// Answers to send after the commit.
    answers: Vec<(oneshot::Sender<CommandResult>, Answer<Outcome>)>,
    sweeps: Vec<(oneshot::Sender<Result<usize, StoreError>>, usize)>,
    reads: Vec<Box<dyn Read>>,
    probes: Vec<oneshot::Sender<Result<(), StoreError>>>,
}

type CommandResult = Result<Answer<Outcome>, StoreError>;

impl Batch {
    fn is_dirty(&self) -> bool {
        !self.dirty.is_empty() || !self.withdrawals.is_empty()
    }
}

impl<J: Journal> Engine<J> {
    pub(super) fn new(journal: J, start: Start, nodes: Arc<Nodes>) -> Self {
        let Start {
            mut table,
            last_fence,
            written_at,
            uncertain,
        } = start;
        table.enable_rollback();
        Self {
            journal,
            table,
            fences: (0..PARTITIONS).map(|_| Fences::after(last_fence)).collect(),
            hasher: RandomState::new(),
            nodes,
            uncertain,
            batch: Batch::default(),
            stale: HashSet::new(),
            expired: HashSet::new(),
            written_at,
            pending_rollbacks: Vec::new(),
            failures: Failures::default(),
        }
    }

    /// Runs until the store is dropped and all queued messages are handled.
    pub(super) fn run(mut self, inbox: &Inbox) {
        let mut messages = Vec::new();
        loop {
            let timeout = match self.pending_rollbacks.is_empty() {
                true => None,
                false => Some(self.failures.pause().unwrap_or(Duration::ZERO)),
            };
            let is_open = inbox.receive(&mut messages, timeout);
            if !is_open && (self.pending_rollbacks.is_empty() || self.failures.is_failing()) {
                // A call that is not rolled back by now is free when its lease expires.
                return;
            }
            self.run_batch(&mut messages);
        }
    }

    /// Handles messages, commits what they changed, and answers them.
    pub(super) fn run_batch(&mut self, messages: &mut Vec<Message>) {
        let is_probe = |message: &Message| matches!(message, Message::Probe(_));
        // A rollback must not make other calls wait for a commit that fails.
        let defers_rollbacks = self.failures.pause().is_some() && !messages.iter().any(is_probe);
        let mut given_up = Vec::new();
        if !defers_rollbacks {
            for (name, ticket) in std::mem::take(&mut self.pending_rollbacks) {
                self.roll_back_call(name, ticket);
            }
        }
        for message in messages.drain(..) {
            match message {
                Message::Abandon(name, ticket) if defers_rollbacks => given_up.push((name, ticket)),
                other => self.handle(other),
            }
        }
        let read_at = self.journal.now();
        let reads = std::mem::take(&mut self.batch.reads);
        let reads = reads.into_iter().filter(|read| read.is_awaited());
        let reads: Vec<_> = reads.collect();
        let mut names = reads.iter().map(|read| read.name());
        // Reads are answered even if the time cannot be written: they grant nothing.
        let reads_expiry = names.any(|name| self.needs_time(name, read_at));
        // Only a commit shows whether the journal can be written again.
        let must_retry = self.failures.is_failing() && !self.batch.probes.is_empty();
        let must_write = must_retry || self.batch.is_dirty() || self.batch.needs_time;
        let is_sweep = !self.batch.sweeps.is_empty();
        let may_write = reads_expiry || is_sweep && !self.stale.is_empty();
        let failed = if must_write || may_write && self.failures.pause().is_none() {
            self.commit().err().map(|error| error.to_string())
        } else {
            None
        };
        let mut batch = std::mem::take(&mut self.batch);
        let sweeps = std::mem::take(&mut batch.sweeps);
        given_up.append(&mut batch.rolled_back);
        if let Some(why) = &failed {
            self.failures.add(why);
        }
        match failed.as_ref().filter(|_| must_write) {
            Some(why) => self.fail(batch, why, read_at),
            None => {
                self.finish(batch, read_at);
                if !defers_rollbacks {
                    given_up.clear();
                }
            }
        }
        for read in reads {
            read.answer(&mut self.table, read_at);
        }
        self.leave_queues(given_up);
        if is_sweep && !self.failures.is_failing() {
            self.journal.tidy();
        }
        for (to, count) in sweeps {
            let _ = to.send(match failed.as_ref().filter(|_| must_write) {
                Some(why) => Err(StoreError::MaybeDone(why.as_str().into())),
                None => Ok(count),
            });
        }
    }

    fn handle(&mut self, message: Message) {
        match message {
            Message::Command(command, reply) => {
                if let Some(to) = reply.begin() {
                    let is_stale = command.names().any(|name| self.expired.contains(name));
                    let before = self.expired.len();
                    let answer = self.run_command(&command);
                    // A lease that was answered as expired must not be revived after a reboot with a slow wall clock.
                    self.batch.needs_time |= is_stale || self.expired.len() > before;
                    self.batch.answers.push((to, answer));
                }
            }
            Message::Abandon(name, ticket) => self.roll_back_call(name, ticket),
            Message::Sweep(limit, reply) => {
                if let Some(to) = reply.begin() {
                    let count = self.sweep(limit);
                    self.batch.sweeps.push((to, count));
                }
            }
            Message::Read(read) => self.batch.reads.push(read),
            Message::Probe(to) => self.batch.probes.push(to),
        }
    }

    /// Whether the time has to be written before this key is read; or, without a name, any key.
    fn needs_time(&self, name: Option<&LockName>, now: Timestamp) -> bool {
        let written_at = self.written_at;
        let Some(name) = name else {
            return !self.expired.is_empty() || self.table.has_expired(written_at, now);
        };
        let has_expired = |key: &Key| {
            let mut ends = key.holders().map(|holder| holder.lease.expires_at);
            key.live_count(now) < key.holder_count()
                && ends.any(|end| end > written_at && end <= now)
        };
        self.expired.contains(name) || self.table.get(name).is_some_and(has_expired)
    }

    fn roll_back_call(&mut self, name: LockName, ticket: Ticket) {
        let call = (name.clone(), ticket);
        self.run_command(&Command::Abandon { name, ticket });
        self.batch.rolled_back.push(call);
    }

    /// Rolls back calls while the journal cannot be written. A call that only leaves its queue changes nothing that has to be
    /// written; the others become pending rollbacks.
    fn leave_queues(&mut self, given_up: Vec<(LockName, Ticket)>) {
        for (name, ticket) in given_up {
            let abandon = Command::Abandon {
                name: name.clone(),
                ticket,
            };
            let now = self.run_command(&abandon).now;
            let batch = std::mem::take(&mut self.batch);
            if batch.is_dirty() {
                self.roll_back_batch(&batch, now);
                self.pending_rollbacks.push((name, ticket));
            } else {
                self.finish(batch, now);
            }
        }
        self.pending_rollbacks.sort_unstable();
        self.pending_rollbacks.dedup();
    }

    fn sweep(&mut self, limit: usize) -> usize {
        let now = self.journal.now();
        let mut count = 0;
        while count < limit
            && let Some(name) = self.table.first_due(now)
        {
            self.run_command(&Command::Settle(name));
            count += 1;
        }
        self.table.tidy(now);
        count
    }

    fn run_command(&mut self, command: &Command) -> Answer<Outcome> {
        if let Command::Extend(held, _) = command
            && self.is_uncertain(held)
        {
            let settle = Command::Settle(held.name.clone());
            let Answer { now, .. } = self.run_command(&settle);
            let outcome = Outcome::Lease(Err(NotHeld::NotFound));
            return Answer { outcome, now };
        }
        let at = Instant::now();
        let now = self.journal.now();
        let outcome = self.step(command, Reading { at, now });
        if let Command::Withdraw { name, .. } = command
            && outcome != Outcome::Withdrawn(Withdrawn::TooMany)
            && let Some(key) = self.table.get(name)
        {
            // It is remembered, whether or not the attempt had a claim or a lease.
            let withdrawal = key.withdrawals().last().cloned();
            let withdrawal = withdrawal.map(|it| (name.clone(), it));
            self.batch.withdrawals.extend(withdrawal);
        }
        Answer { outcome, now }
    }

    fn step(&mut self, command: &Command, reading: Reading) -> Outcome {
        let now = reading.now;
        let (table, fences, hasher) = (&mut self.table, &mut self.fences, &self.hasher);
        let index_of = |name: &LockName| {
            let partition = hasher.hash_one(name) % PARTITIONS;
            usize::try_from(partition).unwrap_or_default()
        };
        let mut mint = |locks: &Locks| mint(fences, index_of, locks, now);
        let mut transitions = std::mem::take(&mut table.spare);
        let outcome = match table.step_single_with(command, now, &mut mint, &mut transitions) {
            Some(outcome) => outcome,
            None => {
                let mut env = Env::single_node(now, &mut mint, table.memory);
                step_any(&mut [table], &|_| 0, command, &mut env, &mut transitions)
            }
        };
        for transition in transitions.drain(..) {
            self.note(&transition);
            self.batch.transitions.push((reading, transition));
        }
        self.table.spare = transitions;
        outcome
    }

    /// Notes which lease has to be written because of a transition.
    fn note(&mut self, transition: &Transition) {
        let Some(lease) = transition.lease() else {
            return;
        };
        let id = (lease.name().clone(), lease.fence);
        let is_expired = matches!(
            transition,
            Transition::Ended {
                cause: End::Expired,
                ..
            }
        );
        if !is_expired {
            self.batch.dirty.insert(id);
            return;
        }
        self.stale.insert(id);
        if lease.expires_at > self.written_at {
            self.expired.extend(lease.locks.names().cloned());
        }
    }

    /// Whether this names a lease that may have expired unnoticed.
    fn is_uncertain(&self, held: &LeaseRef) -> bool {
        let Some(uncertain) = self.uncertain else {
            return false;
        };
        let key = self.table.get(&held.name);
        let leases = key.into_iter().flat_map(Key::holders).map(|it| &it.lease);
        let mut meant = leases.filter(|lease| {
            lease.owner == held.owner && held.fence.is_none_or(|fence| fence == lease.fence)
        });
        // If several could be meant, the model answers that it is ambiguous.
        match (meant.next(), meant.next()) {
            (Some(lease), None) => lease.fence <= uncertain,
            _ => false,
        }
    }

    fn commit(&mut self) -> Result<(), J::Error> {
        let leases = self.batch.dirty.union(&self.stale).map(|id| {
            let (name, fence) = id;
            (id, self.table.get(name).and_then(|key| key.holder(*fence)))
        });
        let changes = Changes {
            leases: leases.collect(),
            withdrawals: &self.batch.withdrawals,
            last_fence: self.fences.iter().filter_map(Fences::last).max(),
        };
        self.written_at = self.journal.commit(&changes)?;
        self.stale.clear();
        self.expired.clear();
        self.failures.clear();
        Ok(())
    }

    /// Notifies the nodes, wakes waiters and answers callers.
    fn finish(&mut self, batch: Batch, now: Timestamp) {
        self.table.accept(now);
        for (reading, transition) in batch.transitions {
            let rollback = notify(&self.nodes, &transition, reading);
            if let Some(Command::Abandon { name, ticket }) = rollback {
                self.pending_rollbacks.push((name, ticket));
            }
        }
        // Callers may have given up, here and below.
        for (to, answer) in batch.answers {
            let _ = to.send(Ok(answer));
        }
        if !batch.probes.is_empty() {
            let probed = self.journal.probe().map_err(|error| error.to_string());
            for to in batch.probes {
                let probed = probed.clone();
                let _ = to.send(probed.map_err(|why| StoreError::NotDone(why.into())));
            }
        }
    }

    /// Rolls all steps back, with the queues of the keys, and answers with errors.
    fn fail(&mut self, batch: Batch, why: &str, now: Timestamp) {
        self.roll_back_batch(&batch, now);
        for (to, _) in batch.answers {
            let _ = to.send(Err(StoreError::MaybeDone(why.into())));
        }
        for to in batch.probes {
            let _ = to.send(Err(StoreError::NotDone(why.into())));
        }
    }

    fn roll_back_batch(&mut self, batch: &Batch, now: Timestamp) {
        let transitions = batch.transitions.iter();
        self.table
            .roll_back(transitions.map(|(_, transition)| transition), now);
    }
}
