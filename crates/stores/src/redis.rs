//! Locks in Redis or Valkey, for as many processes as there are.
//!
//! The model is spelt in Lua (`redis/scripts`), so far for exclusive locks on single keys: every command is one script, so one
//! atomic step and one round trip. The queue is in Redis as well. Each process knows which of its calls wait ([`waiters`]) and
//! hears from the others through a channel of its own ([`listener`]); a message that is lost is made up for by the service's
//! regular [`Command::Settle`].

mod connect;
mod connection;
mod keyspace;
mod link;
mod listener;
mod replication;
mod reply;
mod rollbacks;
mod script;
mod setup;
mod start;
mod submit;
mod waiters;

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use forrst_lock::model::{Command, Outcome};
use forrst_lock::{
    Answer, Capabilities, Counts, Kind, ListError, ListRequest, LockName, LockStatus, LockStore,
    Node, Page, ReleaseMemory, Secret, StoreError, Ticket, Timestamp, Waiter,
};
use fred::error::Error as FredError;
use fred::types::Value;
use fred::util::redis_keyslot;
use futures_util::future::{join_all, try_join_all};
use tokio::task::JoinSet;
use tokio::time::timeout;

use connection::store_error;
use keyspace::{FORMAT, Partition};
use link::Link;
use reply::{BadReply, Parts};
use start::NotStarted;

use crate::url_without_secrets;

/// How many partitions are listed at once.
const LISTED_AT_ONCE: usize = 16;
const SETTLED_AT_ONCE: usize = 64;

/// How to use a Redis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisOptions {
    /// What all keys begin with, so that others can use the same Redis.
    pub prefix: String,
    /// How long Redis has for an answer.
    pub timeout: Duration,
    /// How many replicas have to have a grant before it counts.
    pub wait: u32,
    /// Refuse a Redis that is set up so that it can lose locks, instead of warning.
    pub strict: bool,
    /// The certificates to trust, instead of the system's.
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
    /// The URL is none.
    #[error("`{url}` is no URL of a Redis: {}", .error.details())]
    BadUrl {
        /// Without its secrets.
        url: String,
        /// What is wrong with it.
        error: FredError,
    },
    /// The prefix cannot be used.
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
    /// Nobody answers, or not to us.
    #[error("cannot use Redis at {url}: {}", message_of(.error))]
    Unreachable {
        /// Without its secrets.
        url: String,
        /// What happened.
        error: FredError,
    },
    /// Older than 6.2.
    #[error("Redis {0} is too old: 6.2 is needed, or any Valkey")]
    TooOld(String),
    /// Another version has written under this prefix.
    #[error(
        "what is kept under the prefix `{prefix}` has format {found}, and this version knows {FORMAT} only"
    )]
    OtherFormat {
        /// The prefix.
        prefix: String,
        /// What is written there.
        found: String,
    },
    /// It can lose locks, and that was not to be accepted.
    #[error("this Redis can lose locks (--strict):\n  - {}", .0.join("\n  - "))]
    Unsafe(Vec<String>),
}

/// What fred says, for people: of an I/O error it keeps only what is meant for programmers.
fn message_of(error: &FredError) -> &str {
    let details = error.details();
    let message = details.split_once("message: \"").map(|(_, rest)| rest);
    let message = message.and_then(|rest| rest.split('"').next());
    message.unwrap_or(details)
}

/// Locks in a Redis that many processes share.
#[derive(Debug)]
pub struct RedisStore {
    link: Arc<Link>,
    secret: Secret,
    release_memory: ReleaseMemory,
    /// How often leases that had run out were looked for.
    sweeps: AtomicUsize,
    _tasks: JoinSet<()>,
}

impl RedisStore {
    /// Connects to the Redis that `url` names, and looks at how it is set up.
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
                NotStarted::Refused(error) => error,
                NotStarted::Failed(error) => RedisError::Unreachable {
                    url: url_without_secrets(url),
                    error,
                },
            })
    }

    /// Some names of held locks in one partition, after `after`.
    async fn names(
        &self,
        partition: &Partition,
        prefix: &str,
        after: Option<&LockName>,
        count: usize,
    ) -> Result<Vec<LockName>, StoreError> {
        let from_prefix = match prefix {
            "" => "-".to_owned(),
            prefix => format!("[{prefix}"),
        };
        let from = match after {
            Some(after) if after.as_str() >= prefix => format!("({after}"),
            _ => from_prefix,
        };
        // No name has this byte: it stands behind all that begin with the prefix.
        let to: Vec<u8> = match prefix {
            "" => b"+".to_vec(),
            prefix => [b"(", prefix.as_bytes(), b"\xff"].concat(),
        };
        let arguments = vec![
            partition.names().into(),
            from.into(),
            Value::Bytes(to.into()),
            "LIMIT".into(),
            "0".into(),
            count.to_string().into(),
        ];
        let names = self
            .link
            .connection
            .command("ZRANGEBYLEX", partition.slot, arguments);
        Ok(lock_names(names.await.map_err(store_error)?))
    }

    async fn time(&self) -> Result<Timestamp, StoreError> {
        let time = self.link.connection.command_on(None, "TIME", &[]).await;
        let mut time = Parts::of(time.map_err(store_error)?);
        let (seconds, micros) = (time.number("time")?, time.number("time")?);
        Ok(Timestamp::from_millis(seconds * 1000 + micros / 1000))
    }

    async fn inspect_all(&self, names: &[LockName]) -> Result<Vec<Answer<LockStatus>>, StoreError> {
        try_join_all(names.iter().map(|name| self.inspect(name))).await
    }
}

fn lock_names(names: Value) -> Vec<LockName> {
    Parts::of(names)
        .filter_map(Value::into_string)
        .filter_map(|name| LockName::parse(&name).ok())
        .collect()
}

