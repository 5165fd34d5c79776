//! Reports changes of watched keys by other nodes, through client-side caching of Redis: after a connection has read a key, Redis
//! notifies it once when the key changes, expires or is deleted, whichever client changed it.
//!
//! The first watched key opens a connection for that, in a cluster one to each server that has watched keys. After a report, the key
//! is read through that connection again, at most once in [`PAUSE`]; only then is the node notified, so that it misses no later
//! change. When a connection is lost or a server is replaced, everything begins again. A report can be lost nevertheless, so the
//! service polls each watched key, every few seconds, and asks for new reports if it finds a change ([`KeyWatch::renew`]).

use std::collections::{BTreeSet, HashMap};
use std::future::pending;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forrst_lock::{KeyWatch, LockName};
use fred::clients::Client;
use fred::error::Error as FredError;
use fred::interfaces::{ClientLike, TrackingInterface};
use fred::types::client::Invalidation;
use fred::types::config::{Options, Server};
use fred::types::{ClusterHash, CustomCommand, Key, RespVersion, Value};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::broadcast::Receiver;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use super::connect::{FIRST_PAUSE, RunningClient};
use super::connection::not_connected;
use super::keyspace::name_of_any;
use super::link::Link;

/// How often a key is reported at most. Changes in between are reported together.
const PAUSE: Duration = Duration::from_millis(20);
/// The pauses between attempts to connect grow up to this. Keys are polled meanwhile.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How many reads are under way at once.
const AT_ONCE: usize = 64;

/// The keys that are watched in this process.
#[derive(Debug)]
pub(super) struct Tracking {
    keys: Mutex<HashMap<LockName, Watched>>,
    /// Receives each key that was not watched before, or whose reports have to begin again.
    to_read: UnboundedSender<LockName>,
}

#[derive(Debug, Default)]
struct Watched {
    watches: usize,
    /// It is going to be read.
    is_due: bool,
    last_read: Option<Instant>,
    /// It was read, so Redis reports its next change.
    is_live: bool,
}

impl Tracking {
    pub(super) fn channel() -> (Self, UnboundedReceiver<LockName>) {
        let (to_read, receiver) = unbounded_channel();
        let keys = Mutex::default();
        (Self { keys, to_read }, receiver)
    }

    pub(super) fn watch(self: &Arc<Self>, name: &LockName) -> TrackedKey {
        let mut keys = self.keys();
        let key = keys.entry(name.clone()).or_default();
        key.watches += 1;
        if key.watches == 1 {
            // It only fails when the store has been dropped.
            let _ = self.to_read.send(name.clone());
        }
        TrackedKey {
            tracking: self.clone(),
            name: name.clone(),
        }
    }

    fn keys(&self) -> MutexGuard<'_, HashMap<LockName, Watched>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All keys have to be read again.
    fn restart(&self) -> Vec<LockName> {
        let mut keys = self.keys();
        for key in keys.values_mut() {
            *key = Watched {
                watches: key.watches,
                ..Watched::default()
            };
        }
        keys.keys().cloned().collect()
    }

    /// When to read a key that has changed; `None` if it is not watched, or is going to be read anyway.
    fn schedule(&self, name: &LockName) -> Option<Instant> {
        let mut keys = self.keys();
        let key = keys.get_mut(name).filter(|key| !key.is_due)?;
        key.is_due = true;
        let now = Instant::now();
        Some(key.last_read.map_or(now, |last| now.max(last + PAUSE)))
    }

    /// Whether a key has to be read now.
    fn begin_read(&self, name: &LockName) -> bool {
        let mut keys = self.keys();
        let Some(key) = keys.get_mut(name).filter(|key| key.is_due) else {
            return false;
        };
        key.is_due = false;
        key.last_read = Some(Instant::now());
        true
    }

    fn has_been_read(&self, name: &LockName) {
        if let Some(key) = self.keys().get_mut(name) {
            key.is_live = true;
        }
    }
}

/// A watched key, until it is dropped.
#[derive(Debug)]
pub(super) struct TrackedKey {
    tracking: Arc<Tracking>,
    name: LockName,
}

impl KeyWatch for TrackedKey {
    fn is_live(&self) -> bool {
        let keys = self.tracking.keys();
        keys.get(&self.name).is_some_and(|key| key.is_live)
    }

    /// `FLUSHALL` ends the tracking of all keys, and fred does not pass that on.
    fn renew(&self) {
        if self.is_live() {
            // It only fails when the store has been dropped.
            let _ = self.tracking.to_read.send(self.name.clone());
        }
    }
}

impl Drop for TrackedKey {
    fn drop(&mut self) {
        let mut keys = self.tracking.keys();
        if let Some(key) = keys.get_mut(&self.name) {
            key.watches -= 1;
            if key.watches == 0 {
                keys.remove(&self.name);
            }
        }
    }
}

