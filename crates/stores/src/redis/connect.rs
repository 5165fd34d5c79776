//! From a URL to a connection.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fred::clients::Client;
use fred::error::{Error as FredError, ErrorKind};
use fred::interfaces::{ClientLike, ClusterInterface};
use fred::rustls::pki_types::CertificateDer;
use fred::rustls::pki_types::pem::PemObject;
use fred::rustls::{ClientConfig, RootCertStore, crypto};
use fred::types::config::{Config, ConnectionConfig, PerformanceConfig, ServerConfig, TcpConfig};
use fred::types::{Builder, ConnectHandle};
use tokio::time::sleep;

use super::{RedisError, RedisOptions};
use crate::url_without_secrets;

/// A burst of hand-overs fits; what does not is found again within a second.
const MESSAGES: usize = 8192;
/// More commands than this on their way means that Redis does not keep up.
const MAX_COMMANDS: usize = 100_000;
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// A client of fred's with the task that drives it. Dropped, it ends, and whoever waits for an answer hears at once.
///
/// It is used for one connection (in a cluster, for one to each server), until that breaks. fred could connect anew by
/// itself, but not when its task has ended or hangs, and it miscounts what it has yet to write when it is started twice.
pub(super) struct RunningClient {
    pub(super) client: Client,
    task: ConnectHandle,
}

impl RunningClient {
    /// Connects, and does not hang where nobody answers.
    pub(super) async fn connect(builder: &Builder) -> Result<Self, FredError> {
        let client = builder.build()?;
        let task = client.connect();
        let mut running = Self { client, task };
        while !running.client.is_connected() {
            if running.task.is_finished() {
                return Err(running.ended().await);
            }
            sleep(Duration::from_millis(2)).await;
        }
        Ok(running)
    }

    /// The same after one that broke, for as long as it takes.
    pub(super) async fn connect_again(builder: &Builder) -> Self {
        let mut pause = FIRST_PAUSE;
        loop {
            sleep(pause).await;
            match Self::connect(builder).await {
                Ok(running) => return running,
                Err(error) => tracing::debug!(%error, "cannot connect to Redis"),
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Returns when the connection is broken. Not to be asked twice.
    pub(super) async fn ended(&mut self) -> FredError {
        match (&mut self.task).await {
            Ok(Err(error)) => error,
            _ => FredError::new(ErrorKind::Canceled, "the connection was closed"),
        }
    }
}

impl Drop for RunningClient {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A cluster may have lost all servers that its URL names, and still be whole: those that were seen in it are tried, too.
pub(super) fn remember_servers(builder: &mut Builder, client: &Client) {
    let Some(state) = client.cached_cluster_state() else {
        return;
    };
    builder.with_config(|config| {
        if let ServerConfig::Clustered { hosts, .. } = &mut config.server {
            let seen = state.unique_primary_nodes();
            let new: Vec<_> = seen
                .into_iter()
                .filter(|server| !hosts.contains(server))
                .collect();
            hosts.extend(new);
        }
    });
}

pub(super) fn builder(url: &str, options: &RedisOptions) -> Result<Builder, RedisError> {
    let mut config = Config::from_url(url).map_err(|error| RedisError::BadUrl {
        url: url_without_secrets(url),
        error,
    })?;
    if let Some(ca) = &options.ca {
        config.tls = Some(trusting(ca)?.into());
    }
    let timeout = options.timeout;
    let mut builder = Builder::from_config(config);
    builder
        .set_performance_config(PerformanceConfig {
            default_command_timeout: timeout,
            broadcast_channel_capacity: MESSAGES,
            ..PerformanceConfig::default()
        })
        .set_connection_config(ConnectionConfig {
            connection_timeout: timeout,
            internal_command_timeout: timeout,
            max_command_attempts: 1,
            // With one attempt fred cannot follow an ASK, and its task ends when it tries.
            max_redirections: 0,
            max_command_buffer_len: MAX_COMMANDS,
            tcp: TcpConfig {
                nodelay: Some(true),
                ..TcpConfig::default()
            },
            ..ConnectionConfig::default()
        });
    Ok(builder)
}

/// Trusts the certificates in this file, and no others.
fn trusting(ca: &PathBuf) -> Result<ClientConfig, RedisError> {
    let bad = |error: String| RedisError::BadCa {
        file: ca.clone(),
        error,
    };
    let mut roots = RootCertStore::empty();
    let certificates = CertificateDer::pem_file_iter(ca).map_err(|error| bad(error.to_string()))?;
    for certificate in certificates {
        let certificate = certificate.map_err(|error| bad(error.to_string()))?;
        roots
            .add(certificate)
            .map_err(|error| bad(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(bad("there is no certificate in it".to_owned()));
    }
    let provider = Arc::new(crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| bad(error.to_string()))?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}
