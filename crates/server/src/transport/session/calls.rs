//! The calls of a session: what has come in together runs together.

use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::task::Poll;

use forrst_protocol::ErrorObject;
use futures_util::poll;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use super::{Held, Message, Received};
use crate::limits::Room;

/// How many requests run together at most, and how many bytes their answers may have as far as is known: those of a client that does
/// not read are kept.
const TOGETHER: usize = 64;
const BYTES_TOGETHER: usize = 256 * 1024;

/// With fewer calls than this, a task of their own costs more than it gains.
const FEWEST_IN_A_TASK: usize = 16;

type Call<M> = Pin<Box<dyn Future<Output = Done<M>> + Send>>;

/// A call that has ended.
pub(super) struct Done<M> {
    /// `None` where there is nothing to say.
    pub(super) answer: Option<M>,
    pub(super) held: Held,
}

/// Some calls that were run as far as they got without waiting.
struct Batch<M> {
    done: Vec<Done<M>>,
    waiting: Vec<Call<M>>,
}

/// Dropped, it drops what is under way: waiting calls leave their queues.
pub(super) struct Calls<M> {
    free: usize,
    /// Those that have their permits and have not run yet.
    begun: Vec<Call<M>>,
    /// How many requests they have: one that is a batch has many.
    begun_requests: usize,
    tasks: JoinSet<Batch<M>>,
    workers: usize,
    /// How many bytes the answer to a request has lately had.
    usual_answer: usize,
}

/// A call has panicked outside of what catches panics, and has taken its permits with it.
#[derive(Debug)]
pub(super) struct Panicked;

impl<M: Message> Calls<M> {
    pub(super) fn new(permits: usize) -> Self {
        Self {
            free: permits,
            begun: Vec::new(),
            begun_requests: 0,
            tasks: JoinSet::new(),
            workers: Handle::current().metrics().num_workers(),
            // Not known yet.
            usual_answer: BYTES_TOGETHER / 16,
        }
    }

    pub(super) fn lack_permits_for<R>(&self, next: &Received<R>) -> bool {
        next.permits > self.free
    }

    /// Takes the permits of a call that may begin now; `false` if it may not.
    pub(super) fn take<R>(&mut self, next: &Received<R>) -> bool {
        let most = (BYTES_TOGETHER / self.usual_answer).clamp(1, TOGETHER);
        let is_enough = self.begun_requests > 0 && self.begun_requests + next.permits > most;
        let may_begin = !is_enough && !self.lack_permits_for(next);
        if may_begin {
            self.free -= next.permits;
            self.begun_requests += next.permits;
        }
        may_begin
    }

    /// Begins a call that has its permits: it runs with the next [`advance`](Self::advance).
    pub(super) fn begin<R, Fut>(
        &mut self,
        next: Received<R>,
        answer: impl FnOnce(R, Result<Room, ErrorObject>) -> Fut,
    ) where
        Fut: Future<Output = Option<M>> + Send + 'static,
    {
        let Received {
            permits,
            request,
            room,
        } = next;
        let answer = answer(request, Ok(room.clone()));
        self.begun.push(Box::pin(async move {
            let answer = answer.await;
            if let Some(answer) = &answer {
                room.answered(answer.length());
            }
            let held = Held {
                permits,
                _room: room,
            };
            Done { answer, held }
        }));
    }

    pub(super) fn give_back(&mut self, permits: usize) {
        self.free += permits;
    }

    /// How many have begun and not run yet.
    pub(super) fn begun(&self) -> usize {
        self.begun.len()
    }

    pub(super) fn are_running(&self) -> bool {
        !self.tasks.is_empty()
    }

    /// Runs what has begun, here if it is little, else on all threads; gives what is done at once. What has to wait goes on in
    /// tasks of its own.
    pub(super) async fn advance(&mut self) -> Vec<Done<M>> {
        let mut begun = mem::take(&mut self.begun);
        self.begun_requests = 0;
        let parts = (begun.len() / FEWEST_IN_A_TASK).min(self.workers);
        if parts < 2 {
            let batch = advance(begun).await;
            return self.done(batch);
        }
        let size = begun.len().div_ceil(parts);
        while !begun.is_empty() {
            let rest = begun.split_off(size.min(begun.len()));
            self.tasks.spawn(advance(mem::replace(&mut begun, rest)));
        }
        Vec::new()
    }

    /// What one of the tasks has done; `None` where there are none.
    pub(super) async fn next(&mut self) -> Option<Result<Vec<Done<M>>, Panicked>> {
        let batch = self.tasks.join_next().await?;
        Some(match batch {
            Ok(batch) => Ok(self.done(batch)),
            Err(_) => Err(Panicked),
        })
    }

    fn done(&mut self, batch: Batch<M>) -> Vec<Done<M>> {
        for call in batch.waiting {
            self.tasks.spawn(async move {
                Batch {
                    done: vec![call.await],
                    waiting: Vec::new(),
                }
            });
        }
        for Done { answer, held } in &batch.done {
            let length = answer.as_ref().map_or(0, M::length) / held.permits.max(1);
            // Grows at once and shrinks slowly.
            let usual = self.usual_answer;
            self.usual_answer = length.max(usual - usual / 8).max(1);
        }
        batch.done
    }
}

async fn advance<M>(calls: Vec<Call<M>>) -> Batch<M> {
    let mut batch = Batch {
        done: Vec::with_capacity(calls.len()),
        waiting: Vec::new(),
    };
    for mut call in calls {
        match poll!(&mut call) {
            Poll::Ready(done) => batch.done.push(done),
            Poll::Pending => batch.waiting.push(call),
        }
    }
    batch
}
