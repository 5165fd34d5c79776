//! What the engine has to do, and who waits for it.

use std::collections::BTreeSet;

use forrst_lock::model::{Command, Outcome};
use forrst_lock::{Answer, LockName, StoreError, Ticket};
use tokio::sync::oneshot;

use super::link::Link;
use crate::reply::Reply;

/// Something to do in a transaction.
pub(super) struct Job {
    pub(super) task: Task,
    /// The keys that it concerns, as far as they are known.
    pub(super) names: BTreeSet<LockName>,
}

pub(super) enum Task {
    Command(Command, Caller<Answer<Outcome>>),
    Abandon(LockName, Ticket),
    Recheck(Ticket),
    Settle(LockName),
    Sweep(Vec<LockName>, Caller<usize>),
}

/// The caller of a command, from when it is queued until it is answered.
pub(super) enum Caller<T> {
    Queued(Reply<T>),
    /// Its command was run in a transaction.
    Begun(oneshot::Sender<Result<T, StoreError>>),
    Gone,
}

impl<T> Caller<T> {
    /// Claims the command. `false` if the caller has given up.
    pub(super) fn begin(&mut self) -> bool {
        *self = match std::mem::replace(self, Self::Gone) {
            Self::Queued(reply) if reply.is_closed() => Self::Gone,
            Self::Queued(reply) => reply.begin().map_or(Self::Gone, Self::Begun),
            begun => begun,
        };
        !matches!(self, Self::Gone)
    }

    pub(super) fn answer(self, answer: Result<T, StoreError>) {
        let to = match self {
            Self::Queued(reply) => reply.begin(),
            Self::Begun(to) => Some(to),
            Self::Gone => None,
        };
        if let Some(to) = to {
            // It may have given up.
            let _ = to.send(answer);
        }
    }
}

impl Job {
    pub(super) fn new(task: Task, link: &Link) -> Self {
        let names = match &task {
            Task::Command(command, _) => command.names().cloned().collect(),
            Task::Abandon(name, _) | Task::Settle(name) => [name.clone()].into(),
            Task::Recheck(ticket) => {
                let call = link.waiting.get(*ticket);
                let locks = call.map(|call| call.acquire.claim.locks);
                let names = locks.iter().flat_map(|locks| locks.names().cloned());
                names.collect()
            }
            Task::Sweep(due, _) => due.iter().cloned().collect(),
        };
        Self { task, names }
    }

    /// Answers with an error. A task without a caller is repeated.
    pub(super) fn fail(self, error: StoreError) -> Option<Self> {
        match self.task {
            Task::Command(_, caller) => caller.answer(Err(error)),
            Task::Sweep(_, caller) => caller.answer(Err(error)),
            Task::Settle(_) => {}
            Task::Abandon(..) | Task::Recheck(_) => return Some(self),
        }
        None
    }

    /// Whether it has no caller, and is repeated until it succeeds.
    pub(super) fn is_internal(&self) -> bool {
        matches!(self.task, Task::Abandon(..) | Task::Recheck(_))
    }

    /// Whether its rows have to exist: an acquire may write them, and an abandon has to wait for another transaction of this process
    /// that may be about to insert them.
    pub(super) fn creates(&self) -> bool {
        match &self.task {
            Task::Command(command, _) => matches!(
                command,
                Command::Acquire(_) | Command::Abandon { .. } | Command::Withdraw { .. }
            ),
            Task::Abandon(..) | Task::Recheck(_) => true,
            Task::Settle(_) | Task::Sweep(..) => false,
        }
    }
}

/// The keys that jobs concern.
pub(super) fn names_of<'j>(jobs: impl Iterator<Item = &'j Job>) -> impl Iterator<Item = LockName> {
    jobs.flat_map(|job| job.names.iter().cloned())
}
