//! One connection to one server, and what the errors of its commands mean.
//!
//! An error of fred has a kind and a text, and no code: Redis' own errors can only be told apart by the first word of the text.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use forrst_lock::{StoreError, Timestamp};
use fred::clients::Client;
use fred::error::{Error as FredError, ErrorKind};
use fred::interfaces::ClientLike;
use fred::types::config::{Options, Server};
use fred::types::{Builder, ClusterHash, CustomCommand, Value};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::connect::RunningClient;
pub(super) use super::connections::Connections;
use crate::server_clock::ServerClock;

/// Tells a command that was not sent from one that fred has cancelled: the kind of both errors is `Canceled`.
pub(super) const NOT_CONNECTED: &str = "not connected to Redis";

/// The errors of commands that Redis did not run.
///
/// `READONLY`, `LOADING` and `CLUSTERDOWN` are not among them: fred fails all commands under way with the first such error, even those
/// that Redis has run.
const REFUSALS: [&str; 11] = [
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
    "OOM",
];
/// The same for a missing function, which has no error code of its own.
pub(super) const NO_FUNCTION: &str = "ERR Function not found";

/// The errors that show that the known topology is outdated.
const TOPOLOGY_ERRORS: [&str; 5] = ["MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "READONLY"];

#[derive(Debug)]
pub(super) struct Connection {
    id: u64,
    client: Client,
    options: Options,
    clock: ServerClock,
    /// `None` unless it is a server of a cluster.
    server: Option<Server>,
    is_open: AtomicBool,
    closed: Notify,
    /// The task that drives it has ended, or is about to. Commands that fred has not yet processed get no answer from it.
    task_ended: Notify,
    /// Notified when the topology of the cluster has to be queried again.
    topology_stale: Arc<Notify>,
}

/// A connection and the task that drives it. When dropped, the connection is closed and all its commands fail.
pub(super) struct LiveConnection {
    pub(super) connection: Arc<Connection>,
    running: RunningClient,
}

impl LiveConnection {
    /// Connects, and queries the server's time.
    pub(super) async fn connect(
        builder: &Builder,
        server: Option<&Server>,
        timeout: Duration,
        topology_stale: &Arc<Notify>,
    ) -> Result<Self, FredError> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        let running = RunningClient::connect(builder).await?;
        let options = Options {
            // Of a command that is repeated, it is unknown whether it ran once or twice.
            max_attempts: Some(1),
            timeout: Some(timeout),
            fail_fast: true,
            ..Options::default()
        };
        let clock = read_clock(&running.client, &options).await?;
        let connection = Connection {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            client: running.client.clone(),
            options,
            clock,
            server: server.cloned(),
            is_open: AtomicBool::new(true),
            closed: Notify::new(),
            task_ended: Notify::new(),
            topology_stale: topology_stale.clone(),
        };
        Ok(Self {
            connection: Arc::new(connection),
            running,
        })
    }

    /// Waits until the connection breaks or is closed, and returns why. Must not be called again after that.
    pub(super) async fn ended(&mut self) -> FredError {
        tokio::select! {
            error = self.running.ended() => error,
            () = self.connection.closed.notified() => {
                FredError::new(ErrorKind::Timeout, "Redis does not answer, or is no longer a primary")
            }
        }
    }
}

impl Drop for LiveConnection {
    fn drop(&mut self) {
        self.connection.is_open.store(false, Ordering::Release);
        self.connection.task_ended.notify_waiters();
    }
}

async fn read_clock(client: &Client, options: &Options) -> Result<ServerClock, FredError> {
    let sent = Instant::now();
    let command = CustomCommand::new_static("TIME", ClusterHash::Random, false);
    let answer: Value = client
        .with_options(options)
        .custom(command, Vec::<Value>::new())
        .await?;
    let received = Instant::now();
    let now = server_time(answer)
        .ok_or_else(|| FredError::new(ErrorKind::Protocol, "TIME did not answer two numbers"))?;
    Ok(ServerClock::new(sent, received, now))
}