/// Runs until the store is dropped.
pub(super) async fn run(link: Arc<Link>, mut to_read: UnboundedReceiver<LockName>) {
    if to_read.recv().await.is_none() {
        return;
    }
    let mut pause = FIRST_PAUSE;
    loop {
        let since = Instant::now();
        let error = Session::new(&link).run(&mut to_read).await;
        tracing::debug!(%error, "watching keys at Redis again");
        for key in link.tracking.keys().values_mut() {
            key.is_live = false;
        }
        if since.elapsed() > LONGEST_PAUSE {
            pause = FIRST_PAUSE;
        }
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// What a connection has received.
enum Event {
    Invalidated(Vec<Key>),
    Lost(FredError),
}

/// The connections, until one of them is lost or a server is replaced.
struct Session<'a> {
    link: &'a Arc<Link>,
    clients: HashMap<Option<Server>, Client>,
    /// They drive the connections.
    tasks: JoinSet<()>,
    sender: UnboundedSender<Event>,
    events: UnboundedReceiver<Event>,
    /// The keys to be read, each with the time from which on.
    due: BTreeSet<(Instant, LockName)>,
}

impl<'a> Session<'a> {
    fn new(link: &'a Arc<Link>) -> Self {
        let (sender, events) = unbounded_channel();
        Self {
            link,
            clients: HashMap::new(),
            tasks: JoinSet::new(),
            sender,
            events,
            due: BTreeSet::new(),
        }
    }

    /// Returns why it ended.
    async fn run(mut self, to_read: &mut UnboundedReceiver<LockName>) -> FredError {
        let tracking = &self.link.tracking;
        let mut replaced = self.link.connections.changes();
        for name in tracking.restart() {
            self.schedule(&name);
        }
        let mut reads = FuturesUnordered::new();
        loop {
            while reads.len() < AT_ONCE
                && let Some((at, _)) = self.due.first()
                && *at <= Instant::now()
                && let Some((_, name)) = self.due.pop_first()
            {
                if tracking.begin_read(&name) {
                    match self.client_for(&name).await {
                        Ok(client) => reads.push(read(self.link, client, name)),
                        Err(error) => return error,
                    }
                }
            }
            let next = self.due.first().filter(|_| reads.len() < AT_ONCE);
            let next = next.map(|(at, _)| *at);
            let is_due = async {
                match next {
                    Some(at) => sleep_until(at).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                // First, so that a change of both keys of a lock is reported once.
                biased;
                Some(event) = self.events.recv() => match event {
                    Event::Invalidated(keys) => {
                        let names = keys.iter().filter_map(|key| name_of_any(key.as_str()?));
                        names.for_each(|name| self.schedule(&name));
                    }
                    Event::Lost(error) => return error,
                },
                Some(name) = to_read.recv() => self.schedule(&name),
                Some((name, read)) = reads.next() => match read {
                    Ok(()) => {
                        tracking.has_been_read(&name);
                        self.link.nodes.may_have_changed(&name);
                    }
                    Err(error) => return error,
                },
                _ = replaced.changed() => return not_connected(),
                () = is_due => {}
            }
        }
    }

    fn schedule(&mut self, name: &LockName) {
        let at = self.link.tracking.schedule(name);
        self.due.extend(at.map(|at| (at, name.clone())));
    }

    /// The client of the server that has this key.
    async fn client_for(&mut self, name: &LockName) -> Result<Client, FredError> {
        let connections = &self.link.connections;
        let connection = connections.find(self.link.group_of(name).slot);
        let connection = connection.ok_or_else(not_connected)?;
        let server = connection.server().cloned();
        if let Some(client) = self.clients.get(&server) {
            return Ok(client.clone());
        }
        let mut builder = connections.builder_for(server.as_ref());
        // Reports come on the same connection only in RESP3.
        builder.with_config(|config| config.version = RespVersion::RESP3);
        let running = RunningClient::connect(&builder).await?;
        let client = running.client.clone();
        // Before the first report: without a receiver, it would be dropped.
        let invalidations = client.invalidation_rx();
        let sender = self.sender.clone();
        self.tasks.spawn(drive(running, invalidations, sender));
        let arguments = vec![Value::from("TRACKING"), Value::from("ON")];
        send(self.link, &client, "CLIENT", arguments).await?;
        self.clients.insert(server, client.clone());
        Ok(client)
    }
}

/// Passes on what a connection receives, until it is lost.
async fn drive(
    mut running: RunningClient,
    mut invalidations: Receiver<Invalidation>,
    sender: UnboundedSender<Event>,
) {
    loop {
        let event = tokio::select! {
            invalidation = invalidations.recv() => match invalidation {
                Ok(invalidation) => Event::Invalidated(invalidation.keys),
                // Some reports did not fit into the buffer.
                Err(_) => Event::Lost(not_connected()),
            },
            error = running.ended() => Event::Lost(error),
        };
        let is_lost = matches!(event, Event::Lost(_));
        if sender.send(event).is_err() || is_lost {
            return;
        }
    }
}

/// Reads a key, so that its next change is reported.
async fn read(link: &Link, client: Client, name: LockName) -> (LockName, Result<(), FredError>) {
    let keys = link.keyspace.lock_keys(&name).into();
    let read = send(link, &client, "EXISTS", keys).await;
    (name, read)
}

async fn send(
    link: &Link,
    client: &Client,
    name: &'static str,
    arguments: Vec<Value>,
) -> Result<(), FredError> {
    let options = Options {
        max_attempts: Some(1),
        timeout: Some(link.timeout),
        fail_fast: true,
        ..Options::default()
    };
    let command = CustomCommand::new_static(name, ClusterHash::Random, false);
    let client = client.with_options(&options);
    let _: Value = client.custom(command, arguments).await?;
    Ok(())
}
