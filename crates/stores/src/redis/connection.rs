//! The connection to Redis, and what can become of a command on it.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use forrst_lock::StoreError;
use fred::clients::Client;
use fred::error::{Error as FredError, ErrorKind};
use fred::interfaces::ClientLike;
use fred::types::config::{Options, Server};
use fred::types::{Builder, ClusterHash, CustomCommand, Value};
use tokio::sync::{Notify, watch};

use super::connect::{RunningClient, remember_servers};
use super::script::Script;

pub(super) const NOT_CONNECTED: &str = "not connected to Redis";

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

/// The connection that there is at the moment, if any. [`keep`] makes the next one.
#[derive(Debug)]
pub(super) struct Connection {
    current: RwLock<Option<Client>>,
    given_up: Notify,
    /// How many there have been.
    made: watch::Sender<u64>,
    options: Options,
}

/// Makes a new connection whenever one breaks or is given up. Works until the store is gone.
pub(super) async fn keep(
    connection: Arc<Connection>,
    mut builder: Builder,
    mut running: RunningClient,
) {
    loop {
        tokio::select! {
            error = running.ended() => tracing::warn!(%error, "the connection to Redis has ended"),
            () = connection.given_up.notified() => {
                tracing::warn!("Redis does not answer: connecting anew");
            }
        }
        connection.set(None);
        remember_servers(&mut builder, &running.client);
        drop(running);
        running = RunningClient::connect_again(&builder).await;
        tracing::info!(servers = ?running.client.active_connections(), "connected to Redis");
        connection.set(Some(running.client.clone()));
    }
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
        Self {
            current: RwLock::new(Some(client)),
            given_up: Notify::new(),
            made: watch::Sender::new(1),
            options,
        }
    }

    pub(super) fn client(&self) -> Option<Client> {
        let current = self.current.read();
        current.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes with every connection that is made.
    pub(super) fn made(&self) -> watch::Receiver<u64> {
        self.made.subscribe()
    }

    fn set(&self, client: Option<Client>) {
        let is_new = client.is_some();
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = client;
        if is_new {
            self.made.send_modify(|count| *count += 1);
        }
    }

    /// A server that stands still keeps its connections open. One that did not answer in time is not asked again: all
    /// hear at once, until there is another connection.
    fn give_up(&self, client: &Client) {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        if current
            .as_ref()
            .is_some_and(|current| current.id() == client.id())
        {
            *current = None;
            self.given_up.notify_one();
        }
    }

    async fn send(
        &self,
        options: &Options,
        command: CustomCommand,
        arguments: Vec<Value>,
    ) -> Result<Value, FredError> {
        let Some(client) = self.client() else {
            return Err(FredError::new(ErrorKind::Canceled, NOT_CONNECTED));
        };
        self.send_by(&client, options, command, arguments).await
    }

    async fn send_by(
        &self,
        client: &Client,
        options: &Options,
        command: CustomCommand,
        arguments: Vec<Value>,
    ) -> Result<Value, FredError> {
        let answer = client
            .with_options(options)
            .custom(command, arguments)
            .await;
        if matches!(&answer, Err(error) if *error.kind() == ErrorKind::Timeout) {
            self.give_up(client);
        }
        answer
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
        self.send(&self.options, command, arguments).await
    }

    /// The same where it has to be the connection that was used before: if that is broken, this fails.
    pub(super) async fn command_by(
        &self,
        client: &Client,
        name: &'static str,
        slot: u16,
        arguments: Vec<Value>,
    ) -> Result<Value, FredError> {
        let command = CustomCommand::new_static(name, ClusterHash::Custom(slot), false);
        self.send_by(client, &self.options, command, arguments)
            .await
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
        self.send(&options, command, arguments).await
    }
}

fn has_prefix(error: &FredError, prefix: &str) -> bool {
    error.details().split_whitespace().next() == Some(prefix)
}

/// Whether a command that failed may have run all the same.
pub(super) fn store_error(error: FredError) -> StoreError {
    let was_not_sent = error.details() == NOT_CONNECTED;
    // One that went to the wrong server of a cluster was sent back.
    let is_redirected = *error.kind() == ErrorKind::Routing;
    if was_not_sent || is_redirected || REFUSALS.iter().any(|prefix| has_prefix(&error, prefix)) {
        StoreError::NotDone(Box::new(error))
    } else {
        StoreError::MaybeDone(Box::new(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_cannot_have_run_is_not_done() {
        let not_connected = FredError::new(ErrorKind::Canceled, NOT_CONNECTED);
        let refused = FredError::new(ErrorKind::Unknown, "NOSCRIPT for a reason");
        let redirected = FredError::new(ErrorKind::Routing, "MOVED");
        for error in [not_connected, refused, redirected] {
            let error = store_error(error);
            assert!(matches!(error, StoreError::NotDone(_)), "{error:?}");
        }
        // fred cancels commands that it has sent, too.
        for kind in [ErrorKind::Canceled, ErrorKind::Timeout, ErrorKind::IO] {
            let error = store_error(FredError::new(kind, "the connection was closed"));
            assert!(matches!(error, StoreError::MaybeDone(_)), "{error:?}");
        }
    }
}
