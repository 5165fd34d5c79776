//! Builds fred clients from the URL and the options of a store.
//!
//! A client here serves one connection and is thrown away with it (ADR 9); reconnecting is up to `connections.rs`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fred::clients::Client;
use fred::error::{Error as FredError, ErrorKind};
use fred::interfaces::ClientLike;
use fred::rustls::pki_types::CertificateDer;
use fred::rustls::pki_types::pem::PemObject;
use fred::rustls::{ClientConfig, RootCertStore, crypto};
use fred::types::config::{
    Config, ConnectionConfig, PerformanceConfig, Server, ServerConfig, TcpConfig,
};
use fred::types::{Builder, ConnectHandle};
use tokio::time::sleep;

use super::{RedisError, RedisOptions};
use crate::url_without_secrets;

/// Buffered messages: enough for a burst of hand-overs. That some did not fit is noticed within a second.
const MESSAGES: usize = 8192;
/// More commands under way than this means that Redis does not keep up.
const MAX_COMMANDS: usize = 100_000;
/// The pauses between attempts to connect grow from the first to the longest.
pub(super) const FIRST_PAUSE: Duration = Duration::from_millis(20);
pub(super) const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// A fred client and the task that drives it. When dropped, the task ends, and all commands under way fail at once.
///
/// It serves one connection to one server, until that breaks (ADR 9). fred could reconnect, but not once its task has ended or hangs,
/// and a client that is started twice miscounts its unwritten commands.
pub(super) struct RunningClient {
    pub(super) client: Client,
    task: ConnectHandle,
}

impl RunningClient {
    /// Connects, or fails after the connection timeout.
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

    /// Waits until the connection is broken, and returns why. Must not be called again after that.
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

/// A builder for one server of a cluster, with the credentials and TLS settings of the cluster.
pub(super) fn to_server(builder: &Builder, server: &Server) -> Builder {
    let mut builder = builder.clone();
    builder.with_config(|config| {
        config.server = ServerConfig::Centralized {
            server: server.clone(),
        };
    });
    builder
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

/// Trusts only the certificates in this file.
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
        return Err(bad("it contains no certificate".to_owned()));
    }
    let provider = Arc::new(crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| bad(error.to_string()))?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}
