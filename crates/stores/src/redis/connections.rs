//! The connections to all servers of a store, which are replaced when they break.
//!
//! Each has a separate fred client, so that one that hangs or breaks does not affect the others.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use forrst_lock::StoreError;
use fred::error::Error as FredError;
use fred::types::Builder;
use fred::types::config::Server;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::cluster;
use super::connect::{FIRST_PAUSE, LONGEST_PAUSE, to_server};
use super::connection::{Connection, LiveConnection, NOT_CONNECTED};
use super::sentinels::{self, Sentinels};
use super::topology::Topology;

#[derive(Debug)]
pub(super) struct Connections {
    /// The configuration of each connection; the address of a cluster's server is filled in.
    builder: Builder,
    timeout: Duration,
    is_cluster: bool,
    table: RwLock<ServerTable>,
    changes: watch::Sender<u64>,
    /// Notified when the topology of the cluster has to be queried again.
    pub(super) topology_stale: Arc<Notify>,
}

#[derive(Debug, Default)]
struct ServerTable {
    topology: Topology,
    /// One for each server of the topology; `None` while it is not connected.
    connections: Vec<Option<Arc<Connection>>>,
}

impl Connections {
    /// Connects to all servers. Of a cluster, at least one has to be available; the others are retried by `tasks`, which also
    /// replace connections that break.
    pub(super) async fn open(
        builder: Builder,
        timeout: Duration,
        tasks: &mut JoinSet<()>,
    ) -> Result<Arc<Self>, FredError> {
        let is_cluster = builder
            .get_config()
            .is_some_and(|config| config.server.is_clustered());
        let connections = Arc::new(Self {
            builder,
            timeout,
            is_cluster,
            table: RwLock::default(),
            changes: watch::Sender::new(0),
            topology_stale: Arc::default(),
        });
        if is_cluster {
            cluster::open(&connections, tasks).await?;
        } else {
            connections.set_topology(Topology::single());
            let live = connections.connect(None).await?;
            tasks.spawn(keep_connected(connections.clone(), None, Some(live)));
            if let Some(sentinels) = Sentinels::from_config(&connections.builder) {
                tasks.spawn(sentinels::watch(connections.clone(), sentinels));
            }
        }
        Ok(connections)
    }

    /// The connection to the server that owns this slot; without a cluster, to the only server.
    pub(super) fn connection_for(&self, slot: u16) -> Result<Arc<Connection>, StoreError> {
        self.find(slot)
            .ok_or_else(|| StoreError::NotDone(NOT_CONNECTED.into()))
    }

    /// As [`connection_for`](Self::connection_for), but `None` while the server is not connected.
    pub(super) fn find(&self, slot: u16) -> Option<Arc<Connection>> {
        let table = self.read();
        let server = table.topology.owner(slot)?;
        let connection = table.connections.get(server)?.as_ref();
        connection.filter(|it| it.is_open()).cloned()
    }

    /// The connections to all primaries that are connected.
    pub(super) fn all(&self) -> Vec<Arc<Connection>> {
        let table = self.read();
        let connected = table.connections.iter().flatten();
        connected.filter(|it| it.is_open()).cloned().collect()
    }

    pub(super) fn is_cluster(&self) -> bool {
        self.is_cluster
    }

    /// Changes with every new connection and every change of the topology.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    pub(super) fn builder_for(&self, server: Option<&Server>) -> Builder {
        match server {
            Some(server) => to_server(&self.builder, server),
            None => self.builder.clone(),
        }
    }

    /// A random server of the cluster: if possible one that is connected, and not `last`. `None` if there is no cluster.
    pub(super) fn any_server(&self, last: Option<&Server>) -> Option<Server> {
        let table = self.read();
        let connected = table.connections.iter().flatten();
        let connected = connected.filter_map(|it| it.server().filter(|_| it.is_open()));
        let (mut open, all) = (connected.collect::<Vec<_>>(), table.topology.servers());
        open.retain(|server| Some(*server) != last);
        let servers = if open.is_empty() {
            all.iter().collect()
        } else {
            open
        };
        fastrand::choice(servers).cloned()
    }

    /// Whether all servers are connected.
    pub(super) fn are_complete(&self) -> bool {
        let table = self.read();
        let mut connections = table.connections.iter();
        connections.all(|it| it.as_ref().is_some_and(|it| it.is_open()))
    }

    pub(super) fn has_topology(&self, topology: &Topology) -> bool {
        self.read().topology == *topology
    }

    /// Replaces the topology. Connections to servers that it still contains are kept.
    pub(super) fn set_topology(&self, topology: Topology) {
        let mut table = self.write();
        let mut connections = vec![None; topology.servers().len().max(1)];
        for connection in table.connections.drain(..).flatten() {
            if let Some(index) = topology.index_of(connection.server()) {
                connections[index] = Some(connection);
            }
        }
        *table = ServerTable {
            topology,
            connections,
        };
        drop(table);
        self.changes.send_modify(|count| *count += 1);
    }

    /// Connects to a server, and adds the connection to the table.
    pub(super) async fn connect(
        &self,
        server: Option<&Server>,
    ) -> Result<LiveConnection, FredError> {
        let live = self.connect_unshared(server).await?;
        self.publish(&live.connection);
        Ok(live)
    }

    /// Connects to a server, for the caller only.
    pub(super) async fn connect_unshared(
        &self,
        server: Option<&Server>,
    ) -> Result<LiveConnection, FredError> {
        let builder = self.builder_for(server);
        LiveConnection::connect(&builder, server, self.timeout, &self.topology_stale).await
    }

    fn read(&self) -> RwLockReadGuard<'_, ServerTable> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, ServerTable> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(&self, connection: &Arc<Connection>) {
        let mut table = self.write();
        // The server may have left the topology meanwhile.
        if let Some(index) = table.topology.index_of(connection.server())
            && let Some(entry) = table.connections.get_mut(index)
        {
            *entry = Some(connection.clone());
        }
        drop(table);
        self.changes.send_modify(|count| *count += 1);
    }
}

/// Keeps a server connected: whenever its connection breaks or is closed, makes a new one.
pub(super) async fn keep_connected(
    connections: Arc<Connections>,
    server: Option<Server>,
    first: Option<LiveConnection>,
) {
    let name = server.as_ref().map(tracing::field::display);
    let mut next = first;
    let mut pause = FIRST_PAUSE;
    loop {
        let connected = match next.take() {
            Some(live) => Ok(live),
            None => connections.connect(server.as_ref()).await,
        };
        match connected {
            Ok(mut live) => {
                tracing::info!(server = name, "connected to Redis");
                let since = Instant::now();
                let error = live.ended().await;
                tracing::warn!(%error, server = name, "lost the connection to Redis");
                // A connection that breaks at once does not reset the pause.
                if since.elapsed() > LONGEST_PAUSE {
                    pause = FIRST_PAUSE;
                }
            }
            Err(error) => tracing::debug!(%error, server = name, "cannot connect to Redis"),
        }
        connections.topology_stale.notify_one();
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}
