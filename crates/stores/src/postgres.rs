//! Locks in a Postgres database, shared by any number of processes.
//!
//! A key is a row. The [`engine`] of each process runs commands in batches: a transaction locks the rows of all keys that they concern,
//! runs the [model](forrst_lock::model) on them, and writes what has changed ([`transaction`], [`rows`]). Queues are in the rows as well:
//! each process remembers which of its calls wait ([`waiting`]), is notified by the others ([`listener`]), and finds out by itself what
//! it may have missed ([`upkeep`]).

mod connect;
mod deliver;
mod engine;
mod fitness;
mod job;
mod link;
mod listener;
mod message;
mod reader;
mod row;
mod rows;
mod schema;
mod tls;
mod transaction;
mod upkeep;
mod waiting;

use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use forrst_lock::model::{Command, Outcome};
use forrst_lock::{
    Answer, Capabilities, Counts, ListError, ListRequest, LockName, LockStatus, LockStore, Node,
    NodeId, Page, ReleaseMemory, Secret, StoreError, Ticket, Waiter,
};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_postgres::Error;

pub use connect::ConnectError;
use connect::{Connection, Connector, message_of};
use engine::Engine;
use fitness::Fitness;
use link::{Link, Message, Parts};
use rows::Runner;
use schema::{Schema, VERSION};

use crate::{Checked, url_without_secrets};

/// The options of a Postgres store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PostgresOptions {
    /// The schema of the tables, so that one database can have several stores.
    pub schema: String,
    /// How long a command may take.
    pub timeout: Duration,
    /// Refuse a server whose settings can lose locks, instead of warning.
    pub strict: bool,
    /// The CA certificates to trust, instead of the system's.
    pub ca: Option<PathBuf>,
    /// How long a release is remembered.
    pub release_memory: ReleaseMemory,
}

impl Default for PostgresOptions {
    fn default() -> Self {
        Self {
            schema: "forrst".to_owned(),
            timeout: crate::STORE_TIMEOUT,
            strict: false,
            ca: None,
            release_memory: ReleaseMemory::default(),
        }
    }
}

/// Why a Postgres cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PostgresError {
    /// The URL cannot be parsed.
    #[error("`{url}` is not a Postgres URL: {error}")]
    BadUrl {
        /// Without its secrets.
        url: String,
        /// What is wrong with it.
        error: String,
    },
    /// The name of the schema is invalid.
    #[error(
        "the schema `{0}` must have 1 to 30 lower-case letters, digits or `_`, beginning with a letter, and not with `pg_`"
    )]
    BadSchema(String),
    /// The certificates cannot be read.
    #[error("cannot use the certificates in {}: {error}", .file.display())]
    BadCa {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        error: String,
    },
    /// The server does not answer, or refuses this client.
    #[error("cannot use Postgres at {url}: {error}")]
    Unreachable {
        /// Without its secrets.
        url: String,
        /// Why.
        error: ConnectError,
    },
    /// The server cannot be used.
    #[error("cannot use this Postgres: {0}")]
    Unfit(String),
    /// The tables are those of another version.
    #[error(
        "the schema `{schema}` has the tables of another version of forrst (version {found}, and this one supports {VERSION}): use \
         another schema with `--postgres-schema`, or upgrade this server"
    )]
    OtherVersion {
        /// The schema.
        schema: String,
        /// The version of its tables.
        found: String,
    },
    /// The tables do not exist or are old, and this role may not change them.
    #[error(
        "the tables in the schema `{schema}` have to be created or upgraded, and this role may not do that ({}): run \
         `forrst store migrate --store URL` with a role that may",
        message_of(.error)
    )]
    NotMigrated {
        /// The schema.
        schema: String,
        /// What the server said.
        error: Error,
    },
    /// The settings of the server can lose locks, which [`PostgresOptions::strict`] refuses.
    #[error("this Postgres can lose locks (--strict):\n  - {}", .0.join("\n  - "))]
    Unsafe(Vec<String>),
    /// A statement failed.
    #[error("cannot use this Postgres: {}", message_of(.0))]
    Failed(#[from] Error),
}

impl PostgresError {
    /// Whether the same server may be usable a moment later: it is not up yet, is recovering, or is failing over.
    pub fn is_temporary(&self) -> bool {
        match self {
            Self::Unreachable { error, .. } => error.is_temporary(),
            _ => false,
        }
    }
}

/// Locks in a Postgres database, shared by many processes.
#[derive(Debug)]
pub struct PostgresStore {
    link: Arc<Link>,
    secret: Secret,
    _tasks: JoinSet<()>,
}

