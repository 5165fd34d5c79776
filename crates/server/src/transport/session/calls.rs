//! Runs the calls of a session. Requests that arrived together are polled together: on all threads if they are many and none of them
//! may wait for a lock, else in place, in their order.

use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::task::Poll;

use forrst_protocol::ErrorObject;
use futures_util::poll;
use tokio::runtime::Handle;
use tokio::task::{JoinSet, unconstrained};

use super::{FrameHold, Message, Received};
use crate::limits::Room;
use crate::transport::order::may_wait;

/// How many requests run together at most, and how many bytes their answers are expected to have at most, because answers are kept
/// until the client reads them.
const MAX_TOGETHER: usize = 64;
const MAX_BYTES_TOGETHER: usize = 256 * 1024;

/// With fewer calls than this, a task costs more than it gains.
const MIN_CALLS_PER_TASK: usize = 16;

type Call<M> = Pin<Box<dyn Future<Output = Done<M>> + Send>>;

/// A call that has ended.
pub(super) struct Done<M> {
    /// `None` if there is nothing to send.
    pub(super) answer: Option<M>,
    pub(super) hold: FrameHold,
}

/// Calls that were polled once.
struct Polled<M> {
    done: Vec<Done<M>>,
    waiting: Vec<Call<M>>,
}

/// The calls under way. When it is dropped, so are they, and waiting calls leave their queues.
pub(super) struct Calls<M> {
    free: usize,
    /// Calls that have their permits, and were not polled yet.
    begun: Vec<Call<M>>,
    /// How many requests they have; a batch has several.
    begun_requests: usize,
    /// Whether one of them may join the queue of a lock, so that their order matters.
    begun_may_wait: bool,
    tasks: JoinSet<Polled<M>>,
    workers: usize,
    /// The recent size of an answer, in bytes.
    usual_answer: usize,
}

/// A call has panicked where nothing catches panics, and its permits are lost.
#[derive(Debug)]
pub(super) struct Panicked;

impl<M: Message> Calls<M> {
    pub(super) fn new(permits: usize) -> Self {
        Self {
            free: permits,
            begun: Vec::new(),
            begun_requests: 0,
            begun_may_wait: false,
            tasks: JoinSet::new(),
            workers: Handle::current().metrics().num_workers(),
            // Not known yet.
            usual_answer: MAX_BYTES_TOGETHER / 16,
        }
    }

    pub(super) fn lack_permits_for<R>(&self, next: &Received<R>) -> bool {
        next.permits > self.free
    }

    /// Takes the permits of a call, if it may begin now.
    pub(super) fn take<R>(&mut self, next: &Received<R>) -> bool {
        let most = (MAX_BYTES_TOGETHER / self.usual_answer).clamp(1, MAX_TOGETHER);
        let is_enough = self.begun_requests > 0 && self.begun_requests + next.permits > most;
        let may_begin = !is_enough && !self.lack_permits_for(next);
        if may_begin {
            self.free -= next.permits;
            self.begun_requests += next.permits;
        }
        may_begin
    }

    /// Begins a call that has its permits. It is polled by the next [`advance`](Self::advance).
    pub(super) fn begin<R, Fut>(
        &mut self,
        next: Received<R>,
        answer: impl FnOnce(R, Result<Room, ErrorObject>) -> Fut,
    ) where
        R: AsRef<[u8]>,
        Fut: Future<Output = Option<M>> + Send + 'static,
    {
        let Received {
            permits,
            request,
            room,
        } = next;
        self.begun_may_wait |= may_wait(request.as_ref());
        let answer = answer(request, Ok(room.clone()));
        self.begun.push(Box::pin(async move {
            let answer = answer.await;
            if let Some(answer) = &answer {
                room.answered(answer.length());
            }
            let hold = FrameHold {
                permits,
                _room: room,
            };
            Done { answer, hold }
        }));
    }

    pub(super) fn give_back(&mut self, permits: usize) {
        self.free += permits;
    }

    /// How many calls have begun, and were not polled yet.
    pub(super) fn begun(&self) -> usize {
        self.begun.len()
    }

    pub(super) fn are_running(&self) -> bool {
        !self.tasks.is_empty()
    }

    /// Polls the calls that have begun: on all threads if they are many and none of them may wait for a lock, else in place, in their
    /// order. Returns those that are done. Each call that has to wait goes on in a task of its own.
    pub(super) async fn advance(&mut self) -> Vec<Done<M>> {
        let mut begun = mem::take(&mut self.begun);
        self.begun_requests = 0;
        let may_wait = mem::take(&mut self.begun_may_wait);
        let parts = (begun.len() / MIN_CALLS_PER_TASK).min(self.workers);
        if parts < 2 || may_wait {
            let polled = poll_once(begun).await;
            return self.done(polled);
        }
        let size = begun.len().div_ceil(parts);
        while !begun.is_empty() {
            let rest = begun.split_off(size.min(begun.len()));
            self.tasks.spawn(poll_once(mem::replace(&mut begun, rest)));
        }
        Vec::new()
    }

    /// The calls that the next task has completed; `None` if there are no tasks.
    pub(super) async fn next(&mut self) -> Option<Result<Vec<Done<M>>, Panicked>> {
        let polled = self.tasks.join_next().await?;
        Some(match polled {
            Ok(polled) => Ok(self.done(polled)),
            Err(_) => Err(Panicked),
        })
    }

    fn done(&mut self, polled: Polled<M>) -> Vec<Done<M>> {
        for call in polled.waiting {
            self.tasks.spawn(async move {
                Polled {
                    done: vec![call.await],
                    waiting: Vec::new(),
                }
            });
        }
        for Done { answer, hold } in &polled.done {
            let length = answer.as_ref().map_or(0, M::length) / hold.permits.max(1);
            // Grows at once and shrinks slowly.
            let usual = self.usual_answer;
            self.usual_answer = length.max(usual - usual / 8).max(1);
        }
        polled.done
    }
}

/// The first poll of a call that joins the queue of a lock submits it to the store, so calls are polled in their order, and tokio's
/// budget must not end one of these polls early.
async fn poll_once<M>(calls: Vec<Call<M>>) -> Polled<M> {
    let mut polled = Polled {
        done: Vec::with_capacity(calls.len()),
        waiting: Vec::new(),
    };
    for mut call in calls {
        match poll!(unconstrained(&mut call)) {
            Poll::Ready(done) => polled.done.push(done),
            Poll::Pending => polled.waiting.push(call),
        }
    }
    polled
}
