//! The orders of one lane that have not been answered: batching, and their order.
//!
//! Orders that arrive while calls are under way go with the next call, and a lone order is sent at once. Calls are sent one after
//! the other on one connection, so orders run in the order in which they were submitted. Some have to be sent again; the library
//! then does not run the orders behind them on the same keys either, not even those of a call that was already sent. Nothing
//! else is sent until all of them are back in the queue.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forrst_lock::{LockName, Reading, StoreError, Timestamp};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::order::Order;
use super::reply::Done;

/// How many orders go with one call.
const MAX_BATCH: usize = 64;
/// How many calls of a lane are under way at once: while one is being answered, Redis can run the next.
const MAX_IN_FLIGHT: usize = 2;
/// More than this means that Redis does not keep up.
const MAX_QUEUED: usize = 100_000;
/// With how many keys an order is sent at most. Each time it is sent again, it has all keys it was found to need so far.
const MAX_NEEDED: usize = 256;

/// The answer to one order, with the server's time and name.
#[derive(Debug)]
pub(super) struct Answered {
    pub(super) done: Done,
    pub(super) now: Timestamp,
    pub(super) reading: Reading,
    /// The server that answered: see [`Replication`](super::replication::Replication).
    pub(super) instance: Arc<str>,
}

/// An order in the queue or in a call.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) order: Order,
    /// The locks that it names, then those that it was found to need.
    pub(super) names: Vec<LockName>,
    /// How many of `names` it names itself.
    pub(super) named: usize,
    /// Counts the jobs of the queue: the order in which they run.
    sequence: u64,
    pub(super) submitted: Instant,
    /// Redis has refused it once as late, which may be due to outdated bounds of the server's clock.
    pub(super) was_late: bool,
    answer: oneshot::Sender<Result<Answered, StoreError>>,
}

impl Job {
    /// Adds locks whose keys have to be declared. Returns whether it can be sent again.
    pub(super) fn needs(&mut self, names: Vec<LockName>) -> bool {
        let before = self.names.len();
        for name in names {
            if !self.names.contains(&name) {
                self.names.push(name);
            }
        }
        self.names.len() > before && self.names.len() <= MAX_NEEDED
    }

    pub(super) fn answer(self, answered: Answered) {
        // Fails if the caller has disconnected, who then needs no answer.
        let _ = self.answer.send(Ok(answered));
    }

    pub(super) fn fail(self, error: StoreError) {
        let _ = self.answer.send(Err(error));
    }
}

#[derive(Debug, Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    /// Its holder sends the next call.
    turn: tokio::sync::Mutex<()>,
    /// A call was answered, and those of its orders that have to be sent again are back in the queue.
    answered: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// By their sequence numbers.
    jobs: VecDeque<Job>,
    last_sequence: u64,
    /// How many tasks send calls.
    in_flight: usize,
    /// How many calls were sent.
    sent: u64,
    /// How many of them have not been answered.
    unanswered: usize,
    /// Some orders have to be sent again, and orders behind them may be under way.
    is_repeating: bool,
    /// Redis was full. A call with acquires in it may be refused as a whole then, so the others are sent apart from them.
    is_full: bool,
}

/// The orders of one call, until it is answered.
#[derive(Debug)]
pub(super) struct Batch<'a> {
    queue: &'a Queue,
    pub(super) jobs: Vec<Job>,
    /// Counts the calls of the lane.
    pub(super) number: u64,
    /// It was sent before the call in front of it was answered.
    pub(super) is_pipelined: bool,
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        self.queue.state().unanswered -= 1;
        self.queue.answered.notify_waiters();
    }
}

impl Queue {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an order, which is sent with the next call.
    pub(super) fn push(
        &self,
        order: Order,
        submitted: Instant,
    ) -> Result<oneshot::Receiver<Result<Answered, StoreError>>, StoreError> {
        let (answer, answered) = oneshot::channel();
        let names = order.names();
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
            order,
            names,
            submitted,
            was_late: false,
            answer,
        });
        Ok(answered)
    }

    /// Whether one more task may send calls. If so, it counts as started, and has to use [`turns`](Self::turns).
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

    /// The orders of the next call. If there are none, the task of the caller no longer counts as one that sends calls.
    fn take_batch(&self) -> Option<Batch<'_>> {
        let mut state = self.state();
        let mut jobs: Vec<Job> = Vec::new();
        let is_full = state.is_full;
        let fits = |jobs: &[Job], next: &Job| {
            let is_same = |job: &Job| job.order.runs_when_full() == next.order.runs_when_full();
            jobs.len() < MAX_BATCH && (!is_full || jobs.first().is_none_or(is_same))
        };
        while let Some(job) = state.jobs.pop_front_if(|next| fits(&jobs, next)) {
            // An order whose caller has given up is not sent.
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

    /// Puts orders that have to be sent again back where they were.
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
    queue: &'a Queue,
    has_ended: bool,
}

impl<'a> Turns<'a> {
    /// The orders of the next call, once it may be sent; it has to be sent before the guard is dropped. `None` when there is nothing
    /// left to send.
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
