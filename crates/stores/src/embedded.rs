//! Locks in a folder of this machine: durable, for one process.
//!
//! The state machine runs in memory, on one thread. Commands that came in while the last commit ran are applied together,
//! written down in one transaction, and answered after it has reached the disk. So many callers share one commit, and
//! nobody is told what a crash could take back.

mod clock;
mod folder;
mod journal;
mod sqlite;
mod writer;

use std::path::Path;
use std::thread::JoinHandle;
use std::time::Duration;

use async_trait::async_trait;
use forrst_lock::state::{Acquire, Acquired, Extend, ForceRelease, Release, Settle};
use forrst_lock::{
    Answer, Capabilities, Lease, ListError, ListRequest, LockName, LockStatus, LockStore, NotHeld,
    Page, ReleaseMemory, Secret, Settled, StoreError, Ticket, Waiter, Waiting,
};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};

use self::clock::MachineClocks;
pub use self::folder::EmbeddedError;
use self::folder::Folder;
use self::journal::Journal;
use self::sqlite::SqliteJournal;
use self::writer::{Desk, Job, Message, ReadClocks, Writer};

/// How long calls that were given up have to be rolled back at the end, on a disk that fails.
const CLOSE_TIME: Duration = Duration::from_secs(2);
const CLOSE_PAUSE: Duration = Duration::from_millis(50);

/// What a grant, release or extend has survived when it is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// Everything, the loss of power included: each commit waits for the disk.
    #[default]
    Full,
    /// The end of the process, however sudden. A loss of power or a crash of the machine may take back the last moments, and with
    /// them fences that were given out: they are given out again.
    Process,
}

/// The store of a folder. One process at a time can open it.
#[derive(Debug)]
pub struct EmbeddedStore {
    // Taken when the store is dropped, which ends the thread.
    messages: Option<mpsc::UnboundedSender<Message>>,
    thread: Option<JoinHandle<()>>,
    secret: Secret,
    memory: ReleaseMemory,
}

impl EmbeddedStore {
    /// Opens the store of a folder, and makes it if it is not there.
    ///
    /// # Errors
    ///
    /// When another process uses it, when it is damaged or was written by a newer version, or when it cannot be read or
    /// written. A damaged store is never replaced by an empty one.
    pub fn open(folder: impl AsRef<Path>, durability: Durability) -> Result<Self, EmbeddedError> {
        Self::open_remembering(folder, durability, ReleaseMemory::default())
    }

    /// As [`open`](Self::open), and remembers releases for this long.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn open_remembering(
        folder: impl AsRef<Path>,
        durability: Durability,
        memory: ReleaseMemory,
    ) -> Result<Self, EmbeddedError> {
        let folder = Folder::claim(folder.as_ref())?;
        let journal = SqliteJournal::open(&folder, durability)?;
        let secret = journal.secret()?;
        folder.sign()?;
        let mut store = Self::start_by(journal, Some(folder), machine_clocks(), memory)?;
        store.secret = secret;
        Ok(store)
    }

    /// Starts the thread that does all the work. It keeps the folder claimed.
    fn start_by(
        journal: impl Journal + 'static,
        folder: Option<Folder>,
        clocks: ReadClocks,
        memory: ReleaseMemory,
    ) -> Result<Self, EmbeddedError> {
        let (messages, incoming) = mpsc::unbounded_channel();
        let writer = Writer::new(journal, incoming, clocks, memory)?;
        let thread = std::thread::Builder::new()
            .name("forrst-store".to_owned())
            .spawn(move || {
                writer.run();
                drop(folder);
            })
            .map_err(EmbeddedError::Thread)?;
        Ok(Self {
            messages: Some(messages),
            thread: Some(thread),
            secret: Secret::random(),
            memory,
        })
    }

    /// Has some work done in the next transaction, and waits until that has reached the disk.
    ///
    /// Work that was handed in is done, whether or not anybody still waits for it.
    async fn submit<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Desk) -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        self.ask(Message::Job, work).await
    }

    async fn ask<T: Send + 'static>(
        &self,
        kind: fn(Job) -> Message,
        work: impl FnOnce(&mut Desk) -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.send(kind(Job::new(work, move |outcome| {
            // Nobody may be waiting any more.
            let _ = reply.send(outcome);
        })));
        answer
            .await
            .unwrap_or_else(|_| Err(StoreError::MaybeDone("the store has ended".into())))
    }

    fn send(&self, message: Message) {
        if let Some(messages) = &self.messages {
            // The thread only ends before the store does if it panicked; the answer then never comes.
            let _ = messages.send(message);
        }
    }
}