impl PostgresStore {
    /// Connects to the Postgres at `url`, creates or upgrades the tables, and checks the settings of the server.
    ///
    /// # Errors
    ///
    /// When it cannot be reached or used.
    pub async fn open(url: &str, options: &PostgresOptions) -> Result<Self, PostgresError> {
        let schema = Schema::parse(&options.schema)?;
        let connector = Connector::new(url, options)?;
        let connection = connect(&connector, url).await?;
        let secret = schema::prepare(&connection.client, &schema).await?;
        let fitness = Fitness::read(&connection.client, Some(&schema)).await?;
        let problems = fitness.problems();
        if options.strict && !problems.is_empty() {
            return Err(PostgresError::Unsafe(problems));
        }
        fitness::warn(&problems);
        let (messages, incoming) = mpsc::unbounded_channel();
        let node = NodeId::new(&uuid::Uuid::new_v4().simple().to_string());
        let link = Link::new(Parts {
            connector,
            schema,
            runner: Runner {
                node,
                memory: options.release_memory,
            },
            timeout: options.timeout,
            messages,
        });
        upkeep::send_heartbeat(&link)
            .await
            .map_err(|error| PostgresError::Unfit(error.to_string()))?;
        let mut tasks = JoinSet::new();
        tasks.spawn(Engine::new(link.clone(), incoming, connection).run());
        tasks.spawn(listener::run(link.clone()));
        tasks.spawn(upkeep::send_heartbeats(link.clone()));
        tasks.spawn(upkeep::poll(link.clone()));
        tasks.spawn(fitness::watch(link.clone(), options.strict, problems));
        Ok(Self {
            link,
            secret,
            _tasks: tasks,
        })
    }

    /// Creates or upgrades the tables, for a server whose role may not do that.
    ///
    /// # Errors
    ///
    /// When the server cannot be reached, or the role may not do it either.
    pub async fn migrate(url: &str, options: &PostgresOptions) -> Result<(), PostgresError> {
        let schema = Schema::parse(&options.schema)?;
        let connection = connect(&Connector::new(url, options)?, url).await?;
        schema::prepare(&connection.client, &schema).await?;
        Ok(())
    }

    /// What is unsafe about the settings of a server, and what else to know. Nothing is changed.
    ///
    /// # Errors
    ///
    /// When it cannot be reached or used.
    pub async fn check(url: &str, options: &PostgresOptions) -> Result<Checked, PostgresError> {
        let schema = Schema::parse(&options.schema)?;
        let connection = connect(&Connector::new(url, options)?, url).await?;
        let version = schema::read_version(&connection.client, &schema).await?;
        let read_from = version.map(|_| &schema);
        let fitness = Fitness::read(&connection.client, read_from).await?;
        let mut notes = vec![format!("Postgres {}", fitness.version_name)];
        if version != Some(VERSION) {
            let name = schema.name();
            notes.push(format!(
                "the tables in the schema `{name}` are not there or old: a server creates them, or `forrst store migrate`"
            ));
        }
        Ok(Checked {
            problems: fitness.problems(),
            notes,
        })
    }
}

/// Connects to a server that can be used.
async fn connect(connector: &Connector, url: &str) -> Result<Connection, PostgresError> {
    let connection = connector.connect(None).await;
    let connection = connection.map_err(|error| PostgresError::Unreachable {
        url: url_without_secrets(url),
        error,
    })?;
    let fitness = Fitness::read(&connection.client, None).await?;
    match fitness.obstacle() {
        Some(obstacle) => Err(PostgresError::Unfit(obstacle)),
        None => Ok(connection),
    }
}

#[async_trait]
impl LockStore for PostgresStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            durable: true,
            shared: true,
            notifies: true,
            release_memory: self.link.runner.memory,
        }
    }

    fn secret(&self) -> Secret {
        self.secret
    }

    fn subscribe(&self, node: Weak<dyn Node>) {
        self.link.nodes.add(node);
    }

    async fn submit(&self, mut command: Command) -> Result<Answer<Outcome>, StoreError> {
        let link = &self.link;
        match &mut command {
            Command::Acquire(acquire) => {
                link.check_settings()?;
                acquire.node = Some(link.runner.node.clone());
            }
            Command::Abandon { ticket, .. } => {
                link.waiting.remove(*ticket);
            }
            _ => {}
        }
        link.ask(|reply| Message::Command(command, reply)).await
    }

    fn abandon(&self, name: &LockName, ticket: Ticket) {
        self.link.abandon(name, ticket);
    }

    async fn inspect(&self, name: &LockName) -> Result<Answer<LockStatus>, StoreError> {
        self.link.reader.inspect(name).await
    }

    async fn queue(
        &self,
        name: &LockName,
        limit: usize,
    ) -> Result<Answer<Vec<Waiter>>, StoreError> {
        self.link.reader.queue(name, limit).await
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, ListError> {
        self.link.reader.list(request).await
    }

    async fn sweep(&self, limit: usize) -> Result<usize, StoreError> {
        let due = self.link.reader.due(limit).await?;
        if due.is_empty() {
            return Ok(0);
        }
        self.link.ask(|reply| Message::Sweep(due, reply)).await
    }

    /// A heartbeat is a write that does not wait for the disk.
    async fn health(&self) -> Result<(), StoreError> {
        self.link.check_settings()?;
        upkeep::send_heartbeat(&self.link).await.map(drop)
    }

    async fn close(&self) {
        let mut pending_rollbacks = self.link.pending_rollbacks.subscribe();
        let all_rolled_back = pending_rollbacks.wait_for(|count| *count == 0);
        // What is not rolled back in time ends when it expires.
        let _ = timeout(self.link.timeout, all_rolled_back).await;
    }

    async fn counts(&self) -> Result<Counts, StoreError> {
        self.link.reader.counts().await
    }
}
