//! Opens a store: checks the server, agrees on the format and the secret of the prefix, and starts the tasks.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use forrst_lock::{Nodes, Secret};
use fred::error::{Error as FredError, ErrorKind};
use fred::types::{Builder, Value};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::command::millis;
use super::connection::{Connections, not_connected};
use super::group::PartitionGroup;
use super::header::CallHeader;
use super::keyspace::{FORMAT, Keyspace};
use super::library::{Library, call_arguments};
use super::link::Link;
use super::listener::Subscription;
use super::replication::{Replicas, Replication};
use super::tracking::{self, Tracking};
use super::waiters::Waiters;
use super::{RedisError, RedisOptions, RedisStore, listener, rollbacks, setup, upkeep};

/// By how much longer a tombstone lives than an abandoned call may take to arrive.
const TOMBSTONE_MARGIN: Duration = Duration::from_secs(5);

pub(super) enum StartError {
    Failed(FredError),
    Refused(RedisError),
}

impl From<FredError> for StartError {
    fn from(error: FredError) -> Self {
        Self::Failed(error)
    }
}

impl RedisStore {
    pub(super) async fn start(
        builder: Builder,
        options: &RedisOptions,
    ) -> Result<Self, StartError> {
        let mut tasks = JoinSet::new();
        let connections = Connections::open(builder.clone(), options.timeout, &mut tasks).await?;
        let problems = accepted_problems(&connections, options).await?;
        setup::warn(&problems);
        let keyspace = Keyspace::new(&options.prefix, connections.is_cluster());
        let secret = shared_secret(&connections, &keyspace).await?;
        let library = Library::new();
        for connection in connections.all() {
            // A call loads the library only where it is missing: a full Redis refuses to load it.
            let limit = vec![Value::from("0")];
            let due = library.call(&connection, &library.due, Vec::new(), limit);
            due.await?;
        }
        let config = builder.get_config();
        let database = config.and_then(|config| config.database).unwrap_or(0);
        let replication = match options.wait {
            0 => None,
            _ => Some(start_replication(builder, &library, options, &mut tasks).await?),
        };
        let (rollbacks, given_up) = mpsc::unbounded_channel();
        let header = CallHeader {
            node: uuid::Uuid::new_v4().simple().to_string(),
            channel: keyspace.channel_prefix(),
            release_memory_millis: millis(options.release_memory.as_duration()),
            must_confirm: replication.is_some(),
            database: database.to_string(),
            // A command that has not begun within the timeout is not run.
            tombstone_millis: millis(2 * options.timeout + TOMBSTONE_MARGIN),
        };
        let (tracking, watched) = Tracking::channel();
        let groups = (0..keyspace.groups()).map(|number| PartitionGroup::new(&keyspace, number));
        let link = Arc::new(Link {
            groups: groups.collect(),
            connections,
            keyspace,
            library,
            header,
            nodes: Nodes::default(),
            waiters: Waiters::default(),
            tracking: Arc::new(tracking),
            replication,
            timeout: options.timeout,
            refusal: Default::default(),
            rollbacks,
            pending_rollbacks: watch::Sender::new(0),
        });
        let subscription = Subscription::connect(&link.connections, &link.channel(), None).await?;
        tasks.spawn(listener::run(link.clone(), subscription));
        tasks.spawn(rollbacks::run(link.clone(), given_up));
        tasks.spawn(tracking::run(link.clone(), watched));
        for number in 0..link.groups.len() {
            tasks.spawn(upkeep::run(link.clone(), number));
        }
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

async fn start_replication(
    builder: Builder,
    library: &Library,
    options: &RedisOptions,
    tasks: &mut JoinSet<()>,
) -> Result<Replication, StartError> {
    let connections = Connections::open(builder, options.timeout, tasks).await?;
    let keyspace = Keyspace::new(&options.prefix, connections.is_cluster());
    let touch = library.touch.clone();
    let replicas = Replicas {
        connections,
        touch: Box::new(move |slot| {
            let mut groups = 0..keyspace.groups();
            let group = groups.find(|group| keyspace.slot_of(*group) == slot);
            let keys = keyspace.touch_keys(group.unwrap_or_default());
            ("FCALL", call_arguments(&touch, keys, Vec::new()))
        }),
        needed: options.wait,
        timeout: options.timeout,
    };
    let (replication, grants) = Replication::channel();
    tasks.spawn(replicas.run(grants));
    Ok(replication)
}

/// Refuses a Redis that cannot be used. Returns the problems of one that can be.
async fn accepted_problems(
    connections: &Connections,
    options: &RedisOptions,
) -> Result<Vec<String>, StartError> {
    if let Some(version) = setup::too_old(connections).await? {
        return Err(StartError::Refused(RedisError::TooOld(version)));
    }
    let keyspace = Keyspace::new(&options.prefix, connections.is_cluster());
    let found = get_or_set(connections, &keyspace.format_key(), FORMAT).await?;
    if found != FORMAT {
        let prefix = options.prefix.clone();
        let error = RedisError::OtherFormat { prefix, found };
        return Err(StartError::Refused(error));
    }
    let problems = setup::problems(connections, options.wait).await?;
    if options.strict && !problems.is_empty() {
        return Err(StartError::Refused(RedisError::Unsafe(problems)));
    }
    Ok(problems)
}

/// The secret of all nodes that use the prefix, kept as 64 hexadecimal digits. The first node generates it.
async fn shared_secret(
    connections: &Connections,
    keyspace: &Keyspace,
) -> Result<Secret, StartError> {
    let key = keyspace.secret_key();
    let ours: String = Secret::random()
        .as_bytes()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let kept = get_or_set(connections, &key, &ours).await?;
    let mut bytes = [0; 32];
    let digits = (0..32).map(|at| kept.get(2 * at..2 * at + 2));
    for (byte, digits) in bytes.iter_mut().zip(digits) {
        let parsed = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        *byte = parsed.ok_or_else(|| {
            let message = format!("the value of the key `{key}` is not 64 hexadecimal digits");
            FredError::new(ErrorKind::Parse, message)
        })?;
    }
    Ok(Secret::from_bytes(bytes))
}

/// The value of a key that all nodes of the prefix share. If it does not exist, it is set to `ours`.
async fn get_or_set(connections: &Connections, key: &str, ours: &str) -> Result<String, FredError> {
    let slot = fred::util::redis_keyslot(key.as_bytes());
    let connection = connections.find(slot).ok_or_else(not_connected)?;
    let get = || connection.command("GET", vec![Value::from(key)]);
    // A full Redis refuses writes, so nothing is written if there is a value.
    if let Some(found) = get().await?.into_string() {
        return Ok(found);
    }
    let arguments = vec![Value::from(key), ours.into()];
    connection.command("SETNX", arguments).await?;
    Ok(get().await?.into_string().unwrap_or_default())
}
