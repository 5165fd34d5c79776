//! The commands of a partition group that have not been answered: how they are batched, and kept in their order.
//!
//! Commands that arrive while calls are under way go with the next call, and a lone command is sent at once. Calls are sent one after
//! the other on one connection, so commands run in the order in which they were submitted. If one has to be sent again, the library
//! does not run later commands on its keys either, including those of a call that was already sent. Nothing else is sent until all of
//! them are back in the queue.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forrst_lock::{LockName, Reading, StoreError, Timestamp};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::command::LibraryCommand;
use super::reply::CommandResult;

/// How many commands go with one call at most.
const MAX_BATCH: usize = 64;
/// How many calls of a group are under way at once: while one is being answered, Redis can run the next.
const MAX_IN_FLIGHT: usize = 2;
/// Longer queues are refused: Redis does not keep up.
const MAX_QUEUED: usize = 100_000;
/// With how many keys a command is sent at most. Each time it is sent again, all keys that it was found to need are declared.
const MAX_NEEDED: usize = 256;

/// The answer to one command, with the server's time and instance id.
#[derive(Debug)]
pub(super) struct CommandAnswer {
    pub(super) result: CommandResult,
    pub(super) now: Timestamp,
    pub(super) reading: Reading,
    /// The server that answered: see [`Replication`](super::replication::Replication).
    pub(super) instance: Arc<str>,
}

/// A command in the queue or in a call.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) command: LibraryCommand,
    /// The locks that the command names, then those that it was found to need.
    pub(super) names: Vec<LockName>,
    /// How many of `names` the command names itself.
    pub(super) named: usize,
    /// Numbers the jobs in the order in which they run.
    sequence: u64,
    pub(super) submitted: Instant,
    /// Redis has refused it once as too late, which may be due to outdated bounds of the server's clock.
    pub(super) was_late: bool,
    answer: oneshot::Sender<Result<CommandAnswer, StoreError>>,
}

impl Job {
    /// Adds locks whose keys have to be declared. Returns whether the job can be sent again.
    pub(super) fn needs(&mut self, names: Vec<LockName>) -> bool {
        let before = self.names.len();
        for name in names {
            if !self.names.contains(&name) {
                self.names.push(name);
            }
        }
        self.names.len() > before && self.names.len() <= MAX_NEEDED
    }

    pub(super) fn answer(self, answered: CommandAnswer) {
        // Fails if the caller has disconnected, and needs no answer.
        let _ = self.answer.send(Ok(answered));
    }

    pub(super) fn fail(self, error: StoreError) {
        let _ = self.answer.send(Err(error));
    }
}

#[derive(Debug, Default)]
pub(super) struct CommandQueue {
    state: Mutex<QueueState>,
    /// The task that holds this sends the next call.
    turn: tokio::sync::Mutex<()>,
    /// Notified when a call was answered, and its commands that have to be sent again are back in the queue.
    answered: Notify,
}

#[derive(Debug, Default)]
struct QueueState {
    /// Sorted by sequence number.
    jobs: VecDeque<Job>,
    last_sequence: u64,
    /// How many tasks send calls.
    in_flight: usize,
    /// How many calls were sent.
    sent: u64,
    /// How many of them have not been answered.
    unanswered: usize,
    /// Some commands have to be sent again, and later ones may be under way.
    is_repeating: bool,
    /// Redis was full. It may then refuse a call with acquires as a whole, so other commands are sent in separate calls.
    is_full: bool,
}

/// The commands of a call, until it is answered.
#[derive(Debug)]
pub(super) struct Batch<'a> {
    queue: &'a CommandQueue,
    pub(super) jobs: Vec<Job>,
    /// Numbers the calls of the group.
    pub(super) number: u64,
    /// Sent before the previous call was answered.
    pub(super) is_pipelined: bool,
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        self.queue.state().unanswered -= 1;
        self.queue.answered.notify_waiters();
    }
}

