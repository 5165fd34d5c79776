//! Locks in Redis or Valkey, shared by any number of processes.
//!
//! The model is written in Lua, as a function library (`redis/lua`). Commands are sent to it in batches ([`queue`], [`batches`]), and
//! each runs as one atomic step. Queues of locks are in Redis as well: each process remembers which of its calls wait ([`waiters`]), is
//! notified by the others through its own channel ([`listener`]), and detects by itself that it may have missed something ([`upkeep`]).

mod batches;

mod cluster;
mod command;
mod connect;
mod connection;
mod connections;
mod group;
mod header;
mod keyspace;
mod library;
mod link;
mod list;
mod listener;
mod message;
mod queue;
mod read;
mod replication;
mod reply;
mod rollbacks;
mod sentinels;
mod setup;
mod start;
mod topology;
mod tracking;
mod unpack;
mod upkeep;
mod waiters;

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use forrst_lock::model::{Command, Outcome};
use forrst_lock::{
    Answer, Capabilities, Counts, KeyWatch, ListError, ListRequest, LockName, LockStatus,
    LockStore, Node, Page, ReleaseMemory, Secret, StoreError, Ticket, Waiter,
};
use fred::error::Error as FredError;
use fred::util::redis_keyslot;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use connection::store_error;
use keyspace::FORMAT;
use link::Link;
use start::StartError;

use crate::url_without_secrets;

const OTHER_TAGS: &str = "in a Redis Cluster the keys of one lock have to carry the same hash tag, as in `{order-7}:stock` and \
    `{order-7}:payment`";

/// The options of a Redis store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisOptions {
    /// The prefix of all keys, so that other applications can use the same Redis.
    pub prefix: String,
    /// How long a command may take.
    pub timeout: Duration,
    /// How many replicas have to acknowledge a grant before it counts.
    pub wait: u32,
    /// Refuse a Redis whose settings can lose locks, instead of warning.
    pub strict: bool,
    /// The CA certificates to trust, instead of the system's.
    pub ca: Option<PathBuf>,
    /// How long a release is remembered.
    pub release_memory: ReleaseMemory,
}

impl Default for RedisOptions {
    fn default() -> Self {
        Self {
            prefix: "forrst".to_owned(),
            timeout: Duration::from_secs(2),
            wait: 0,
            strict: false,
            ca: None,
            release_memory: ReleaseMemory::default(),
        }
    }
}

/// Why a Redis cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RedisError {
    /// The URL cannot be parsed.
    #[error("`{url}` is not a Redis URL: {}", .error.details())]
    BadUrl {
        /// Without its secrets.
        url: String,
        /// What is wrong with it.
        error: FredError,
    },
    /// The prefix is invalid.
    #[error("the prefix `{0}` must have 1 to 64 letters, digits or any of `.:_-`")]
    BadPrefix(String),
    /// The certificates cannot be read.
    #[error("cannot use the certificates in {}: {error}", .file.display())]
    BadCa {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        error: String,
    },
    /// Redis does not answer, or refuses this client.
    #[error("cannot use Redis at {url}: {}", message_of(.error))]
    Unreachable {
        /// Without its secrets.
        url: String,
        /// Why.
        error: FredError,
    },
    /// Redis is older than 7.0.
    #[error("Redis {0} is too old: Redis 7 or any Valkey is needed")]
    TooOld(String),
    /// Another version has written keys with this prefix.
    #[error(
        "the prefix `{prefix}` has locks of another version of forrst (format {found}, and this version supports format {FORMAT}): \
         use another prefix with `--redis-prefix`, or, when no server of that version is running any more, delete the keys \
         `{prefix}:*` and `{{{prefix}:*`"
    )]
    OtherFormat {
        /// The prefix.
        prefix: String,
        /// The format of its keys.
        found: String,
    },
    /// The settings of Redis can lose locks, which [`RedisOptions::strict`] refuses.
    #[error("this Redis can lose locks (--strict):\n  - {}", .0.join("\n  - "))]
    Unsafe(Vec<String>),
}

/// The error codes of a Redis that is starting, or whose primary or cluster is.
const STARTING: [&str; 7] = [
    "BUSY",
    "CLUSTERDOWN",
    "LOADING",
    "MASTERDOWN",
    "NOREPLICAS",
    "READONLY",
    "TRYAGAIN",
];

impl RedisError {
    /// Whether the same Redis may be usable a moment later: it is not up yet, is loading its data, or is failing over. Errors that need
    /// another URL, password or configuration are permanent.
    ///
    /// Of an error, fred keeps only a broad kind and a text: the reply of Redis, or the `Debug` output of an I/O error. So the text
    /// has to tell a certificate that is not trusted from a server that is not up.
    pub fn is_temporary(&self) -> bool {
        use fred::error::ErrorKind;
        let Self::Unreachable { url, error } = self else {
            return false;
        };
        let details = error.details();
        let code = details.split(' ').next().unwrap_or_default();
        let is_reply = code.len() > 1 && code.bytes().all(|byte| byte.is_ascii_uppercase());
        if is_reply {
            let scheme = url.split("://").next().unwrap_or_default();
            let is_moving = code == "MOVED" && scheme.ends_with("-cluster");
            // Too many clients is a plain `ERR`, without a code of its own.
            return is_moving || STARTING.contains(&code) || details.contains("number of clients");
        }
        match error.kind() {
            // rustls reports an untrusted certificate, or a server that does not speak TLS, as invalid data.
            ErrorKind::IO | ErrorKind::Sentinel => !details.contains("kind: InvalidData"),
            ErrorKind::Canceled | ErrorKind::Cluster | ErrorKind::Timeout => true,
            _ => false,
        }
    }
}

