//! The callers' side of the engine: a bounded queue, and a time limit for each call.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use forrst_lock::model::{Command, Outcome};
use forrst_lock::{Answer, LockName, Node, Nodes, StoreError, Ticket, Timestamp};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::{Engine, Journal, Start};
use crate::table::Table;

/// How long calls take at most, and how many can wait.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// How long a call takes at most.
    pub(crate) timeout: Duration,
    /// How many calls can be in the queue.
    pub(crate) queued: usize,
}

/// What the engine receives.
#[expect(clippy::large_enum_variant, reason = "almost all are commands")]
pub(super) enum Message {
    /// One step, which has to be committed before it is answered.
    Command(Command, Reply<Answer<Outcome>>),
    /// Rolls back a call; until that is committed it is tried again.
    Abandon(LockName, Ticket),
    /// Ends leases that have run out, at most so many.
    Sweep(usize, Reply<usize>),
    /// Reads what is committed.
    Read(Box<dyn Read>),
    /// Says whether the store can write.
    Probe(oneshot::Sender<Result<(), StoreError>>),
}

/// Messages, and where their answers come.
#[cfg(test)]
impl Message {
    pub(super) fn command(command: Command) -> (Self, Answered<Answer<Outcome>>) {
        let (reply, answer) = Reply::new();
        (Self::Command(command, reply), answer)
    }

    pub(super) fn sweep(limit: usize) -> (Self, Answered<usize>) {
        let (reply, answer) = Reply::new();
        (Self::Sweep(limit, reply), answer)
    }

    pub(super) fn read<T: Send + 'static>(
        name: Option<LockName>,
        read: impl FnOnce(&mut Table, Timestamp) -> T + Send + 'static,
    ) -> (Self, Answered<T>) {
        let (to, answer) = oneshot::channel();
        (Self::Read(Box::new(ReadWith { name, read, to })), answer)
    }
}

type Answered<T> = oneshot::Receiver<Result<T, StoreError>>;

/// Something to read.
pub(super) trait Read: Send {
    /// The one key that it is about; none when it is about all of them.
    fn name(&self) -> Option<&LockName>;
    /// Whether its caller still waits.
    fn is_awaited(&self) -> bool;
    /// Reads what there is at a time.
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
        // Nobody may be waiting any more.
        let _ = to.send(Ok(read(table, now)));
    }
}

/// Where the answer to a call goes.
pub(super) struct Reply<T> {
    to: oneshot::Sender<Result<T, StoreError>>,
    /// Set by the engine when it begins, or by the caller when it gives up: whichever is first.
    is_claimed: Arc<AtomicBool>,
}

impl<T> Reply<T> {
    fn new() -> (Self, Answered<T>) {
        let (to, answer) = oneshot::channel();
        let is_claimed = Arc::default();
        (Self { to, is_claimed }, answer)
    }

    /// The engine begins with it; `None` if the caller was answered that nothing was done.
    pub(super) fn begin(self) -> Option<oneshot::Sender<Result<T, StoreError>>> {
        (!self.is_claimed.swap(true, Ordering::AcqRel)).then_some(self.to)
    }
}

/// Where the engine finds its work.
pub(super) struct Inbox {
    messages: Receiver<Message>,
    queued: Arc<AtomicUsize>,
}

/// How many messages share one transaction at most.
const MAX_BATCH: usize = 4096;

impl Inbox {
    /// Adds what has arrived to `batch`. With nothing there, it waits for `patience`, or for ever without one. `false` when the
    /// callers have gone and there is nothing more.
    pub(super) fn receive(&self, batch: &mut Vec<Message>, patience: Option<Duration>) -> bool {
        let first = match patience {
            None => self
                .messages
                .recv()
                .map_err(|_| RecvTimeoutError::Disconnected),
            Some(patience) => self.messages.recv_timeout(patience),
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

/// A running engine.
pub(crate) struct Calls {
    // Taken when the store is dropped, which ends the thread.
    messages: Option<Sender<Message>>,
    queued: Arc<AtomicUsize>,
    limits: Limits,
    nodes: Arc<Nodes>,
    thread: Option<JoinHandle<()>>,
    /// Disconnected when the thread has ended. (Its lock makes the store `Sync`.)
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
    /// Starts the thread of an engine. `keep` is dropped when it has ended.
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

    pub(crate) fn broadcast(&self, message: &[u8]) {
        self.nodes.message(message);
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

    /// Never refused: there is at most one for each call that was let in.
    pub(crate) fn abandon(&self, name: &LockName, ticket: Ticket) {
        if let Some(messages) = &self.messages {
            // The thread only ends before the store does if it panicked.
            let _ = messages.send(Message::Abandon(name.clone(), ticket));
        }
    }

    /// Reads one key, or with `None` any of them.
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

    /// Several reads that are one for their caller.
    pub(crate) async fn in_time<T>(
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

    /// Hands in a change. Once handed in it is made, whether or not its caller still waits; unless the caller was answered otherwise.
    async fn change<T>(&self, message: impl FnOnce(Reply<T>) -> Message) -> Result<T, StoreError> {
        let (reply, answer) = Reply::new();
        let is_claimed = reply.is_claimed.clone();
        self.send(message(reply))?;
        self.wait(answer, || is_claimed.swap(true, Ordering::AcqRel))
            .await
    }

    fn send(&self, message: Message) -> Result<(), StoreError> {
        if self.queued.fetch_add(1, Ordering::Relaxed) >= self.limits.queued {
            self.queued.fetch_sub(1, Ordering::Relaxed);
            return Err(StoreError::NotDone("too many calls wait for it".into()));
        }
        let messages = self.messages.as_ref();
        match messages.is_some_and(|messages| messages.send(message).is_ok()) {
            true => Ok(()),
            false => Err(StoreError::NotDone(ENDED.into())),
        }
    }

    /// Waits for an answer, but no longer than callers have to. `give_up` says whether the change may have been made.
    async fn wait<T>(
        &self,
        answer: Answered<T>,
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

const ENDED: &str = "the store has ended";

impl Drop for Calls {
    /// What was handed in is written and the journal closed when this returns; but a disk that stalls holds up nobody.
    fn drop(&mut self) {
        self.messages = None;
        let ended = self
            .ended
            .get_mut()
            .map(|ended| ended.recv_timeout(self.limits.timeout));
        if matches!(ended, Ok(Err(RecvTimeoutError::Timeout))) {
            tracing::warn!("the store is still writing, and ends when it has");
        } else if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