fn machine_clocks() -> ReadClocks {
    Box::new(|| Box::new(MachineClocks::new()))
}

impl Drop for EmbeddedStore {
    fn drop(&mut self) {
        self.messages = None;
        if let Some(thread) = self.thread.take() {
            // What was handed in is written, the file closed and the folder free when this returns.
            let _ = thread.join();
        }
    }
}

#[async_trait]
impl LockStore for EmbeddedStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            durable: true,
            shared: false,
            notifies: false,
            release_memory: self.memory,
        }
    }

    fn secret(&self) -> Secret {
        self.secret
    }

    async fn acquire(
        &self,
        name: &LockName,
        command: Acquire<Waiter>,
    ) -> Result<Answer<Acquired>, StoreError> {
        let name = name.clone();
        self.submit(move |desk| desk.run(&name, command)).await
    }

    fn abandon(&self, name: &LockName, ticket: Ticket) {
        self.send(Message::Abandon(name.clone(), ticket));
    }

    async fn release(
        &self,
        name: &LockName,
        command: Release,
    ) -> Result<Answer<Result<Lease, NotHeld>>, StoreError> {
        let name = name.clone();
        self.submit(move |desk| desk.run(&name, command)).await
    }

    async fn extend(
        &self,
        name: &LockName,
        command: Extend,
    ) -> Result<Answer<Result<Lease, NotHeld>>, StoreError> {
        let name = name.clone();
        self.submit(move |desk| desk.extend(&name, command)).await
    }

    async fn force_release(
        &self,
        name: &LockName,
        command: ForceRelease,
    ) -> Result<Answer<Result<Lease, NotHeld>>, StoreError> {
        let name = name.clone();
        self.submit(move |desk| desk.run(&name, command)).await
    }

    async fn settle(&self, name: &LockName) -> Result<Answer<Settled>, StoreError> {
        let name = name.clone();
        self.submit(move |desk| {
            let Answer { now, expired, .. } = desk.run(&name, Settle);
            Answer {
                outcome: desk.table().settled(&name),
                now,
                expired,
            }
        })
        .await
    }

    async fn inspect(&self, name: &LockName) -> Result<Answer<Option<LockStatus>>, StoreError> {
        let name = name.clone();
        self.ask(Message::Look, move |desk| {
            let now = desk.shown_at();
            Answer {
                outcome: desk.table().inspect(&name, now),
                now,
                expired: None,
            }
        })
        .await
    }

    async fn queue(
        &self,
        name: &LockName,
        limit: usize,
    ) -> Result<Answer<Vec<Waiting>>, StoreError> {
        let name = name.clone();
        self.ask(Message::Look, move |desk| Answer {
            outcome: desk.table().queue(&name, limit),
            now: desk.shown_at(),
            expired: None,
        })
        .await
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, ListError> {
        let (after, request) = (request.after()?, request.clone());
        let page = self.ask(Message::Look, move |desk| {
            let now = desk.shown_at();
            let (prefix, limit) = (&request.prefix, request.limit);
            let locks = desk.table().list(prefix, after.as_ref(), limit + 1, now);
            Page::cut(locks, limit, now)
        });
        Ok(page.await?)
    }

    async fn expire(&self, limit: usize) -> Result<Vec<Lease>, StoreError> {
        self.submit(move |desk| desk.expire(limit)).await
    }

    /// A disk that can only be read is not well. Nothing is committed, unless the last commit has failed.
    async fn health(&self) -> Result<(), StoreError> {
        let (reply, answer) = oneshot::channel();
        self.send(Message::Probe(reply));
        let ended = || StoreError::NotDone("the store has ended".into());
        answer.await.unwrap_or_else(|_| Err(ended()))
    }

    /// A commit that succeeds has rolled back every call that was given up before it.
    async fn close(&self) {
        let rolled_back = async {
            while self.submit(Desk::write_anyway).await.is_err() {
                sleep(CLOSE_PAUSE).await;
            }
        };
        // What is not rolled back in time is free at its expiry.
        let _ = timeout(CLOSE_TIME, rolled_back).await;
    }

    async fn held(&self) -> Result<usize, StoreError> {
        self.ask(Message::Look, |desk| desk.table().held()).await
    }
}

#[cfg(test)]
mod tests;
