//! The thread that does all the work: applies what has come in, writes it down, then answers.

use std::time::Duration;

use forrst_lock::state::{Abandon, Command, Extend, Settle, State, Woken};
use forrst_lock::{
    Answer, Fence, Lease, LockName, NotHeld, ReleaseMemory, StoreError, Ticket, Timestamp, Waiter,
    Wake,
};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::oneshot;

use super::EmbeddedError;
use super::clock::{Clock, Clocks};
use super::journal::{Changes, Journal};
use crate::table::Table;

/// How many jobs share one transaction at most.
const MAX_BATCH: usize = 4096;
/// How many releases are remembered.
const MAX_REMEMBERED: usize = 131_072;

/// What the thread is told.
pub(super) enum Message {
    /// Has to be written down before it is answered.
    Job(Job),
    /// Looks at what is written down, and changes nothing.
    Look(Job),
    /// Undo a call. It is owed until a commit has done it.
    Abandon(LockName, Ticket),
    /// Says whether the store can write.
    Probe(oneshot::Sender<Result<(), StoreError>>),
}

/// Something to do, and what to do with its outcome when that has reached the disk.
pub(super) struct Job(Box<Work>);

/// Without a desk the work cannot be done, and the reply says so.
type Work = dyn FnOnce(Option<&mut Desk>) -> Reply + Send;

/// Tells the one who asked: done, or why not.
type Reply = Box<dyn FnOnce(Result<(), &EmbeddedError>) + Send>;

impl Job {
    pub(super) fn new<T: Send + 'static>(
        work: impl FnOnce(&mut Desk) -> T + Send + 'static,
        reply: impl FnOnce(Result<T, StoreError>) + Send + 'static,
    ) -> Self {
        Self(Box::new(move |desk| {
            let outcome = desk.map(work);
            Box::new(move |committed| {
                reply(match (outcome, committed) {
                    (Some(outcome), Ok(())) => Ok(outcome),
                    (Some(_), Err(error)) => Err(StoreError::MaybeDone(error.to_string().into())),
                    (None, failed) => {
                        let why = failed.err().map(ToString::to_string);
                        let why = why.unwrap_or_else(|| "the store is not readable".to_owned());
                        Err(StoreError::NotDone(why.into()))
                    }
                });
            })
        }))
    }
}

/// What jobs work on: the state of all keys, ahead of what is written down.
pub(super) struct Desk {
    table: Table,
    clock: Clock,
    last_fence: Option<Fence>,
    /// Those who are told after the commit.
    woken: Vec<(LockName, Woken<Waiter>)>,
    must_write: bool,
    must_tidy: bool,
    /// The clock at the last commit.
    written_at: Timestamp,
    /// Read-only calls are answered as of this time, at which whatever has run out is written down to have done so.
    shown_at: Option<Timestamp>,
    /// Leases up to this fence may have run out while the machine was off, and cannot be extended.
    uncertain: Option<Fence>,
}

impl Desk {
    fn load(
        journal: &mut impl Journal,
        clocks: Box<dyn Clocks>,
        last_fence: Option<Fence>,
        memory: ReleaseMemory,
    ) -> Result<Self, EmbeddedError> {
        let snapshot = journal.load()?;
        let clock = Clock::resume(clocks, snapshot.clock.as_ref(), |now| {
            !snapshot.has_live_leases(now)
        });
        let now = clock.now();
        let written_at = snapshot.clock.as_ref().map_or(now, |last| last.now);
        let mut table = Table::new(memory, MAX_REMEMBERED);
        table.track_changes();
        // A fence that was handed out and then not written down must not be handed out again.
        let mut last_fence = last_fence.max(snapshot.last_fence);
        for entry in snapshot.keys {
            let holder = entry.holder.filter(|holder| holder.lease.is_live(now));
            last_fence = last_fence.max(holder.as_ref().map(|holder| holder.lease.fence));
            let mut state = State::restored(entry.name.clone(), holder, entry.releases);
            state.forget_old_releases(now);
            if state.is_vacant(now) {
                table.clear_away([entry.name]);
            } else {
                table.restore(entry.name, state);
            }
        }
        let uncertain = last_fence.filter(|_| clock.is_slow());
        if uncertain.is_some() && table.held() > 0 {
            tracing::warn!(
                leases = table.held(),
                "the machine was started again, and its clock is behind that of the last commit: \
                 leases from before end by themselves and cannot be extended"
            );
        }
        Ok(Self {
            table,
            clock,
            last_fence,
            woken: Vec::new(),
            must_write: false,
            must_tidy: false,
            written_at,
            shown_at: None,
            uncertain,
        })
    }

    /// The time of a read-only call.
    pub(super) fn shown_at(&self) -> Timestamp {
        self.shown_at.unwrap_or_else(|| self.clock.now())
    }