/// What succeeded. One that failed does not spoil the others; it is an error only if nothing else came of it.
fn some_of<T>(results: Vec<Result<T, StoreError>>) -> Result<Vec<T>, StoreError> {
    let (mut done, mut failed) = (Vec::new(), None);
    for result in results {
        match result {
            Ok(value) => done.push(value),
            Err(error) => failed = Some(error),
        }
    }
    match failed {
        Some(error) if done.is_empty() => Err(error),
        _ => Ok(done),
    }
}

#[async_trait]
impl LockStore for RedisStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            durable: true,
            shared: true,
            notifies: true,
            kinds: false,
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
        self.run(command).await
    }

    fn abandon(&self, name: &LockName, ticket: Ticket) {
        self.link.waiters.remove(ticket);
        self.link.abandon(name, ticket);
    }

    async fn inspect(&self, name: &LockName) -> Result<Answer<LockStatus>, StoreError> {
        let mut reply = self
            .link
            .step(|all| &all.inspect, name, None, Vec::new())
            .await?;
        let waiters = reply.outcome.size()?;
        let holder = match reply.outcome.is_empty() {
            true => None,
            false => Some(reply.outcome.lease(name)?),
        };
        let status = LockStatus {
            name: name.clone(),
            kind: holder.as_ref().map(|_| Kind::Exclusive),
            holder_count: usize::from(holder.is_some()),
            holders: holder.into_iter().collect(),
            waiters,
        };
        Ok(Answer {
            outcome: status,
            now: reply.now,
        })
    }

    async fn queue(
        &self,
        name: &LockName,
        limit: usize,
    ) -> Result<Answer<Vec<Waiter>>, StoreError> {
        let arguments = vec![limit.max(1).to_string().into()];
        let reply = self
            .link
            .step(|all| &all.queue, name, None, arguments)
            .await?;
        let waiters = reply.outcome.map(|waiter| Parts::of(waiter).waiter());
        let waiters: Result<Vec<Waiter>, BadReply> = waiters.collect();
        Ok(Answer {
            outcome: waiters?,
            now: reply.now,
        })
    }

    /// Partition by partition, by name in each.
    async fn list(&self, request: &ListRequest) -> Result<Page, ListError> {
        let mut after = request.after()?;
        self.link.check()?;
        let mut now = self.time().await?;
        let partitions = self.link.keyspace.partitions();
        let mut next = after
            .as_ref()
            .map_or(0, |name| self.link.keyspace.index_of(name));
        let mut locks = Vec::new();
        while next < partitions.len() && locks.len() <= request.limit {
            let wanted = request.limit + 1 - locks.len();
            let group = partitions[next..].iter().take(LISTED_AT_ONCE).enumerate();
            let names = try_join_all(group.map(|(place, partition)| {
                let after = after.as_ref().filter(|_| place == 0);
                self.names(partition, &request.prefix, after, wanted)
            }))
            .await?;
            after = None;
            for names in names {
                for status in self.inspect_all(&names).await? {
                    now = now.min(status.now);
                    locks.extend(Some(status.outcome).filter(|it| it.holder_count > 0));
                }
                // Some that have run out may have kept others from being listed.
                if names.len() == wanted {
                    after = names.into_iter().next_back();
                    break;
                }
                next += 1;
                if locks.len() > request.limit {
                    break;
                }
            }
        }
        Ok(Page::cut(locks, request.limit, now))
    }

    async fn sweep(&self, limit: usize) -> Result<usize, StoreError> {
        self.link.check()?;
        let link = &self.link;
        let arguments = [Value::from(limit.to_string())];
        // From another partition each time, so that one where much runs out does not always come first.
        let (before, from) = {
            let partitions = link.keyspace.partitions();
            let start = self.sweeps.fetch_add(1, Ordering::Relaxed) % partitions.len();
            partitions.split_at(start)
        };
        let due = join_all(from.iter().chain(before).map(async |partition| {
            let keys = [Value::from(partition.ends())];
            let connection = &link.connection;
            connection
                .run(&link.scripts.due, partition.slot, &keys, &arguments)
                .await
        }));
        let due = some_of(due.await)?.into_iter().flat_map(lock_names);
        let due: Vec<LockName> = due.take(limit).collect();
        let mut count = 0;
        for names in due.chunks(SETTLED_AT_ONCE) {
            let settled = join_all(names.iter().map(|name| self.settle(name))).await;
            count += some_of(settled)?.len();
        }
        Ok(count)
    }

    async fn health(&self) -> Result<(), StoreError> {
        self.link.check()?;
        // Removes nothing, but is refused where nothing can be written. A full Redis takes it, as it does releases.
        let key = self.link.keyspace.probe_key();
        let slot = redis_keyslot(key.as_bytes());
        let removed = self.link.connection.command("DEL", slot, vec![key.into()]);
        removed.await.map(drop).map_err(store_error)
    }

    async fn close(&self) {
        let mut pending_rollbacks = self.link.pending_rollbacks.subscribe();
        let all_rolled_back = pending_rollbacks.wait_for(|count| *count == 0);
        // What is not rolled back in time is free at its expiry.
        let _ = timeout(self.link.timeout, all_rolled_back).await;
    }

    async fn counts(&self) -> Result<Counts, StoreError> {
        self.link.check()?;
        let link = &self.link;
        let counts = link.keyspace.partitions().iter().map(async |partition| {
            let ends = vec![Value::from(partition.ends())];
            let count = link.connection.command("ZCARD", partition.slot, ends).await;
            count.map_err(store_error)
        });
        let counts = try_join_all(counts).await?;
        let counts = counts.into_iter().filter_map(|count| count.as_usize());
        Ok(Counts::exclusive(counts.sum()))
    }
}
