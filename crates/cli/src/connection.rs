//! Which server to talk to.

use std::time::Duration;

use clap::Args;
use forrst_client::{Client, ClientBuilder, Retry};

use crate::error::CommandError;
use crate::time;

/// How long a command goes on giving back what it may have been granted, before it ends.
const SETTLING: Duration = Duration::from_secs(2);

/// How long after its first try a command tries again at most.
const RETRYING: Duration = Duration::from_secs(15);

/// Which server.
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
        // A variable that is set to nothing is as good as none.
        match self.url.as_str() {
            "" => DEFAULT_URL,
            url => url,
        }
    }

    /// There is no flag for it: everybody on the machine can read the command lines of others.
    pub(crate) fn api_key() -> Option<String> {
        let key = std::env::var("FORRST_API_KEY").ok();
        key.filter(|key| !key.is_empty())
    }

    /// A client of that server, to which more can be said.
    pub(crate) fn builder(&self) -> ClientBuilder {
        let builder = Client::builder(self.url());
        match Self::api_key() {
            Some(key) => builder.api_key(key),
            None => builder,
        }
    }

    pub(crate) fn failed(&self, error: forrst_client::Error) -> CommandError {
        CommandError::of_client(self.url(), error)
    }
}

/// What every command that talks to a server can be told.
#[derive(Args, Clone)]
pub(crate) struct Connection {
    #[command(flatten)]
    server: ServerAddress,

    /// How long to wait for an answer, beyond the time to wait for a lock
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = time::parse)]
    timeout: Duration,
}

impl Connection {
    /// A client of that server, to which more can be said.
    pub(crate) fn builder(&self) -> ClientBuilder {
        let builder = self.server.builder().timeout(self.timeout);
        // Tries that follow one that had no answer in time would take as long again.
        builder.retry(Retry::default().within(self.timeout.min(RETRYING)))
    }

    /// A client of that server.
    pub(crate) fn client(&self) -> Result<Client, CommandError> {
        self.builder().build().map_err(|error| self.failed(error))
    }

    pub(crate) fn failed(&self, error: forrst_client::Error) -> CommandError {
        self.server.failed(error)
    }
}

/// Waits until the client has given back what it was granted and has no use for: with this process that would end, too.
pub(crate) async fn settle(client: &Client) -> bool {
    client.settle(SETTLING).await
}
