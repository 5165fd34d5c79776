//! What a server says about itself.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use forrst_protocol::RawObject;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::Instant;
use tracing::Instrument;

use crate::client::{Patience, request_to, result_of};
use crate::tries::{Repeat, Tries};
use crate::{Client, Error};

impl Client {
    /// Asks whether the server is there, and says how long the answer took, other tries included.
    pub async fn ping(&self) -> Result<Duration, Error> {
        let sent = Instant::now();
        let _: IgnoredAny = self.ask("urn:cline:forrst:fn:ping", &json!({})).await?;
        Ok(sent.elapsed())
    }

    /// How the server and its store are doing.
    pub async fn health(&self) -> Result<Health, Error> {
        self.ask("urn:cline:forrst:fn:health", &json!({})).await
    }

    /// What the server speaks, runs and allows.
    pub async fn capabilities(&self) -> Result<Capabilities, Error> {
        self.ask("urn:cline:forrst:fn:capabilities", &json!({}))
            .await
    }

    /// The discovery document: of all functions, of one, or of one version of it.
    pub async fn describe(
        &self,
        function: Option<&str>,
        version: Option<&str>,
    ) -> Result<Value, Error> {
        let mut arguments = json!({});
        for (name, value) in [("function", function), ("version", version)] {
            if let Some(value) = value {
                arguments[name] = value.into();
            }
        }
        self.ask("urn:cline:forrst:fn:describe", &arguments).await
    }

    /// Calls a system function that does no harm the second time.
    pub(crate) async fn ask<Out: DeserializeOwned>(
        &self,
        function: &str,
        arguments: &impl Serialize,
    ) -> Result<Out, Error> {
        let mut tries = Tries::start(self.retry().clone(), Repeat::Always, None);
        self.ask_by(function, arguments, &mut tries).await
    }

    /// Calls a system function as often as `tries` allows.
    pub(crate) async fn ask_by<Out: DeserializeOwned>(
        &self,
        function: &str,
        arguments: &impl Serialize,
        tries: &mut Tries,
    ) -> Result<Out, Error> {
        let span = tracing::info_span!("forrst.call", function);
        let ask = async {
            loop {
                let patience = tries.patience(self.timeout());
                match self.ask_once(function, arguments, patience).await {
                    Err(error) => tries.after(error).await?,
                    result => return result,
                }
            }
        };
        ask.instrument(span).await
    }

    pub(crate) async fn ask_once<Out: DeserializeOwned>(
        &self,
        function: &str,
        arguments: &impl Serialize,
        patience: Patience,
    ) -> Result<Out, Error> {
        let arguments = RawObject::from_serialize(arguments);
        let arguments = arguments.map_err(|why| Error::InvalidRequest(why.into()))?;
        let request = request_to(function)?.with_arguments(arguments);
        result_of(self.send(request, patience).await?)
    }
}

/// How a server and what it needs are doing.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct Health {
    /// The worst of its components.
    pub status: HealthStatus,
    /// `self` and `store`.
    #[serde(default)]
    pub components: BTreeMap<String, ComponentHealth>,
    /// When it looked, by the server's clock.
    #[serde(deserialize_with = "crate::wire_time::deserialize")]
    pub timestamp: SystemTime,
    /// The server's version.
    pub version: String,
}

/// How well something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum HealthStatus {
    /// All is well.
    Healthy,
    /// It serves, and something is wrong.
    Degraded,
    /// It cannot serve.
    Unhealthy,
}

/// How one component is doing.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct ComponentHealth {
    /// How well it is.
    pub status: HealthStatus,
    /// In words.
    #[serde(default)]
    pub message: Option<String>,
    /// How long it took to answer.
    #[serde(default)]
    pub latency: Option<forrst_protocol::Duration>,
}

/// What a server speaks, runs and allows.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct Capabilities {
    /// What it calls itself.
    pub service: String,
    /// The versions of the protocol that it speaks.
    pub protocol_versions: Vec<String>,
    /// The names of its functions, those of the system included.
    pub functions: Vec<String>,
    /// The extensions that it knows.
    pub extensions: Vec<ExtensionInfo>,
    /// What it allows at most.
    pub limits: ServerLimits,
}

/// An extension that a server knows.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct ExtensionInfo {
    /// Its name.
    pub urn: String,
    /// Its version.
    pub version: String,
}

/// What a server allows at most.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct ServerLimits {
    /// The largest request, in bytes.
    pub max_body_bytes: u64,
    /// How deep a request may be nested.
    pub max_nesting: u64,
    /// The longest ttl of a lock.
    pub max_lock_ttl: forrst_protocol::Duration,
    /// The longest wait for a lock.
    pub max_lock_block: forrst_protocol::Duration,
}