impl CommandQueue {
    fn state(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a command, which is sent with the next call.
    pub(super) fn push(
        &self,
        command: LibraryCommand,
        submitted: Instant,
    ) -> Result<oneshot::Receiver<Result<CommandAnswer, StoreError>>, StoreError> {
        let (answer, answered) = oneshot::channel();
        let names = command.names();
        let mut state = self.state();
        if state.jobs.len() >= MAX_QUEUED {
            let why = "too many commands wait for Redis";
            return Err(StoreError::NotDone(why.into()));
        }
        state.last_sequence += 1;
        let sequence = state.last_sequence;
        state.jobs.push_back(Job {
            named: names.len(),
            sequence,
            command,
            names,
            submitted,
            was_late: false,
            answer,
        });
        Ok(answered)
    }

    /// Whether one more task may send calls. If so, the task counts as started, and has to use [`turns`](Self::turns).
    pub(super) fn begin_call(&self) -> bool {
        let mut state = self.state();
        let may_begin = state.in_flight < MAX_IN_FLIGHT && !state.jobs.is_empty();
        state.in_flight += usize::from(may_begin);
        may_begin
    }

    pub(super) fn turns(&self) -> Turns<'_> {
        Turns {
            queue: self,
            has_ended: false,
        }
    }

    /// The commands of the next call. If there are none, the caller's task no longer counts as one that sends calls.
    fn take_batch(&self) -> Option<Batch<'_>> {
        let mut state = self.state();
        let mut jobs: Vec<Job> = Vec::new();
        let is_full = state.is_full;
        let fits = |jobs: &[Job], next: &Job| {
            let is_same = |job: &Job| job.command.runs_when_full() == next.command.runs_when_full();
            jobs.len() < MAX_BATCH && (!is_full || jobs.first().is_none_or(is_same))
        };
        while let Some(job) = state.jobs.pop_front_if(|next| fits(&jobs, next)) {
            // A command whose caller has disconnected is not sent.
            if !job.answer.is_closed() {
                jobs.push(job);
            }
        }
        state.is_repeating = false;
        if jobs.is_empty() {
            state.in_flight -= 1;
            return None;
        }
        let is_pipelined = state.unanswered > 0;
        state.unanswered += 1;
        state.sent += 1;
        Some(Batch {
            queue: self,
            jobs,
            number: state.sent,
            is_pipelined,
        })
    }

    /// Whether Redis was full, as of the last acquires that were sent.
    pub(super) fn set_full(&self, is_full: bool) {
        self.state().is_full = is_full;
    }

    /// Puts commands that have to be sent again back at their positions.
    pub(super) fn put_back(&self, jobs: Vec<Job>) {
        let mut state = self.state();
        state.is_repeating |= !jobs.is_empty();
        for job in jobs.into_iter().rev() {
            let index = state.jobs.partition_point(|it| it.sequence < job.sequence);
            state.jobs.insert(index, job);
        }
    }
}

/// One of the tasks that send calls, batch after batch.
pub(super) struct Turns<'a> {
    queue: &'a CommandQueue,
    has_ended: bool,
}

impl<'a> Turns<'a> {
    /// Waits until the next call may be sent, and returns its commands. The call has to be sent before the guard is dropped. `None` when
    /// there is nothing left to send.
    pub(super) async fn next_batch(
        &mut self,
    ) -> Option<(tokio::sync::MutexGuard<'a, ()>, Batch<'a>)> {
        let turn = self.queue.turn.lock().await;
        loop {
            let answered = self.queue.answered.notified();
            let may_send = {
                let state = self.queue.state();
                !state.is_repeating || state.unanswered == 0
            };
            if may_send {
                break;
            }
            answered.await;
        }
        let batch = self.queue.take_batch();
        self.has_ended = batch.is_none();
        Some((turn, batch?))
    }
}

impl Drop for Turns<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            self.queue.state().in_flight -= 1;
        }
    }
}
