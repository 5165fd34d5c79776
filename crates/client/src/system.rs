//! The system functions about the server itself, and how system functions are called.

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
    /// Checks that the server answers, and returns how long that took, retries included.
    pub async fn ping(&self) -> Result<Duration, Error> {
        let sent = Instant::now();
        let _: IgnoredAny = self.ask("urn:cline:forrst:fn:ping", &json!({})).await?;
        Ok(sent.elapsed())
    }

    /// The health of the server and its store.
    pub async fn health(&self) -> Result<Health, Error> {
        self.ask("urn:cline:forrst:fn:health", &json!({})).await
    }

    /// The server's protocol versions, functions, extensions and limits.
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

    /// Calls a system function that may safely be called twice.
    pub(crate) async fn ask<Out: DeserializeOwned>(
        &self,
        function: &str,
        arguments: &impl Serialize,
    ) -> Result<Out, Error> {
        let mut tries = Tries::start(self.retry().clone(), Repeat::Always, None);
        self.ask_with(function, arguments, &mut tries).await
    }

    /// Calls a system function, and retries as `tries` allows.
    pub(crate) async fn ask_with<Out: DeserializeOwned>(
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

/// The health of a server and of what it depends on.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct Health {
    /// The worst of its components.
    pub status: HealthStatus,
    /// `self` and `store`.
    #[serde(default)]
    pub components: BTreeMap<String, ComponentHealth>,
    /// When it was checked, by the server's clock.
    #[serde(deserialize_with = "crate::wire_time::deserialize")]
    pub timestamp: SystemTime,
    /// The server's version.
    pub version: String,
}

/// How healthy a server or a component is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum HealthStatus {
    /// Nothing is wrong.
    Healthy,
    /// It serves, but something is wrong.
    Degraded,
    /// It cannot serve.
    Unhealthy,
}

/// The health of one component.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct ComponentHealth {
    /// How healthy it is.
    pub status: HealthStatus,
    /// What is wrong, for people.
    #[serde(default)]
    pub message: Option<String>,
    /// How long it took to answer.
    #[serde(default)]
    pub latency: Option<forrst_protocol::Duration>,
}

/// The protocol versions, functions, extensions and limits of a server.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct Capabilities {
    /// The name of the service.
    pub service: String,
    /// The protocol versions that it supports.
    pub protocol_versions: Vec<String>,
    /// The names of its functions, including the system functions.
    pub functions: Vec<String>,
    /// The extensions that it supports.
    pub extensions: Vec<ExtensionInfo>,
    /// Its limits.
    pub limits: ServerLimits,
}

/// An extension that a server supports.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct ExtensionInfo {
    /// Its URN.
    pub urn: String,
    /// Its version.
    pub version: String,
}

/// The limits of a server.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct ServerLimits {
    /// The largest request, in bytes.
    pub max_body_bytes: u64,
    /// How deeply a request may be nested.
    pub max_nesting: u64,
    /// The longest ttl of a lock.
    pub max_lock_ttl: forrst_protocol::Duration,
    /// The longest wait for a lock.
    pub max_lock_block: forrst_protocol::Duration,
}