    /// Read-only calls are answered after the next commit. What they show as expired must stay so after a reboot, whatever
    /// the wall clock says then: if a lease has run out since the last commit, the time is written down first.
    fn prepare_to_show(&mut self) {
        let now = self.clock.now();
        self.shown_at = Some(now);
        self.must_write |= self.table.last_expiry(now) > Some(self.written_at);
    }

    pub(super) fn table(&self) -> &Table {
        &self.table
    }

    /// One step on one key.
    pub(super) fn run<C: Command<Waiter>>(
        &mut self,
        name: &LockName,
        command: C,
    ) -> Answer<C::Outcome> {
        let now = self.clock.now();
        let last_fence = &mut self.last_fence;
        let mut mint = || {
            let next = last_fence.map_or(Some(Fence::FIRST), Fence::next)?;
            *last_fence = Some(next);
            Some(next)
        };
        let done = self.table.apply(name, command, now, &mut mint);
        let woken = done.woken.into_iter().map(|woken| (name.clone(), woken));
        self.woken.extend(woken);
        // The answer tells it, so it must stay true after a reboot.
        self.must_write |= done
            .expired
            .as_ref()
            .is_some_and(|expired| expired.expires_at > self.written_at);
        Answer {
            outcome: done.outcome,
            now,
            expired: done.expired,
        }
    }

    /// As [`run`](Self::run), where it is certain that the lease has not run out.
    pub(super) fn extend(
        &mut self,
        name: &LockName,
        command: Extend,
    ) -> Answer<Result<Lease, NotHeld>> {
        let lease = self.table.get(name).and_then(State::lease);
        let is_uncertain = lease.is_some_and(|lease| {
            Some(lease.fence) <= self.uncertain
                && lease.owner == command.owner
                && command.fence.is_none_or(|fence| fence == lease.fence)
        });
        if !is_uncertain {
            return self.run(name, command);
        }
        let Answer { now, expired, .. } = self.run(name, Settle);
        Answer {
            outcome: Err(NotHeld::NotFound),
            now,
            expired,
        }
    }

    pub(super) fn expire(&mut self, limit: usize) -> Vec<Lease> {
        let now = self.clock.now();
        let must_write = self.must_write;
        let mut expired = Vec::new();
        while expired.len() < limit
            && let Some(name) = self.table.first_due(now)
        {
            expired.extend(self.run(&name, Settle).expired);
        }
        self.table.collect_tombstones(now);
        // Nobody has asked: it is written when there is time to tidy up.
        self.must_write = must_write;
        self.must_tidy = true;
        expired
    }

    /// Has the next commit made, whether or not anything has changed.
    pub(super) fn write_anyway(&mut self) {
        self.must_write = true;
    }

    /// Writes down what has to be. What is over goes with it, or alone when there is time to tidy up.
    fn commit(&mut self, journal: &mut impl Journal) -> Result<(), EmbeddedError> {
        let changes = self.table.take_changes();
        let must_write = std::mem::take(&mut self.must_write) || !changes.made.is_empty();
        let may_write = self.must_tidy && !changes.over.is_empty();
        if !must_write && !may_write {
            self.table.clear_away(changes.over);
            return Ok(());
        }
        let mut names = changes.made;
        names.extend_from_slice(&changes.over);
        names.sort_unstable();
        names.dedup();
        let keys = names.iter().map(|name| (name, self.table.get(name)));
        let clock = self.clock.reading();
        let read = clock.now;
        let committed = journal.commit(&Changes {
            keys: keys.collect(),
            last_fence: self.last_fence,
            clock,
        });
        if committed.is_ok() {
            self.written_at = read;
        }
        match committed {
            // Nobody was promised anything by it.
            Err(error) if !must_write => {
                tracing::warn!(%error, "the journal could not be tidied up");
                self.table.clear_away(changes.over);
                Ok(())
            }
            committed => committed,
        }
    }
}

/// Where the machine's clocks are read.
pub(super) type ReadClocks = Box<dyn Fn() -> Box<dyn Clocks> + Send>;

pub(super) struct Writer<J> {
    journal: J,
    messages: UnboundedReceiver<Message>,
    clocks: ReadClocks,
    memory: ReleaseMemory,
    /// None after a failure, until the journal could be read again.
    desk: Option<Desk>,
    last_fence: Option<Fence>,
    /// Whether the last transaction could not be made.
    has_failed: bool,
    /// Calls to be undone: given up by their callers, or granted to waiters who had gone.
    owed: Vec<(LockName, Ticket)>,
}

/// How long to leave a journal alone that has just failed, when nobody asks.
const PAUSE: Duration = Duration::from_millis(250);

