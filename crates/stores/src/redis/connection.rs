//! One connection to Redis, and what can become of a command on it.

use std::time::Duration;

use forrst_lock::StoreError;
use fred::clients::Client;
use fred::error::Error as FredError;
use fred::interfaces::ClientLike;
use fred::types::config::{Options, Server};
use fred::types::{ClusterHash, CustomCommand, Value};

use super::script::Script;

/// How Redis says that it did not run a command at all.
///
/// Not `READONLY`, `LOADING` and `CLUSTERDOWN`: fred gives the first such answer to all that is on its way, also to what
/// Redis has run behind it.
const REFUSALS: [&str; 10] = [
    "NOSCRIPT",
    "MASTERDOWN",
    "MISCONF",
    "NOREPLICAS",
    "BUSY",
    "NOPERM",
    "NOAUTH",
    "TRYAGAIN",
    "MOVED",
    "ASK",
];

#[derive(Debug, Clone)]
pub(super) struct Connection {
    pub(super) client: Client,
    options: Options,
}

impl Connection {
    pub(super) fn new(client: Client, timeout: Duration) -> Self {
        let options = Options {
            // Whether a command that was repeated ran once or twice would be anyone's guess.
            max_attempts: Some(1),
            timeout: Some(timeout),
            fail_fast: true,
            ..Options::default()
        };
        Self { client, options }
    }

    /// Runs a script by its hash; by its text where the server does not have it, as after a restart.
    pub(super) async fn run(
        &self,
        script: &Script,
        slot: u16,
        keys: &[Value],
        arguments: &[Value],
    ) -> Result<Value, StoreError> {
        let call = |script: &str| {
            let count = i64::try_from(keys.len()).unwrap_or_default();
            let mut call = vec![Value::from(script), Value::from(count)];
            call.extend_from_slice(keys);
            call.extend_from_slice(arguments);
            call
        };
        let by_hash = self.command("EVALSHA", slot, call(&script.sha)).await;
        match by_hash {
            Err(error) if has_prefix(&error, "NOSCRIPT") => {
                self.command("EVAL", slot, call(&script.source)).await
            }
            other => other,
        }
        .map_err(store_error)
    }

    /// One command, for the server that has this slot if there are several.
    pub(super) async fn command(
        &self,
        name: &'static str,
        slot: u16,
        arguments: Vec<Value>,
    ) -> Result<Value, FredError> {
        let command = CustomCommand::new_static(name, ClusterHash::Custom(slot), false);
        let client = self.client.with_options(&self.options);
        client.custom(command, arguments).await
    }

    /// The same for a server of the caller's choice; none when there is only one.
    pub(super) async fn command_on(
        &self,
        server: Option<&Server>,
        name: &'static str,
        arguments: &[&str],
    ) -> Result<Value, FredError> {
        let options = Options {
            cluster_node: server.cloned(),
            ..self.options.clone()
        };
        let command = CustomCommand::new_static(name, ClusterHash::Random, false);
        let arguments = arguments.iter().copied().map(Value::from).collect();
        let client = self.client.with_options(&options);
        client.custom(command, arguments).await
    }
}

fn has_prefix(error: &FredError, prefix: &str) -> bool {
    error.details().split_whitespace().next() == Some(prefix)
}

/// Whether a command that failed may have run all the same.
pub(super) fn store_error(error: FredError) -> StoreError {
    if REFUSALS.iter().any(|prefix| has_prefix(&error, prefix)) {
        StoreError::NotDone(Box::new(error))
    } else {
        StoreError::MaybeDone(Box::new(error))
    }
}
