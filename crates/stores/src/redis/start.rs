//! From a connection to a store that works.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use forrst_lock::{Nodes, Secret};
use fred::error::{Error as FredError, ErrorKind};
use fred::types::{Builder, Value};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::connect::RunningClient;
use super::connection::{self, Connection};
use super::keyspace::{FORMAT, Keyspace};
use super::link::Link;
use super::replication::{Replicas, Replication};
use super::script::Scripts;
use super::waiters::Waiters;
use super::{RedisError, RedisOptions, RedisStore, listener, rollbacks, setup};

/// Why there is no store.
pub(super) enum NotStarted {
    Failed(FredError),
    Refused(RedisError),
}

impl From<FredError> for NotStarted {
    fn from(error: FredError) -> Self {
        Self::Failed(error)
    }
}

impl RedisStore {
    pub(super) async fn start(
        builder: Builder,
        options: &RedisOptions,
    ) -> Result<Self, NotStarted> {
        let mut tasks = JoinSet::new();
        let running = RunningClient::connect(&builder).await?;
        let connection = Arc::new(Connection::new(running.client.clone(), options.timeout));
        let problems = accepted_problems(&connection, options).await?;
        setup::warn(&problems);
        let secret = shared_secret(&connection, &Keyspace::new(&options.prefix)).await?;
        tasks.spawn(connection::keep(
            connection.clone(),
            builder.clone(),
            running,
        ));
        let replication = match options.wait {
            0 => None,
            _ => Some(start_replication(&builder, options, &mut tasks).await?),
        };
        let (rollbacks, given_up) = mpsc::unbounded_channel();
        let link = Arc::new(Link {
            connection,
            keyspace: Keyspace::new(&options.prefix),
            scripts: Scripts::new(options.release_memory),
            nodes: Nodes::default(),
            waiters: Waiters::default(),
            node: uuid::Uuid::new_v4().simple().to_string(),
            replication,
            timeout: options.timeout,
            refusal: Default::default(),
            rollbacks,
            pending_rollbacks: watch::Sender::new(0),
        });
        let listening = RunningClient::connect(&builder).await?;
        let subscription = listener::Subscription::of(listening, &link.channel()).await?;
        tasks.spawn(listener::run(link.clone(), builder, subscription));
        tasks.spawn(rollbacks::run(link.clone(), given_up));
        let (wait, strict) = (options.wait, options.strict);
        tasks.spawn(setup::watch(link.clone(), wait, strict, problems));
        Ok(Self {
            link,
            secret,
            release_memory: options.release_memory,
            sweeps: AtomicUsize::new(0),
            _tasks: tasks,
        })
    }
}

/// Asks replicas about grants, on a connection of its own.
async fn start_replication(
    builder: &Builder,
    options: &RedisOptions,
    tasks: &mut JoinSet<()>,
) -> Result<Replication, NotStarted> {
    let running = RunningClient::connect(builder).await?;
    let connection = Arc::new(Connection::new(running.client.clone(), options.timeout));
    tasks.spawn(connection::keep(
        connection.clone(),
        builder.clone(),
        running,
    ));
    let replicas = Replicas {
        connection,
        keyspace: Keyspace::new(&options.prefix),
        needed: options.wait,
        timeout: options.timeout,
    };
    let (replication, grants) = Replication::channel();
    tasks.spawn(replicas.ask(grants));
    Ok(replication)
}

/// Whether this Redis can be used, and what is wrong with it all the same.
async fn accepted_problems(
    connection: &Connection,
    options: &RedisOptions,
) -> Result<Vec<String>, NotStarted> {
    if let Some(version) = setup::too_old(connection).await? {
        return Err(NotStarted::Refused(RedisError::TooOld(version)));
    }
    let found = claim_format(connection, &Keyspace::new(&options.prefix)).await?;
    if found != FORMAT {
        let prefix = options.prefix.clone();
        let error = RedisError::OtherFormat { prefix, found };
        return Err(NotStarted::Refused(error));
    }
    let problems = setup::problems(connection, options.wait).await?;
    if options.strict && !problems.is_empty() {
        return Err(NotStarted::Refused(RedisError::Unsafe(problems)));
    }
    Ok(problems)
}

/// The format that is written under the prefix, which is ours if there was none.
async fn claim_format(connection: &Connection, keyspace: &Keyspace) -> Result<String, FredError> {
    claim(connection, &keyspace.format_key(), FORMAT).await
}

/// The secret of all nodes that use the prefix, as 64 hexadecimal digits. The first node makes it.
async fn shared_secret(connection: &Connection, keyspace: &Keyspace) -> Result<Secret, NotStarted> {
    let key = keyspace.secret_key();
    let made: String = Secret::random()
        .as_bytes()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let kept = claim(connection, &key, &made).await?;
    let mut bytes = [0; 32];
    let digits = (0..32).map(|at| kept.get(2 * at..2 * at + 2));
    for (byte, digits) in bytes.iter_mut().zip(digits) {
        let parsed = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        *byte = parsed.ok_or_else(|| {
            let message = format!("`{key}` is not 64 hexadecimal digits");
            FredError::new(ErrorKind::Parse, message)
        })?;
    }
    Ok(Secret::from_bytes(bytes))
}

/// What a key of the whole prefix says, which is `ours` if there was none.
async fn claim(connection: &Connection, key: &str, ours: &str) -> Result<String, FredError> {
    let slot = fred::util::redis_keyslot(key.as_bytes());
    let look = || connection.command("GET", slot, vec![Value::from(key)]);
    // Not written without need: a full Redis lets nobody write.
    if let Some(found) = look().await?.into_string() {
        return Ok(found);
    }
    let arguments = vec![Value::from(key), ours.into()];
    connection.command("SETNX", slot, arguments).await?;
    Ok(look().await?.into_string().unwrap_or_default())
}
