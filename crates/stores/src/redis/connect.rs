//! From a URL to connections that mend themselves.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fred::clients::{Client, SubscriberClient};
use fred::error::Error as FredError;
use fred::interfaces::{ClientLike, PubsubInterface};
use fred::rustls::pki_types::CertificateDer;
use fred::rustls::pki_types::pem::PemObject;
use fred::rustls::{ClientConfig, RootCertStore, crypto};
use fred::types::Builder;
use fred::types::config::{
    Config, ConnectionConfig, PerformanceConfig, ReconnectPolicy, TcpConfig, UnresponsiveConfig,
};

use super::{RedisError, RedisOptions};
use crate::url_without_secrets;

/// A burst of hand-overs fits; what does not is found again within a second.
const MESSAGES: usize = 8192;
/// More commands than this on their way means that Redis does not keep up.
const MAX_COMMANDS: usize = 100_000;

pub(super) struct Connected {
    pub(super) client: Client,
    pub(super) subscriber: SubscriberClient,
}

/// Connects, and does not hang where nobody answers.
pub(super) async fn connect(
    url: &str,
    channel: &str,
    options: &RedisOptions,
) -> Result<Connected, RedisError> {
    let builder = builder(url, options)?;
    let unreachable = |error: FredError| RedisError::Unreachable {
        url: url_without_secrets(url),
        error,
    };
    let client = builder.build().map_err(unreachable)?;
    client.init().await.map_err(unreachable)?;
    let subscriber = builder.build_subscriber_client().map_err(unreachable)?;
    subscriber.init().await.map_err(unreachable)?;
    subscriber.manage_subscriptions();
    subscriber.subscribe(channel).await.map_err(unreachable)?;
    Ok(Connected { client, subscriber })
}

fn builder(url: &str, options: &RedisOptions) -> Result<Builder, RedisError> {
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
        .set_policy(reconnect_policy())
        .set_performance_config(PerformanceConfig {
            default_command_timeout: timeout,
            broadcast_channel_capacity: MESSAGES,
            ..PerformanceConfig::default()
        })
        .set_connection_config(ConnectionConfig {
            connection_timeout: timeout,
            internal_command_timeout: timeout,
            max_command_attempts: 1,
            max_command_buffer_len: MAX_COMMANDS,
            // A stalled server is given up before its commands are, and then everyone hears at once.
            unresponsive: UnresponsiveConfig {
                max_timeout: Some(timeout * 3 / 4),
                interval: (timeout / 10).max(Duration::from_millis(10)),
            },
            tcp: TcpConfig {
                nodelay: Some(true),
                ..TcpConfig::default()
            },
            ..ConnectionConfig::default()
        });
    Ok(builder)
}

/// For ever, soon at first.
fn reconnect_policy() -> ReconnectPolicy {
    let (for_ever, first_millis, longest_millis, base) = (0, 20, 500, 2);
    ReconnectPolicy::new_exponential(for_ever, first_millis, longest_millis, base)
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
