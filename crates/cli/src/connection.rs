//! The server that a command talks to: its address, the API key, and how long to wait for answers.

use std::time::Duration;

use clap::Args;
use forrst_client::{Client, ClientBuilder, Retry};

use crate::error::CommandError;
use crate::time;

/// How long a command waits before it ends for locks to be released that it may have been granted.
const SETTLE_TIME: Duration = Duration::from_secs(2);

/// How long after the first try of a request another one may begin.
const RETRY_TIME: Duration = Duration::from_secs(15);

/// The address of the server.
#[derive(Args, Clone)]
pub(crate) struct ServerAddress {
    /// The server: an http, https, ws or wss URL, or `unix:/PATH` for a unix socket; its API key, if it wants one, is read from
    /// `FORRST_API_KEY`
    #[arg(
        long,
        env = "FORRST_URL",
        value_name = "URL",
        default_value = DEFAULT_URL,
        hide_env_values = true
    )]
    url: String,
}

const DEFAULT_URL: &str = "http://127.0.0.1:7420";

impl ServerAddress {
    pub(crate) fn url(&self) -> &str {
        // An empty variable counts as one that is not set.
        match self.url.as_str() {
            "" => DEFAULT_URL,
            url => url,
        }
    }

    /// There is no flag for it, because every user of the machine can read the command lines of others.
    pub(crate) fn api_key() -> Option<String> {
        let key = std::env::var("FORRST_API_KEY").ok();
        key.filter(|key| !key.is_empty())
    }

    /// A client of that server, with the default timeouts.
    pub(crate) fn builder(&self) -> ClientBuilder {
        let builder = Client::builder(self.url());
        match Self::api_key() {
            Some(key) => builder.api_key(key),
            None => builder,
        }
    }

    pub(crate) fn failed(&self, error: forrst_client::Error) -> CommandError {
        CommandError::from_client(self.url(), error)
    }
}

/// The options of most commands that talk to a server.
#[derive(Args, Clone)]
pub(crate) struct Connection {
    #[command(flatten)]
    server: ServerAddress,

    /// How long to wait for an answer, in addition to the wait for a lock
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = time::parse)]
    timeout: Duration,
}

impl Connection {
    /// A client of that server, with the timeout of the command.
    pub(crate) fn builder(&self) -> ClientBuilder {
        let builder = self.server.builder().timeout(self.timeout);
        // After a timeout, another try would take as long again.
        builder.retry(Retry::default().within(self.timeout.min(RETRY_TIME)))
    }

    /// A client of that server.
    pub(crate) fn client(&self) -> Result<Client, CommandError> {
        self.builder().build().map_err(|error| self.failed(error))
    }

    pub(crate) fn failed(&self, error: forrst_client::Error) -> CommandError {
        self.server.failed(error)
    }
}

/// Waits for locks that are being released in the background, because that work would end with this process. Returns whether it is
/// done.
pub(crate) async fn settle(client: &Client) -> bool {
    client.settle(SETTLE_TIME).await
}
