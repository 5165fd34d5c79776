//! The thread of a durable store.

use std::collections::HashSet;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::Duration;

use forrst_lock::model::{
    Command, End, Env, Held, Key, NotHeld, Outcome, Transition, Withdrawal, Withdrawn,
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

/// How many partitions of the names mint fences. Only the largest fence is written: after a restart all go on above it.
const PARTITIONS: u64 = 64;

/// What an engine begins with.
#[derive(Debug)]
pub(crate) struct Start {
    /// The keys, as the journal has them: what has run out since ends in the next steps.
    pub(crate) table: Table,
    /// The largest fence that was ever given out.
    pub(crate) last_fence: Option<Fence>,
    /// The time of the last commit.
    pub(crate) written_at: Timestamp,
    /// Leases up to this fence may have run out without this clock having noticed, and cannot be extended.
    pub(crate) uncertain: Option<Fence>,
}

/// Runs commands, and writes what they change before anybody learns of it.
pub(crate) struct Engine<J> {
    journal: J,
    table: Table,
    fences: Vec<Fences>,
    hasher: RandomState,
    nodes: Arc<Nodes>,
    uncertain: Option<Fence>,
    round: Round,
    /// Leases that have run out, and that the journal still has. They are written when something else is, or in a sweep.
    stale: HashSet<LeaseId>,
    /// The keys of those that ran out after the last commit: only their own time says so.
    expired: HashSet<LockName>,
    /// The time of the last commit.
    written_at: Timestamp,
    /// Calls that have to be rolled back: given up by their callers, or granted to waiters who had gone.
    pub(super) rollbacks: Vec<(LockName, Ticket)>,
    failures: Failures,
}

/// What was done since the last commit.
#[derive(Default)]
struct Round {
    /// Leases that have to be written before anybody is answered.
    dirty: HashSet<LeaseId>,
    withdrawals: Vec<(LockName, Withdrawal)>,
    /// An answer says that a lease has run out, and the journal does not know yet that it is so late.
    needs_time: bool,
    /// What has happened, and when.
    transitions: Vec<(Reading, Transition)>,
    /// Calls that were rolled back.
    rolled_back: Vec<(LockName, Ticket)>,
    /// Answers to be given after the commit.
    answers: Vec<(oneshot::Sender<Outcomes>, Answer<Outcome>)>,
    sweeps: Vec<(oneshot::Sender<Result<usize, StoreError>>, usize)>,
    reads: Vec<Box<dyn Read>>,
    probes: Vec<oneshot::Sender<Result<(), StoreError>>>,
}

type Outcomes = Result<Answer<Outcome>, StoreError>;

impl Round {
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
        table.make_undoable();
        Self {
            journal,
            table,
            fences: (0..PARTITIONS).map(|_| Fences::after(last_fence)).collect(),
            hasher: RandomState::new(),
            nodes,
            uncertain,
            round: Round::default(),
            stale: HashSet::new(),
            expired: HashSet::new(),
            written_at,
            rollbacks: Vec::new(),
            failures: Failures::default(),
        }
    }

    /// Works until the store is dropped and everything that was handed in is done.
    pub(super) fn run(mut self, inbox: &Inbox) {
        let mut batch = Vec::new();
        loop {
            let patience = match self.rollbacks.is_empty() {
                true => None,
                false => Some(self.failures.pause().unwrap_or(Duration::ZERO)),
            };
            let is_open = inbox.receive(&mut batch, patience);
            if !is_open && (self.rollbacks.is_empty() || self.failures.is_any()) {
                // What is not rolled back by now ends with its lease.
                return;
            }
            self.run_batch(&mut batch);
        }
    }

    /// One transaction.
    pub(super) fn run_batch(&mut self, batch: &mut Vec<Message>) {
        let is_probe = |message: &Message| matches!(message, Message::Probe(_));
        // A rollback must not make others wait for a commit that fails.
        let puts_off = self.failures.pause().is_some() && !batch.iter().any(is_probe);
        let mut given_up = Vec::new();
        if !puts_off {
            for (name, ticket) in std::mem::take(&mut self.rollbacks) {
                self.roll_back(name, ticket);
            }
        }
        for message in batch.drain(..) {
            match message {
                Message::Abandon(name, ticket) if puts_off => given_up.push((name, ticket)),
                other => self.handle(other),
            }
        }
        let read_at = self.journal.now();
        let reads = std::mem::take(&mut self.round.reads);
        let reads = reads.into_iter().filter(|read| read.is_awaited());
        let reads: Vec<_> = reads.collect();
        let mut names = reads.iter().map(|read| read.name());
        // Reads are answered even if the time cannot be written: they grant nothing.
        let shows_end = names.any(|name| self.needs_time(name, read_at));
        // Whether it can write again is only known when it has.
        let must_try = self.failures.is_any() && !self.round.probes.is_empty();
        let must_write = must_try || self.round.is_dirty() || self.round.needs_time;
        let is_sweep = !self.round.sweeps.is_empty();
        let may_write = shows_end || is_sweep && !self.stale.is_empty();
        let failed = if must_write || may_write && self.failures.pause().is_none() {
            self.commit().err().map(|error| error.to_string())
        } else {
            None
        };
        let mut round = std::mem::take(&mut self.round);
        let sweeps = std::mem::take(&mut round.sweeps);
        given_up.append(&mut round.rolled_back);
        if let Some(why) = &failed {
            self.failures.add(why);
        }
        match failed.as_ref().filter(|_| must_write) {
            Some(why) => self.fail(round, why, read_at),
            None => {
                self.finish(round, read_at);
                if !puts_off {
                    given_up.clear();
                }
            }
        }
        for read in reads {
            read.answer(&mut self.table, read_at);
        }
        self.leave_queues(given_up);
        if is_sweep && !self.failures.is_any() {
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
                    // What is answered as expired must stay so after a reboot, whatever the wall clock says then.
                    self.round.needs_time |= is_stale || self.expired.len() > before;
                    self.round.answers.push((to, answer));
                }
            }
            Message::Abandon(name, ticket) => self.roll_back(name, ticket),
            Message::Sweep(limit, reply) => {
                if let Some(to) = reply.begin() {
                    let count = self.sweep(limit);
                    self.round.sweeps.push((to, count));
                }
            }
            Message::Read(read) => self.round.reads.push(read),
            Message::Probe(to) => self.round.probes.push(to),
        }
    }

    /// Whether the time has to be written before this key is shown; or all keys, without a name.
    fn needs_time(&self, name: Option<&LockName>, now: Timestamp) -> bool {
        let written_at = self.written_at;
        let Some(name) = name else {
            return !self.expired.is_empty() || self.table.has_run_out(written_at, now);
        };
        let has_run_out = |key: &Key| {
            let mut ends = key.holders().map(|holder| holder.lease.expires_at);
            key.live_count(now) < key.holder_count()
                && ends.any(|end| end > written_at && end <= now)
        };
        self.expired.contains(name) || self.table.get(name).is_some_and(has_run_out)
    }

    fn roll_back(&mut self, name: LockName, ticket: Ticket) {
        let call = (name.clone(), ticket);
        self.run_command(&Command::Abandon { name, ticket });
        self.round.rolled_back.push(call);
    }

    /// Calls that are given up while the journal cannot be written leave their queues, if nothing else comes of it. The others
    /// have to be rolled back later.
    fn leave_queues(&mut self, given_up: Vec<(LockName, Ticket)>) {
        for (name, ticket) in given_up {
            let abandon = Command::Abandon {
                name: name.clone(),
                ticket,
            };
            let now = self.run_command(&abandon).now;
            let round = std::mem::take(&mut self.round);
            if round.is_dirty() {
                self.undo(&round, now);
                self.rollbacks.push((name, ticket));
            } else {
                self.finish(round, now);
            }
        }
        self.rollbacks.sort_unstable();
        self.rollbacks.dedup();
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
            // It is remembered, whether or not the attempt had anything.
            let withdrawal = key.withdrawals().last().cloned();
            let withdrawal = withdrawal.map(|it| (name.clone(), it));
            self.round.withdrawals.extend(withdrawal);
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
        let outcome = match table.step_single_by(command, now, &mut mint, &mut transitions) {
            Some(outcome) => outcome,
            None => {
                let mut env = Env::single_node(now, &mut mint, table.memory);
                step_any(&mut [table], &|_| 0, command, &mut env, &mut transitions)
            }
        };
        for transition in transitions.drain(..) {
            self.note(&transition);
            self.round.transitions.push((reading, transition));
        }
        self.table.spare = transitions;
        outcome
    }

    /// What has to be written because of a transition.
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
            self.round.dirty.insert(id);
            return;
        }
        self.stale.insert(id);
        if lease.expires_at > self.written_at {
            self.expired.extend(lease.locks.names().cloned());
        }
    }

    /// Whether this is about a lease that may have run out.
    fn is_uncertain(&self, held: &Held) -> bool {
        let Some(uncertain) = self.uncertain else {
            return false;
        };
        let key = self.table.get(&held.name);
        let leases = key.into_iter().flat_map(Key::holders).map(|it| &it.lease);
        let mut meant = leases.filter(|lease| {
            lease.owner == held.owner && held.fence.is_none_or(|fence| fence == lease.fence)
        });
        // If several could be meant, the model says so.
        match (meant.next(), meant.next()) {
            (Some(lease), None) => lease.fence <= uncertain,
            _ => false,
        }
    }

    fn commit(&mut self) -> Result<(), J::Error> {
        let leases = self.round.dirty.union(&self.stale).map(|id| {
            let (name, fence) = id;
            (id, self.table.get(name).and_then(|key| key.holder(*fence)))
        });
        let changes = Changes {
            leases: leases.collect(),
            withdrawals: &self.round.withdrawals,
            last_fence: self.fences.iter().filter_map(Fences::last).max(),
        };
        self.written_at = self.journal.commit(&changes)?;
        self.stale.clear();
        self.expired.clear();
        self.failures.end();
        Ok(())
    }

    /// Reports what has happened, wakes, answers.
    fn finish(&mut self, round: Round, now: Timestamp) {
        self.table.accept(now);
        for (reading, transition) in round.transitions {
            let rollback = notify(&self.nodes, &transition, reading);
            if let Some(Command::Abandon { name, ticket }) = rollback {
                self.rollbacks.push((name, ticket));
            }
        }
        // Nobody may be waiting any more, here and below.
        for (to, answer) in round.answers {
            let _ = to.send(Ok(answer));
        }
        if !round.probes.is_empty() {
            let probed = self.journal.probe().map_err(|error| error.to_string());
            for to in round.probes {
                let probed = probed.clone();
                let _ = to.send(probed.map_err(|why| StoreError::NotDone(why.into())));
            }
        }
    }

    /// Puts the keys back as they were, with everyone who waited for them, and says so.
    fn fail(&mut self, round: Round, why: &str, now: Timestamp) {
        self.undo(&round, now);
        for (to, _) in round.answers {
            let _ = to.send(Err(StoreError::MaybeDone(why.into())));
        }
        for to in round.probes {
            let _ = to.send(Err(StoreError::NotDone(why.into())));
        }
    }

    fn undo(&mut self, round: &Round, now: Timestamp) {
        let transitions = round.transitions.iter();
        self.table
            .undo(transitions.map(|(_, transition)| transition), now);
    }
}
