//! The callers' side of the engine: a bounded queue, and a timeout for each call.
//!
//! A change is claimed once: by the engine when it begins, or by its caller when the timeout is first. So the caller knows whether
//! it may have been made.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use forrst_lock::model::{Command, Outcome};
use forrst_lock::{Answer, LockName, Node, Nodes, StoreError, Ticket, Timestamp};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::{Engine, Journal, Start};
use crate::reply::{AnswerReceiver, Reply};
use crate::table::Table;

/// The limits of calls to the engine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// How long a caller waits for its answer.
    pub(crate) timeout: Duration,
    /// How many calls fit into the queue.
    pub(crate) queued: usize,
}

/// A message to the engine.
#[expect(clippy::large_enum_variant, reason = "almost all are commands")]
pub(super) enum Message {
    /// One step, which has to be committed before it is answered.
    Command(Command, Reply<Answer<Outcome>>),
    /// Rolls back a call; retried until it is committed.
    Abandon(LockName, Ticket),
    /// Ends expired leases, at most so many.
    Sweep(usize, Reply<usize>),
    /// Reads the committed state.
    Read(Box<dyn Read>),
    /// Checks whether the store can write.
    Probe(oneshot::Sender<Result<(), StoreError>>),
}

#[cfg(test)]
impl Message {
    pub(super) fn command(command: Command) -> (Self, AnswerReceiver<Answer<Outcome>>) {
        let (reply, answer) = Reply::new();
        (Self::Command(command, reply), answer)
    }

    pub(super) fn sweep(limit: usize) -> (Self, AnswerReceiver<usize>) {
        let (reply, answer) = Reply::new();
        (Self::Sweep(limit, reply), answer)
    }

    pub(super) fn read<T: Send + 'static>(
        name: Option<LockName>,
        read: impl FnOnce(&mut Table, Timestamp) -> T + Send + 'static,
    ) -> (Self, AnswerReceiver<T>) {
        let (to, answer) = oneshot::channel();
        (Self::Read(Box::new(ReadWith { name, read, to })), answer)
    }
}

/// A read of the table.
pub(super) trait Read: Send {
    /// The key that it reads; `None` if it reads all of them.
    fn name(&self) -> Option<&LockName>;
    /// Whether its caller still waits for the answer.
    fn is_awaited(&self) -> bool;
    /// Reads the table as of `now`, and answers the caller.
    fn answer(self: Box<Self>, table: &mut Table, now: Timestamp);
}

struct ReadWith<F, T> {
    name: Option<LockName>,
    read: F,
    to: oneshot::Sender<Result<T, StoreError>>,
}

impl<F, T> Read for ReadWith<F, T>
where
    F: FnOnce(&mut Table, Timestamp) -> T + Send,
    T: Send,
{
    fn name(&self) -> Option<&LockName> {
        self.name.as_ref()
    }

    fn is_awaited(&self) -> bool {
        !self.to.is_closed()
    }

    fn answer(self: Box<Self>, table: &mut Table, now: Timestamp) {
        let Self { read, to, .. } = *self;
        // The caller may have given up.
        let _ = to.send(Ok(read(table, now)));
    }
}

/// The engine's end of the queue.
pub(super) struct Inbox {
    messages: Receiver<Message>,
    queued: Arc<AtomicUsize>,
}

/// How many messages are in one batch at most.
const MAX_BATCH: usize = 4096;

impl Inbox {
    /// Appends the messages that have arrived to `batch`. Waits for the first of them, for `timeout` if there is one. `false` when
    /// the store was dropped and no message is left.
    pub(super) fn receive(&self, batch: &mut Vec<Message>, timeout: Option<Duration>) -> bool {
        let first = match timeout {
            None => self
                .messages
                .recv()
                .map_err(|_| RecvTimeoutError::Disconnected),
            Some(timeout) => self.messages.recv_timeout(timeout),
        };
        match first {
            Ok(message) => batch.push(message),
            Err(RecvTimeoutError::Timeout) => return true,
            Err(RecvTimeoutError::Disconnected) => return false,
        }
        let more = self.messages.try_iter().take(MAX_BATCH - 1);
        batch.extend(more);
        let is_queued = |message: &&Message| !matches!(message, Message::Abandon(..));
        let received = batch.iter().filter(is_queued).count();
        self.queued.fetch_sub(received, Ordering::Relaxed);
        true
    }
}

/// The handle of a running engine.
pub(crate) struct Calls {
    /// Taken when the store is dropped, which ends the thread.
    messages: Option<Sender<Message>>,
    queued: Arc<AtomicUsize>,
    limits: Limits,
    nodes: Arc<Nodes>,
    thread: Option<JoinHandle<()>>,
    /// Disconnected when the thread has ended. (The mutex makes the store `Sync`.)
    ended: std::sync::Mutex<Receiver<()>>,
}