/// The message of fred's error for users. Of an I/O error, fred only keeps the `Debug` output, which contains the message of the system.
fn message_of(error: &FredError) -> &str {
    let details = error.details();
    let message = details.split_once("message: \"").map(|(_, rest)| rest);
    let message = message.and_then(|rest| rest.split('"').next());
    message.unwrap_or(details)
}

/// Locks in a Redis, shared by many processes.
#[derive(Debug)]
pub struct RedisStore {
    link: Arc<Link>,
    secret: Secret,
    release_memory: ReleaseMemory,
    /// Counts the sweeps: each starts at another partition.
    sweeps: AtomicUsize,
    _tasks: JoinSet<()>,
}

impl RedisStore {
    /// Connects to the Redis at `url`, and checks its settings.
    ///
    /// # Errors
    ///
    /// When it cannot be reached or used.
    pub async fn open(url: &str, options: &RedisOptions) -> Result<Self, RedisError> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || ".:_-".contains(c);
        if !(1..=64).contains(&options.prefix.len()) || !options.prefix.chars().all(allowed) {
            return Err(RedisError::BadPrefix(options.prefix.clone()));
        }
        let builder = connect::builder(url, options)?;
        Self::start(builder, options)
            .await
            .map_err(|why| match why {
                StartError::Refused(error) => error,
                StartError::Failed(error) => RedisError::Unreachable {
                    url: url_without_secrets(url),
                    error,
                },
            })
    }
}

#[async_trait]
impl LockStore for RedisStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            durable: true,
            shared: true,
            notifies: true,
            release_memory: self.release_memory,
        }
    }

    fn secret(&self) -> Secret {
        self.secret
    }

    fn subscribe(&self, node: Weak<dyn Node>) {
        self.link.nodes.add(node);
    }

    async fn submit(&self, command: Command) -> Result<Answer<Outcome>, StoreError> {
        let link = &self.link;
        match command {
            Command::Acquire(acquire) => {
                if !link.keyspace.can_hold(&acquire.claim.locks) {
                    return Err(StoreError::Unsupported(OTHER_TAGS));
                }
                let Answer { outcome, now } = link.acquire(acquire).await?;
                let outcome = Outcome::Acquired(outcome);
                Ok(Answer { outcome, now })
            }
            Command::Extend(..) => {
                let since = Instant::now();
                let (outcome, answered) = link.step(command).await?;
                if let Outcome::Lease(Ok(lease)) = &outcome {
                    link.until_replicated(lease, &answered, since).await?;
                }
                Ok(answered.with(outcome))
            }
            command => {
                if let Command::Abandon { ticket, .. } = &command {
                    link.waiters.remove(*ticket);
                }
                let (outcome, answered) = link.step(command).await?;
                Ok(answered.with(outcome))
            }
        }
    }

    fn abandon(&self, name: &LockName, ticket: Ticket) {
        self.link.waiters.remove(ticket);
        self.link.abandon(name, ticket);
    }

    async fn inspect(&self, name: &LockName) -> Result<Answer<LockStatus>, StoreError> {
        self.link.inspect(name).await
    }

    fn watch(&self, name: &LockName) -> Option<Box<dyn KeyWatch>> {
        Some(Box::new(self.link.tracking.watch(name)))
    }

    async fn queue(
        &self,
        name: &LockName,
        limit: usize,
    ) -> Result<Answer<Vec<Waiter>>, StoreError> {
        self.link.queue(name, limit).await
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, ListError> {
        self.link.list(request).await
    }

    async fn sweep(&self, limit: usize) -> Result<usize, StoreError> {
        let first = self.sweeps.fetch_add(1, Ordering::Relaxed);
        self.link.sweep(limit, first).await
    }

    async fn health(&self) -> Result<(), StoreError> {
        self.link.check_settings()?;
        self.link.check_connected()?;
        // The key never exists, but a server that refuses writes refuses this. A full one accepts it, as it accepts releases.
        let key = self.link.keyspace.probe_key();
        let slot = redis_keyslot(key.as_bytes());
        let connection = self.link.connections.connection_for(slot)?;
        let removed = connection.command("DEL", vec![key.into()]);
        removed.await.map(drop).map_err(store_error)
    }

    async fn close(&self) {
        let mut pending_rollbacks = self.link.pending_rollbacks.subscribe();
        let all_rolled_back = pending_rollbacks.wait_for(|count| *count == 0);
        // What is not rolled back in time ends when it expires.
        let _ = timeout(self.link.timeout, all_rolled_back).await;
    }

    async fn counts(&self) -> Result<Counts, StoreError> {
        self.link.counts().await
    }
}
