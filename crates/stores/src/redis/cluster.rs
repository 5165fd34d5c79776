//! Follows the topology of a cluster, and keeps a connection to each of its primaries.
//!
//! Any server can be queried for the topology: first those that are connected, then those of the URL and all that were seen since,
//! because a cluster may have replaced every server that the URL names.

use std::collections::HashMap;
use std::sync::Arc;

use fred::error::{Error as FredError, ErrorKind};
use fred::types::Value;
use fred::types::config::{Server, ServerConfig};
use futures_util::future::join_all;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};

use super::connect::{FIRST_PAUSE, LONGEST_PAUSE};
use super::connection::{Connection, Connections, LiveConnection, not_connected};
use super::connections::keep_connected;
use super::topology::Topology;

/// How many servers are queried at once: one that hangs does not delay the answer.
const QUERIED_AT_ONCE: usize = 3;
/// How many servers are remembered besides those of the URL.
const REMEMBERED: usize = 64;

/// Connects to all primaries, of which at least one has to answer, and starts to follow the topology.
pub(super) async fn open(
    connections: &Arc<Connections>,
    tasks: &mut JoinSet<()>,
) -> Result<(), FredError> {
    let mut seeds = Seeds::from_config(connections);
    let topology = query_topology(connections, &mut seeds).await?;
    let servers = topology.servers().to_vec();
    connections.set_topology(topology);
    let connected = join_all(
        servers
            .iter()
            .map(|server| connections.connect(Some(server))),
    )
    .await;
    let (mut keepers, mut failed) = (Keepers::default(), not_connected());
    for (server, connected) in servers.into_iter().zip(connected) {
        let live = connected.map_err(|error| failed = error).ok();
        keepers.add(connections, server, live);
    }
    if connections.all().is_empty() {
        return Err(failed);
    }
    tasks.spawn(follow(connections.clone(), seeds, keepers));
    Ok(())
}

/// Queries the topology whenever it may have changed. Runs until the store is dropped.
async fn follow(connections: Arc<Connections>, mut seeds: Seeds, mut keepers: Keepers) {
    let mut pause = FIRST_PAUSE;
    loop {
        let since = Instant::now();
        let trigger = connections.topology_stale.notified();
        match connections.are_complete() {
            true => trigger.await,
            // A server that hangs while we connect to it causes no notification, and another one may have taken over.
            false => drop(timeout(LONGEST_PAUSE, trigger).await),
        }
        if since.elapsed() > 2 * LONGEST_PAUSE {
            pause = FIRST_PAUSE;
        }
        // All nodes of a fleet notice a change at the same time.
        sleep(pause.mul_f64(0.5 + fastrand::f64())).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
        match query_topology(&connections, &mut seeds).await {
            Ok(topology) if connections.has_topology(&topology) => {}
            Ok(topology) => {
                tracing::info!(servers = ?names(topology.servers()), "the topology of the cluster has changed");
                pause = FIRST_PAUSE;
                let servers = topology.servers().to_vec();
                connections.set_topology(topology);
                keepers.set(&connections, servers);
            }
            Err(error) => tracing::debug!(%error, "cannot query the topology of the cluster"),
        }
    }
}

fn names(servers: &[Server]) -> Vec<String> {
    servers.iter().map(ToString::to_string).collect()
}

/// The tasks that keep the servers connected.
#[derive(Default)]
struct Keepers {
    tasks: JoinSet<()>,
    by_server: HashMap<Server, AbortHandle>,
}

impl Keepers {
    fn add(
        &mut self,
        connections: &Arc<Connections>,
        server: Server,
        live: Option<LiveConnection>,
    ) {
        let task = keep_connected(connections.clone(), Some(server.clone()), live);
        self.by_server.insert(server, self.tasks.spawn(task));
    }

    /// Closes connections to servers that are not among these.
    fn set(&mut self, connections: &Arc<Connections>, servers: Vec<Server>) {
        self.by_server.retain(|server, task| {
            let stays = servers.contains(server);
            if !stays {
                task.abort();
            }
            stays
        });
        for server in servers {
            if !self.by_server.contains_key(&server) {
                self.add(connections, server, None);
            }
        }
        while self.tasks.try_join_next().is_some() {}
    }
}