impl fmt::Debug for Calls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let queued = self.queued.load(Ordering::Relaxed);
        f.debug_struct("Calls")
            .field("queued", &queued)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

impl Calls {
    /// Starts the thread of an engine, which drops `keep` when it ends.
    pub(crate) fn start<J: Journal>(
        journal: J,
        start: Start,
        limits: Limits,
        keep: impl Send + 'static,
    ) -> std::io::Result<Self> {
        let (messages, incoming) = channel();
        let (ending, ended) = channel();
        let queued = Arc::new(AtomicUsize::new(0));
        let nodes = Arc::new(Nodes::default());
        let inbox = Inbox {
            messages: incoming,
            queued: queued.clone(),
        };
        let engine = Engine::new(journal, start, nodes.clone());
        let thread = std::thread::Builder::new()
            .name("forrst-store".to_owned())
            .spawn(move || {
                engine.run(&inbox);
                drop(keep);
                drop::<Sender<()>>(ending);
            })?;
        Ok(Self {
            messages: Some(messages),
            queued,
            limits,
            nodes,
            thread: Some(thread),
            ended: ended.into(),
        })
    }

    pub(crate) fn subscribe(&self, node: Weak<dyn Node>) {
        self.nodes.add(node);
    }

    pub(crate) async fn submit(&self, command: Command) -> Result<Answer<Outcome>, StoreError> {
        self.change(|reply| Message::Command(command, reply)).await
    }

    pub(crate) async fn sweep(&self, limit: usize) -> Result<usize, StoreError> {
        self.change(|reply| Message::Sweep(limit, reply)).await
    }

    /// Never refused: there is at most one for each call that was queued.
    pub(crate) fn abandon(&self, name: &LockName, ticket: Ticket) {
        if let Some(messages) = &self.messages {
            // Fails only if the thread has panicked.
            let _ = messages.send(Message::Abandon(name.clone(), ticket));
        }
    }

    /// Reads one key, or, with `None`, the whole table.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        name: Option<&LockName>,
        read: impl FnOnce(&mut Table, Timestamp) -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        let (to, answer) = oneshot::channel();
        let name = name.cloned();
        self.send(Message::Read(Box::new(ReadWith { name, read, to })))?;
        self.wait(answer, || false).await
    }

    /// Several reads that share the timeout of one call.
    pub(crate) async fn within_timeout<T>(
        &self,
        reads: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let limit = self.limits.timeout;
        timeout(limit, reads).await.unwrap_or_else(|_| {
            let why = format!("no answer within {limit:?}");
            Err(StoreError::NotDone(why.into()))
        })
    }

    pub(crate) async fn probe(&self) -> Result<(), StoreError> {
        let (to, answer) = oneshot::channel();
        self.send(Message::Probe(to))?;
        self.wait(answer, || false).await
    }

    /// Queues a change. It is made even if its future is dropped, unless the caller got [`StoreError::NotDone`].
    async fn change<T>(&self, message: impl FnOnce(Reply<T>) -> Message) -> Result<T, StoreError> {
        let (reply, answer) = Reply::new();
        let give_up = reply.give_up();
        self.send(message(reply))?;
        self.wait(answer, give_up).await
    }

    fn send(&self, message: Message) -> Result<(), StoreError> {
        if self.queued.fetch_add(1, Ordering::Relaxed) >= self.limits.queued {
            self.queued.fetch_sub(1, Ordering::Relaxed);
            return Err(StoreError::NotDone("too many calls are queued".into()));
        }
        let messages = self.messages.as_ref();
        match messages.is_some_and(|messages| messages.send(message).is_ok()) {
            true => Ok(()),
            false => Err(StoreError::NotDone(ENDED.into())),
        }
    }

    /// Waits for an answer until the timeout. `give_up` then returns whether the change may have been made.
    async fn wait<T>(
        &self,
        answer: AnswerReceiver<T>,
        give_up: impl FnOnce() -> bool,
    ) -> Result<T, StoreError> {
        let limit = self.limits.timeout;
        let why = match timeout(limit, answer).await {
            Ok(Ok(answer)) => return answer,
            Ok(Err(_)) => ENDED.to_owned(),
            Err(_) => format!("no answer within {limit:?}"),
        };
        Err(match give_up() {
            true => StoreError::MaybeDone(why.into()),
            false => StoreError::NotDone(why.into()),
        })
    }
}

const ENDED: &str = "the thread of the store has ended";

impl Drop for Calls {
    /// Waits until all queued changes are written and the journal is closed; but no longer than the timeout, if the disk stalls.
    fn drop(&mut self) {
        self.messages = None;
        let ended = self
            .ended
            .get_mut()
            .map(|ended| ended.recv_timeout(self.limits.timeout));
        if matches!(ended, Ok(Err(RecvTimeoutError::Timeout))) {
            tracing::warn!("the disk stalls: the store is closed when its last write is done");
        } else if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
