//! Connections to Postgres. Each lasts until it breaks, and is then replaced by a new one.

use std::fmt;
use std::future::poll_fn;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tokio_postgres::config::{SslMode, TargetSessionAttrs};
use tokio_postgres::error::SqlState;
use tokio_postgres::{AsyncMessage, Client, Config, Error, Notification};

use super::tls::{Tls, Trust};
use super::{PostgresError, PostgresOptions};
use crate::url_without_secrets;

/// When a connection that is silent is probed, and how often.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// Makes connections to the primary.
#[derive(Clone)]
pub(super) struct Connector {
    config: Config,
    tls: Tls,
    pub(super) timeout: Duration,
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector")
            .field("hosts", &self.config.get_hosts())
            .finish_non_exhaustive()
    }
}

/// A connection and the task that drives it. When dropped, the connection is closed, whatever is under way.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) client: Client,
    driver: JoinHandle<()>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Connector {
    pub(super) fn new(url: &str, options: &PostgresOptions) -> Result<Self, PostgresError> {
        let bad_url = |error: String| PostgresError::BadUrl {
            url: url_without_secrets(url),
            error,
        };
        let Settings {
            url: plain,
            mode,
            ca,
        } = Settings::take(url).map_err(bad_url)?;
        let mut config = Config::from_str(&plain).map_err(|error| {
            let source = std::error::Error::source(&error);
            bad_url(source.map_or_else(|| error.to_string(), ToString::to_string))
        })?;
        if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
            return Err(bad_url("it names no host".to_owned()));
        }
        let ca = options.ca.clone().or(ca);
        let (ssl_mode, trust) = match (mode.as_str(), &ca) {
            ("disable", _) => (SslMode::Disable, Trust::Any),
            ("prefer", _) => (SslMode::Prefer, Trust::Any),
            ("require" | "verify-ca" | "verify-full", Some(file)) => {
                (SslMode::Require, Trust::File(file))
            }
            ("require" | "verify-ca" | "verify-full", None) => (SslMode::Require, Trust::System),
            _ => {
                let why = "sslmode is disable, prefer, require or verify-full";
                return Err(bad_url(why.to_owned()));
            }
        };
        let tls = Tls::new(trust).map_err(|error| match &ca {
            Some(file) => PostgresError::BadCa {
                file: file.clone(),
                error,
            },
            None => bad_url(error),
        })?;
        config
            .ssl_mode(ssl_mode)
            // A standby, or a primary that has not recovered, refuses every change.
            .target_session_attrs(TargetSessionAttrs::ReadWrite)
            .connect_timeout(options.timeout)
            .keepalives_idle(KEEPALIVE)
            .keepalives_interval(KEEPALIVE)
            .tcp_user_timeout(KEEPALIVE);
        if config.get_application_name().is_none() {
            config.application_name("forrst");
        }
        Ok(Self {
            config,
            tls,
            timeout: options.timeout,
        })
    }

    /// Connects to the first host that accepts changes. Notifications are sent to `notify`.
    pub(super) async fn connect(
        &self,
        notify: Option<UnboundedSender<Notification>>,
    ) -> Result<Connection, ConnectError> {
        let connecting = self.config.connect(self.tls.clone());
        let (client, mut connection) = timeout(self.timeout, connecting)
            .await
            .map_err(|_| ConnectError::TimedOut(self.timeout))??;
        let driver = tokio::spawn(async move {
            while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await
            {
                if let (AsyncMessage::Notification(notification), Some(notify)) = (message, &notify)
                {
                    // Fails if nobody listens any more.
                    let _ = notify.send(notification);
                }
            }
        });
        Ok(Connection { client, driver })
    }

    /// Until when a call that begins now has to be answered.
    pub(super) fn deadline(&self) -> Instant {
        Instant::now() + self.timeout
    }
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// It took too long.
    #[error("no connection within {0:?}")]
    TimedOut(Duration),
    /// The server cannot be reached, or refused the client.
    #[error("{}", message_of(.0))]
    Failed(#[from] Error),
}

impl ConnectError {
    /// Whether the same server may be usable a moment later.
    pub(super) fn is_temporary(&self) -> bool {
        match self {
            Self::TimedOut(_) => true,
            Self::Failed(error) => match error.code() {
                // Connection failures, too many connections, shutting down, starting up, read-only.
                Some(code) => {
                    ["08", "53", "57"].contains(&code.code().get(..2).unwrap_or_default())
                        || *code == SqlState::READ_ONLY_SQL_TRANSACTION
                }
                None => !is_about_tls(error) && !message_of(error).contains("authentication"),
            },
        }
    }
}

/// A certificate that is not trusted is no reason to wait.
fn is_about_tls(error: &Error) -> bool {
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        if cause.downcast_ref::<rustls::Error>().is_some() {
            return true;
        }
        let io = cause.downcast_ref::<std::io::Error>();
        if io.is_some_and(|io| io.kind() == std::io::ErrorKind::InvalidData) {
            return true;
        }
        source = cause.source();
    }
    message_of(error).contains("server does not support TLS")
}

/// The message of the server, or of the cause of a failed connection.
pub(super) fn message_of(error: &Error) -> String {
    if let Some(server) = error.as_db_error() {
        return format!("{} ({})", server.message(), server.code().code());
    }
    let mut message = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        let cause_message = cause.to_string();
        if !message.contains(&cause_message) {
            message = format!("{message}: {cause_message}");
        }
        source = cause.source();
    }
    message
}

/// The parts of a URL that the client library does not know.
struct Settings {
    url: String,
    mode: String,
    ca: Option<PathBuf>,
}

impl Settings {
    fn take(url: &str) -> Result<Self, String> {
        let (address, query) = url.split_once('?').unwrap_or((url, ""));
        let (mut mode, mut ca, mut rest) = (None, None, Vec::new());
        for part in query.split('&').filter(|part| !part.is_empty()) {
            match part.split_once('=') {
                Some(("sslmode", value)) => mode = Some(value.to_owned()),
                Some(("sslrootcert", value)) => ca = Some(PathBuf::from(value)),
                Some(("target_session_attrs", "read-write" | "primary")) => {}
                Some(("target_session_attrs", _)) => {
                    return Err("locks need a server that accepts changes".to_owned());
                }
                _ => rest.push(part),
            }
        }
        let url = match rest.is_empty() {
            true => address.to_owned(),
            false => format!("{address}?{}", rest.join("&")),
        };
        Ok(Self {
            url,
            mode: mode.unwrap_or_else(|| "prefer".to_owned()),
            ca,
        })
    }
}
