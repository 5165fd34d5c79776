//! Durable locks in a folder of this machine, for one process.
//!
//! The [journal engine](crate::journal) over SQLite, with all keys in memory.

mod clock;
mod folder;
mod row;
mod sqlite;

use std::path::Path;
use std::sync::Weak;
use std::time::Duration;

use async_trait::async_trait;
use forrst_lock::model::{Command, Outcome};
use forrst_lock::{
    Answer, Capabilities, Counts, ListError, ListRequest, LockName, LockStatus, LockStore, Node,
    Page, ReleaseMemory, Secret, StoreError, Ticket, Waiter,
};
use tokio::time::{sleep, timeout};

use self::clock::{Clocks, MachineClocks};
pub use self::folder::EmbeddedError;
use self::folder::Folder;
use self::sqlite::SqliteJournal;
use crate::journal::{Calls, Journal, Limits, Start};
use crate::open::STORE_TIMEOUT;
use crate::table::Remembered;

/// How long closing a store waits for pending rollbacks, on a disk that fails.
const CLOSE_TIME: Duration = Duration::from_secs(2);
const CLOSE_PAUSE: Duration = Duration::from_millis(50);
/// How many calls can be queued for the disk.
const MAX_QUEUED: usize = 16_384;
/// How many releases and withdrawals are remembered.
const MAX_REMEMBERED: Remembered = Remembered {
    releases: 131_072,
    withdrawals: 131_072,
};

/// What a grant, release or extend survives once it is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// Everything, including a loss of power: each commit waits for the disk.
    #[default]
    Full,
    /// The end of the process, however sudden. A loss of power or a crash of the machine may lose the last moments: leases that
    /// were granted then are free. Fences still increase, because they follow the clock.
    Process,
}

/// The options of an embedded store.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct EmbeddedOptions {
    /// What an answered change survives.
    pub durability: Durability,
    /// How long a release is remembered.
    pub release_memory: ReleaseMemory,
    /// How long a call waits for the disk before it fails.
    pub timeout: Duration,
}

impl Default for EmbeddedOptions {
    fn default() -> Self {
        Self {
            durability: Durability::default(),
            release_memory: ReleaseMemory::default(),
            timeout: STORE_TIMEOUT,
        }
    }
}

/// The store of a folder. One process at a time can open it.
#[derive(Debug)]
pub struct EmbeddedStore {
    calls: Calls,
    secret: Secret,
    memory: ReleaseMemory,
}

impl EmbeddedStore {
    /// Opens the store of a folder, and creates it if it does not exist.
    ///
    /// # Errors
    ///
    /// If another process uses it, if it is damaged or was written by another version, or if it cannot be read or written. A
    /// damaged store is never replaced by an empty one.
    pub fn open(
        folder: impl AsRef<Path>,
        options: &EmbeddedOptions,
    ) -> Result<Self, EmbeddedError> {
        let folder = Folder::claim(folder.as_ref())?;
        let clocks = Box::new(MachineClocks::new());
        let (journal, start) = load(&folder, options, clocks)?;
        let secret = journal.secret()?;
        folder.sign()?;
        Self::start(journal, start, folder, options, secret)
    }

    /// Starts the thread of the engine, which keeps the folder claimed.
    fn start(
        journal: impl Journal,
        start: Start,
        folder: Folder,
        options: &EmbeddedOptions,
        secret: Secret,
    ) -> Result<Self, EmbeddedError> {
        let limits = Limits {
            timeout: options.timeout,
            queued: MAX_QUEUED,
        };
        let calls = Calls::start(journal, start, limits, folder);
        Ok(Self {
            calls: calls.map_err(EmbeddedError::Thread)?,
            secret,
            memory: options.release_memory,
        })
    }
}

fn load(
    folder: &Folder,
    options: &EmbeddedOptions,
    clocks: Box<dyn Clocks>,
) -> Result<(SqliteJournal, Start), EmbeddedError> {
    SqliteJournal::load(folder, options, clocks, MAX_REMEMBERED)
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

    fn subscribe(&self, node: Weak<dyn Node>) {
        self.calls.subscribe(node);
    }

    async fn submit(&self, command: Command) -> Result<Answer<Outcome>, StoreError> {
        self.calls.submit(command).await
    }

    fn abandon(&self, name: &LockName, ticket: Ticket) {
        self.calls.abandon(name, ticket);
    }

    async fn inspect(&self, name: &LockName) -> Result<Answer<LockStatus>, StoreError> {
        let key = name.clone();
        let read = self.calls.read(Some(name), move |table, now| Answer {
            outcome: table.inspect(&key, now),
            now,
        });
        read.await
    }

    async fn queue(
        &self,
        name: &LockName,
        limit: usize,
    ) -> Result<Answer<Vec<Waiter>>, StoreError> {
        let key = name.clone();
        let read = self.calls.read(Some(name), move |table, now| Answer {
            outcome: table.queue(&key, limit),
            now,
        });
        read.await
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, ListError> {
        let mut after = request.after()?;
        let mut locks = Vec::new();
        let mut read_at = None;
        let pages = async {
            loop {
                let (prefix, from) = (request.prefix.clone(), after.take());
                let wanted = request.limit + 1 - locks.len();
                let page = self.calls.read(None, move |table, now| {
                    let (locks, next) = table.list(&prefix, from.as_ref(), wanted, now);
                    (locks, next, now)
                });
                let (mut found, next, now) = page.await?;
                locks.append(&mut found);
                after = next;
                let read_at = *read_at.get_or_insert(now);
                if after.is_none() || locks.len() > request.limit {
                    return Ok::<_, StoreError>(read_at);
                }
            }
        };
        let now = self.calls.within_timeout(pages).await?;
        Ok(Page::cut(locks, request.limit, now))
    }

    async fn sweep(&self, limit: usize) -> Result<usize, StoreError> {
        self.calls.sweep(limit).await
    }

    /// A store that cannot write is unhealthy. Nothing is committed, unless the last commit has failed.
    async fn health(&self) -> Result<(), StoreError> {
        self.calls.probe().await
    }

    /// A healthy store has rolled back every call that was given up before the probe.
    async fn close(&self) {
        let rolled_back = async {
            while self.calls.probe().await.is_err() {
                sleep(CLOSE_PAUSE).await;
            }
        };
        // A lease that is not rolled back in time is free when it expires.
        let _ = timeout(CLOSE_TIME, rolled_back).await;
    }

    async fn counts(&self) -> Result<Counts, StoreError> {
        self.calls.read(None, |table, _| table.counts()).await
    }
}

#[cfg(test)]
mod tests;
