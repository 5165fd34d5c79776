//! Behind sentinels, a node leaves a primary as soon as the sentinels name another one.
//!
//! A primary that was replaced learns this from the sentinels only seconds later, and what it grants until then is lost.

use std::sync::Arc;
use std::time::Duration;

use fred::interfaces::ClientLike;
use fred::types::config::{Server, ServerConfig};
use fred::types::{Builder, ClusterHash, CustomCommand, Value};
use tokio::time::sleep;

use super::connect::{RunningClient, to_server};
use super::connections::Connections;

const INTERVAL: Duration = Duration::from_secs(1);

/// Runs until the store is dropped.
pub(super) async fn watch(connections: Arc<Connections>, mut sentinels: Sentinels) {
    loop {
        sleep(INTERVAL.mul_f64(0.9 + fastrand::f64() / 10.0)).await;
        let Some(primary) = sentinels.primary().await else {
            continue;
        };
        for connection in connections.all() {
            if let Some(server) = connection.address()
                && (server.host != primary.host || server.port != primary.port)
            {
                tracing::warn!(%server, %primary, "the sentinels name another primary");
                connection.close();
            }
        }
    }
}

/// All sentinels, and a connection to one of them.
pub(super) struct Sentinels {
    builder: Builder,
    hosts: Vec<Server>,
    service: String,
    /// Which of them is queried.
    current: usize,
    running: Option<RunningClient>,
}

impl Sentinels {
    /// The sentinels of a configuration; `None` if it has none.
    pub(super) fn from_config(builder: &Builder) -> Option<Self> {
        let ServerConfig::Sentinel {
            hosts,
            service_name,
            username,
            password,
        } = builder.get_config()?.server.clone()
        else {
            return None;
        };
        let mut builder = builder.clone();
        builder.with_config(|config| {
            // A sentinel has its own users, and no databases.
            config.username = username;
            config.password = password;
            config.database = None;
        });
        Some(Self {
            builder,
            hosts,
            service: service_name,
            current: 0,
            running: None,
        })
    }

    /// The address of the primary, according to the first sentinel that answers.
    async fn primary(&mut self) -> Option<Server> {
        for _ in 0..self.hosts.len() {
            if let Some(primary) = self.query().await {
                return Some(primary);
            }
            self.running = None;
            self.current = (self.current + 1) % self.hosts.len();
        }
        None
    }

    async fn query(&mut self) -> Option<Server> {
        if self.running.is_none() {
            let builder = to_server(&self.builder, self.hosts.get(self.current)?);
            self.running = Some(RunningClient::connect(&builder).await.ok()?);
        }
        let client = &self.running.as_ref()?.client;
        let command = CustomCommand::new_static("SENTINEL", ClusterHash::Random, false);
        let arguments = vec!["GET-MASTER-ADDR-BY-NAME", self.service.as_str()];
        let Ok(Value::Array(address)) = client.custom(command, arguments).await else {
            return None;
        };
        let mut address = address.into_iter().filter_map(Value::into_string);
        let (host, port) = (address.next()?, address.next()?.parse().ok()?);
        Some(Server::new(host, port))
    }
}
