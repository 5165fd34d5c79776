//! The state that the store and its tasks share, and the queue of what the engine has to do.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use forrst_lock::model::{Command, Outcome};
use forrst_lock::{Answer, LockName, Nodes, Reading, StoreError, Ticket};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::timeout;

use super::connect::Connector;
use super::reader::Reader;
use super::rows::Runner;
use super::schema::Schema;
use super::waiting::Waiting;
use crate::reply::{AnswerReceiver, Reply};

/// Longer queues are refused: Postgres does not keep up.
const MAX_QUEUED: usize = 100_000;

/// What the engine has to do.
#[derive(Debug)]
pub(super) enum Message {
    /// One step, which has to be committed before it is answered.
    Command(Command, Reply<Answer<Outcome>>),
    /// Rolls back a call; repeated until it succeeds.
    Abandon(LockName, Ticket),
    /// Finds out what has become of calls that wait; repeated until it succeeds.
    Recheck(Vec<Ticket>),
    /// Only what every step does.
    Settle(Vec<LockName>),
    /// Settles keys whose rows a sweep visits, and removes those that nobody needs.
    Sweep(Vec<LockName>, Reply<usize>),
}

#[derive(Debug)]
pub(super) struct Link {
    pub(super) connector: Connector,
    pub(super) schema: Schema,
    pub(super) runner: Runner,
    /// The subscribers of this process.
    pub(super) nodes: Nodes,
    pub(super) waiting: Waiting,
    pub(super) reader: Reader,
    pub(super) timeout: Duration,
    /// Relates the clock of the server to that of this process.
    pub(super) reading: RwLock<Option<Reading>>,
    /// Why nothing may be granted with the current settings of the server, if so.
    pub(super) refusal: RwLock<Option<String>>,
    /// Whether notifications of other nodes arrive.
    pub(super) is_listening: AtomicBool,
    /// Notified when the calls that wait have to be compared with the rows at once.
    pub(super) poll: Notify,
    /// How many calls still have to be rolled back.
    pub(super) pending_rollbacks: watch::Sender<usize>,
    /// Calls that are being rolled back: their acquires must not run any more.
    abandoned: Mutex<HashSet<Ticket>>,
    messages: mpsc::UnboundedSender<Message>,
    queued: AtomicUsize,
}

/// What a link is made of.
pub(super) struct Parts {
    pub(super) connector: Connector,
    pub(super) schema: Schema,
    pub(super) runner: Runner,
    pub(super) timeout: Duration,
    pub(super) messages: mpsc::UnboundedSender<Message>,
}

impl Link {
    pub(super) fn new(parts: Parts) -> Arc<Self> {
        let Parts {
            connector,
            schema,
            runner,
            timeout,
            messages,
        } = parts;
        Arc::new(Self {
            reader: Reader::new(connector.clone(), &schema),
            connector,
            schema,
            runner,
            nodes: Nodes::default(),
            waiting: Waiting::default(),
            timeout,
            reading: RwLock::default(),
            refusal: RwLock::default(),
            is_listening: AtomicBool::new(false),
            poll: Notify::new(),
            pending_rollbacks: watch::Sender::new(0),
            abandoned: Mutex::default(),
            messages,
            queued: AtomicUsize::new(0),
        })
    }

    /// Queues something that is not refused however long the queue is.
    pub(super) fn send(&self, message: Message) {
        // Fails if the store was dropped.
        let _ = self.messages.send(message);
    }

    /// Queues a command or a sweep, and waits for its answer until the timeout.
    pub(super) async fn ask<T>(
        &self,
        message: impl FnOnce(Reply<T>) -> Message,
    ) -> Result<T, StoreError> {
        if self.queued.fetch_add(1, Ordering::Relaxed) >= MAX_QUEUED {
            self.queued.fetch_sub(1, Ordering::Relaxed);
            let why = "too many commands wait for Postgres";
            return Err(StoreError::NotDone(why.into()));
        }
        let (reply, answer) = Reply::new();
        let give_up = reply.give_up();
        self.send(message(reply));
        self.wait(answer, give_up).await
    }

    async fn wait<T>(
        &self,
        answer: AnswerReceiver<T>,
        give_up: impl FnOnce() -> bool,
    ) -> Result<T, StoreError> {
        let why = match timeout(self.timeout, answer).await {
            Ok(Ok(answer)) => return answer,
            Ok(Err(_)) => "the store was closed".to_owned(),
            Err(_) => format!("Postgres did not answer within {:?}", self.timeout),
        };
        Err(match give_up() {
            true => StoreError::MaybeDone(why.into()),
            false => StoreError::NotDone(why.into()),
        })
    }

    /// The engine has taken a command or a sweep from the queue.
    pub(super) fn taken(&self) {
        self.queued.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn abandon(&self, name: &LockName, ticket: Ticket) {
        self.waiting.remove(ticket);
        self.abandoned().insert(ticket);
        self.pending_rollbacks.send_modify(|count| *count += 1);
        self.send(Message::Abandon(name.clone(), ticket));
    }

    fn abandoned(&self) -> MutexGuard<'_, HashSet<Ticket>> {
        self.abandoned
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a call is being rolled back.
    pub(super) fn is_abandoned(&self, ticket: Ticket) -> bool {
        self.abandoned().contains(&ticket)
    }

    pub(super) fn rolled_back(&self, ticket: Ticket) {
        self.abandoned().remove(&ticket);
        self.pending_rollbacks.send_modify(|count| *count -= 1);
    }

    /// A pair to convert the server's times with; `None` before the first transaction.
    pub(super) fn reading(&self) -> Option<Reading> {
        self.reading.read().ok().and_then(|reading| *reading)
    }

    /// Fails if nothing may be granted with the current settings of the server.
    pub(super) fn check_settings(&self) -> Result<(), StoreError> {
        let refusal = self.refusal.read();
        match refusal.ok().and_then(|refusal| refusal.clone()) {
            Some(refusal) => Err(StoreError::NotDone(refusal.into())),
            None => Ok(()),
        }
    }
}