impl<J: Journal> Writer<J> {
    pub(super) fn new(
        mut journal: J,
        messages: UnboundedReceiver<Message>,
        clocks: ReadClocks,
        memory: ReleaseMemory,
    ) -> Result<Self, EmbeddedError> {
        let desk = Desk::load(&mut journal, clocks(), None, memory)?;
        Ok(Self {
            journal,
            messages,
            clocks,
            memory,
            last_fence: desk.last_fence,
            desk: Some(desk),
            has_failed: false,
            owed: Vec::new(),
        })
    }

    /// Works until the store is dropped and everything that was handed in is done.
    pub(super) fn run(mut self) {
        let mut batch = Vec::new();
        loop {
            if self.owed.is_empty() {
                match self.messages.blocking_recv() {
                    Some(message) => batch.push(message),
                    None => return,
                }
            }
            while batch.len() < MAX_BATCH
                && let Ok(message) = self.messages.try_recv()
            {
                batch.push(message);
            }
            let has_asked = !batch.is_empty();
            if !self.work_off(std::mem::take(&mut batch)) && !has_asked {
                if self.messages.is_closed() {
                    // What is still owed ends with its lease.
                    return;
                }
                std::thread::sleep(PAUSE);
            }
        }
    }

    /// One transaction; whether it could be made.
    fn work_off(&mut self, batch: Vec<Message>) -> bool {
        self.recover();
        if let Some(desk) = &mut self.desk {
            for (name, ticket) in &self.owed {
                desk.run(name, Abandon { ticket: *ticket });
            }
        }
        let mut replies: Vec<Reply> = Vec::with_capacity(batch.len());
        let mut looks = Vec::new();
        let mut probes = Vec::new();
        for message in batch {
            match message {
                Message::Job(job) => replies.push(job.0(self.desk.as_mut())),
                Message::Look(job) => looks.push(job),
                Message::Probe(reply) => {
                    probes.push(reply);
                    // Whether it can write again is only known when it has.
                    if let Some(desk) = &mut self.desk
                        && self.has_failed
                    {
                        desk.write_anyway();
                    }
                }
                Message::Abandon(name, ticket) => {
                    if let Some(desk) = &mut self.desk {
                        desk.run(&name, Abandon { ticket });
                    }
                    self.owed.push((name, ticket));
                }
            }
        }
        let committed = match &mut self.desk {
            Some(desk) => {
                if !looks.is_empty() {
                    desk.prepare_to_show();
                }
                desk.commit(&mut self.journal)
            }
            None => Ok(()),
        };
        for reply in replies {
            reply(committed.as_ref().copied());
        }
        self.has_failed = self.desk.is_none() || committed.is_err();
        self.answer_probes(probes, committed.as_ref().err());
        let could_write = match committed {
            Ok(()) => {
                if self.desk.is_some() {
                    self.owed.clear();
                }
                self.tell_the_woken();
                self.desk.is_some()
            }
            Err(error) => {
                tracing::error!(%error, "the journal could not be written; nothing was done");
                // What is in memory is ahead of what is written. Those who wait are told by their closed channels.
                self.last_fence = self.desk.take().and_then(|desk| desk.last_fence);
                false
            }
        };
        if !looks.is_empty() {
            self.recover();
        }
        for look in looks {
            look.0(self.desk.as_mut())(Ok(()));
        }
        could_write
    }

    /// All that came together share one probe.
    fn answer_probes(
        &mut self,
        probes: Vec<oneshot::Sender<Result<(), StoreError>>>,
        failed: Option<&EmbeddedError>,
    ) {
        if probes.is_empty() {
            return;
        }
        let problem = match failed {
            Some(error) => Some(error.to_string()),
            None if self.desk.is_none() => Some("the store is not readable".to_owned()),
            None => self.journal.probe().err().map(|error| error.to_string()),
        };
        for probe in probes {
            let outcome = match &problem {
                Some(problem) => Err(StoreError::NotDone(problem.clone().into())),
                None => Ok(()),
            };
            let _ = probe.send(outcome);
        }
    }

    fn tell_the_woken(&mut self) {
        let Some(desk) = &mut self.desk else { return };
        for (name, woken) in std::mem::take(&mut desk.woken) {
            let is_grant = matches!(woken.wake, Wake::Granted(_));
            if !woken.waiter.wake(woken.wake) && is_grant {
                self.owed.push((name, woken.ticket));
            }
        }
        if std::mem::take(&mut desk.must_tidy) {
            self.journal.tidy();
        }
    }

    /// Reads the journal again after a failure.
    fn recover(&mut self) {
        if self.desk.is_some() {
            return;
        }
        let clocks = (self.clocks)();
        match Desk::load(&mut self.journal, clocks, self.last_fence, self.memory) {
            Ok(desk) => self.desk = Some(desk),
            Err(error) => tracing::error!(%error, "the journal cannot be read"),
        }
    }
}