/// Servers that may know the topology.
struct Seeds {
    from_url: Vec<Server>,
    /// Sorted by when they were last seen, the latest last.
    seen: Vec<Server>,
}

impl Seeds {
    fn from_config(connections: &Connections) -> Self {
        let builder = connections.builder_for(None);
        let from_url = match builder.get_config().map(|config| &config.server) {
            Some(ServerConfig::Clustered { hosts, .. }) => hosts.clone(),
            _ => Vec::new(),
        };
        Self {
            from_url,
            seen: Vec::new(),
        }
    }

    fn remember(&mut self, servers: impl Iterator<Item = Server>) {
        for server in servers {
            self.seen.retain(|seen| *seen != server);
            self.seen.push(server);
        }
        let too_many = self.seen.len().saturating_sub(REMEMBERED);
        self.seen.drain(..too_many);
    }

    fn shuffled(&self) -> Vec<Server> {
        let new = self.seen.iter().filter(|it| !self.from_url.contains(it));
        let mut all: Vec<Server> = self.from_url.iter().chain(new).cloned().collect();
        fastrand::shuffle(&mut all);
        all
    }
}

/// The cluster as one server sees it.
struct View {
    topology: Topology,
    replicas: Vec<Server>,
    /// The server is not cut off from the others. If no server is ok, a part of the cluster is down.
    is_ok: bool,
}

/// Queries the servers that are connected, then the seeds.
async fn query_topology(
    connections: &Arc<Connections>,
    seeds: &mut Seeds,
) -> Result<Topology, FredError> {
    let mut connected = connections.all();
    fastrand::shuffle(&mut connected);
    connected.truncate(QUERIED_AT_ONCE);
    let views = connected
        .into_iter()
        .map(async |connection| query(&connection).await);
    let mut view = first_view(views.collect()).await;
    let others = seeds.shuffled();
    let mut others = others.chunks(QUERIED_AT_ONCE);
    // After the answer of a server that is cut off, only one more group is queried: all servers may be.
    let mut is_last = view.is_ok();
    while !matches!(&view, Ok(View { is_ok: true, .. }))
        && let Some(group) = others.next()
    {
        let views = group.iter().map(|server| {
            let (connections, server) = (connections.clone(), server.clone());
            async move {
                let live = connections.connect_unshared(Some(&server)).await?;
                query(&live.connection).await
            }
        });
        let next = first_view(views.collect()).await;
        view = match (view, next) {
            (Ok(view), Ok(next)) if !next.is_ok => Ok(view),
            (Ok(view), Err(_)) => Ok(view),
            (_, next) => next,
        };
        if std::mem::replace(&mut is_last, view.is_ok()) {
            break;
        }
    }
    let View {
        topology, replicas, ..
    } = view?;
    seeds.remember(topology.servers().iter().cloned().chain(replicas));
    Ok(topology)
}

/// The first view of a server that is not cut off; if there is none, any view.
async fn first_view<F>(views: Vec<F>) -> Result<View, FredError>
where
    F: Future<Output = Result<View, FredError>> + Send + 'static,
{
    let mut tasks: JoinSet<_> = views.into_iter().collect();
    let mut found = Err(not_connected());
    while let Some(view) = tasks.join_next().await {
        match view {
            Ok(Ok(view)) if view.is_ok => return Ok(view),
            Ok(Err(_)) if found.is_ok() => {}
            Ok(view) => found = view,
            Err(_) => {}
        }
    }
    found
}

async fn query(connection: &Connection) -> Result<View, FredError> {
    let bad = || {
        FredError::new(
            ErrorKind::Cluster,
            "CLUSTER SLOTS did not return a topology",
        )
    };
    // A server that does not permit this is assumed to be ok.
    let info = connection.command("CLUSTER", vec!["INFO".into()]).await;
    let info = info.ok().and_then(Value::into_string).unwrap_or_default();
    let slots = connection.command("CLUSTER", vec!["SLOTS".into()]).await?;
    let queried = connection.server().ok_or_else(bad)?;
    let (topology, replicas) = Topology::parse(slots, queried).ok_or_else(bad)?;
    Ok(View {
        topology,
        replicas,
        is_ok: !info.contains("cluster_state:fail"),
    })
}
