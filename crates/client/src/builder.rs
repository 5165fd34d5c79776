//! Builds a client from its settings.

use std::time::Duration;

use tokio::sync::Semaphore;

use crate::api_key::ApiKey;
use crate::background::Background;
use crate::client::Inner;
use crate::endpoint::Endpoint;
use crate::lease::MAX_WATCHED;
use crate::tls::{self, Trust};
use crate::transport::{ConnectOptions, Transport};
use crate::{Client, Error, Retry};

/// Builds a [`Client`]. Invalid settings are reported by [`build`](Self::build).
#[derive(Debug, Clone)]
pub struct ClientBuilder {
    url: String,
    api_key: Option<ApiKey>,
    ca_certificate: Option<Vec<u8>>,
    retry: Retry,
    connect_timeout: Duration,
    timeout: Duration,
}

impl ClientBuilder {
    pub(crate) fn new(url: String) -> Self {
        Self {
            url,
            api_key: None,
            ca_certificate: None,
            retry: Retry::default(),
            connect_timeout: Duration::from_secs(5),
            timeout: Duration::from_secs(60),
        }
    }

    /// The API key: sent as `Authorization: Bearer …`, and never shown in logs or by `Debug`.
    ///
    /// Over `http` and `ws` it is sent in cleartext: use them only in networks that you trust. Over a unix socket it is not sent:
    /// the server lets only its own user connect, and needs no key.
    #[must_use]
    pub fn api_key(mut self, key: impl Into<String>) -> Self {
        self.api_key = Some(ApiKey::new(key.into()));
        self
    }

    /// Trusts only the CA certificates in this PEM text; by default, those of the system.
    #[must_use]
    pub fn ca_certificate(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.ca_certificate = Some(pem.into());
        self
    }

    /// How requests are retried, unless a request has a [`Retry`] of its own.
    #[must_use]
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    /// How long connecting may take; 5 seconds by default.
    #[must_use]
    pub fn connect_timeout(mut self, time: Duration) -> Self {
        self.connect_timeout = time;
        self
    }

    /// How long an answer may take, in addition to the time that the request waits for a lock; 60 seconds by default. A call with a
    /// [`deadline`](crate::Call::deadline) uses that instead.
    #[must_use]
    pub fn timeout(mut self, time: Duration) -> Self {
        self.timeout = time;
        self
    }

    /// Builds the client, which connects when it is used for the first time.
    ///
    /// # Errors
    ///
    /// [`Error::Configuration`] for a URL, a certificate or a key that cannot be used.
    pub fn build(self) -> Result<Client, Error> {
        let endpoint = Endpoint::parse(&self.url)?;
        let trust = match &self.ca_certificate {
            Some(pem) => Trust::Only(pem),
            None if endpoint.is_encrypted() => Trust::System,
            None => Trust::None,
        };
        let authorization = self.api_key.map(|key| key.header()).transpose()?;
        let options = ConnectOptions {
            authorization,
            tls: tls::config(trust)?,
            connect_timeout: self.connect_timeout,
        };
        Ok(Client::from_inner(Inner {
            watching: Transport::new(endpoint.clone(), options.clone())?,
            watched_leases: Semaphore::new(MAX_WATCHED),
            transport: Transport::new(endpoint, options)?,
            url: self.url,
            retry: self.retry,
            timeout: self.timeout,
            background: Background::default(),
        }))
    }

    /// Builds the client and makes sure that a Forrst server answers.
    ///
    /// # Errors
    ///
    /// As [`build`](Self::build), and as [`Client::ping`].
    pub async fn connect(self) -> Result<Client, Error> {
        let client = self.build()?;
        client.ping().await?;
        Ok(client)
    }
}