fn server_time(answer: Value) -> Option<Timestamp> {
    let Value::Array(parts) = answer else {
        return None;
    };
    let mut parts = parts.into_iter().map(|part| part.as_u64());
    let (seconds, micros) = (parts.next()??, parts.next()??);
    Some(Timestamp::from_millis(seconds * 1000 + micros / 1000))
}

impl Connection {
    /// Unique in this process.
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// `None` unless it is a server of a cluster.
    pub(super) fn server(&self) -> Option<&Server> {
        self.server.as_ref()
    }

    pub(super) fn clock(&self) -> &ServerClock {
        &self.clock
    }

    pub(super) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Acquire)
    }

    /// Sends a command once. The future has to be driven to completion: only then does an answer that does not come in time close
    /// the connection.
    pub(super) async fn command(
        &self,
        name: &'static str,
        arguments: Vec<Value>,
    ) -> Result<Value, FredError> {
        // Created before the check, so that no notification is missed.
        let task_ended = self.task_ended.notified();
        if !self.is_open() {
            return Err(not_connected());
        }
        let command = CustomCommand::new_static(name, ClusterHash::Random, false);
        let client = self.client.with_options(&self.options);
        let answer = tokio::select! {
            biased;
            answer = client.custom(command, arguments) => answer,
            () = task_ended => {
                Err(FredError::new(ErrorKind::Canceled, "the connection was closed"))
            }
        };
        if let Err(error) = &answer {
            self.handle_error(error);
        }
        answer
    }

    fn handle_error(&self, error: &FredError) {
        // A server that hangs keeps its connections open. After a timeout nothing more is sent to it: commands fail at once until
        // there is a new connection.
        if *error.kind() == ErrorKind::Timeout {
            self.close();
        } else if TOPOLOGY_ERRORS
            .iter()
            .any(|prefix| has_prefix(error, prefix))
        {
            match self.server {
                Some(_) => self.topology_stale.notify_one(),
                // Connecting again finds the new primary, for instance through the sentinels.
                None if has_prefix(error, "READONLY") => self.close(),
                None => {}
            }
        }
    }

    /// The server that fred has connected to; behind sentinels, the primary at that time.
    pub(super) fn address(&self) -> Option<Server> {
        self.client.active_connections().into_iter().next()
    }

    /// Closes it. Its keeper then makes a new one.
    pub(super) fn close(&self) {
        self.is_open.store(false, Ordering::Release);
        self.closed.notify_one();
    }
}

pub(super) fn not_connected() -> FredError {
    FredError::new(ErrorKind::Canceled, NOT_CONNECTED)
}

/// Whether an error of Redis begins with these words, such as the code `NOSCRIPT`.
pub(super) fn has_prefix(error: &FredError, prefix: &str) -> bool {
    let rest = error.details().strip_prefix(prefix);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace))
}

/// The error of a command, which says whether the command may have run.
pub(super) fn store_error(error: FredError) -> StoreError {
    let was_not_sent = error.details() == NOT_CONNECTED;
    let mut refusals = REFUSALS.iter().chain([&NO_FUNCTION]);
    if was_not_sent || refusals.any(|prefix| has_prefix(&error, prefix)) {
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
        for refused in [
            NOT_CONNECTED,
            "NOSCRIPT for a reason",
            "MOVED 17 127.0.0.1:7000",
            "OOM command not allowed when used memory > 'maxmemory'.",
            "ERR Function not found",
        ] {
            let error = store_error(FredError::new(ErrorKind::Unknown, refused));
            assert!(matches!(error, StoreError::NotDone(_)), "{error:?}");
        }
        // fred also cancels commands that it has sent.
        for kind in [ErrorKind::Canceled, ErrorKind::Timeout, ErrorKind::IO] {
            let error = store_error(FredError::new(kind, "the connection was closed"));
            assert!(matches!(error, StoreError::MaybeDone(_)), "{error:?}");
        }
    }

    #[test]
    fn a_prefix_is_whole_words() {
        let error = FredError::new(ErrorKind::Unknown, "ASKING is not ASK");
        assert!(has_prefix(&error, "ASKING"));
        assert!(has_prefix(&error, "ASKING is"));
        assert!(!has_prefix(&error, "ASK"));
    }
}
