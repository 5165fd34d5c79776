//! `forrst lock acquire`.

use std::time::Duration;

use clap::Args;
use forrst_client::Held;
use serde_json::json;

use super::{check_own_key, release_command};
use crate::connection::{Connection, settle};
use crate::error::CommandError;
use crate::output::{ServerTime, in_time, plain, print, print_value};
use crate::time;

/// Take a lock and leave it: it ends at its ttl, unless it is released or extended.
///
/// To hold a lock while a command runs, `forrst run` is the better way.
#[derive(Args)]
#[command(
    verbatim_doc_comment,
    after_help = format!("\
Examples:
  forrst lock acquire export:orders --ttl 10m
  forrst lock acquire export:orders --ttl 10m --block 30s --owner nightly
  owner=$(forrst lock acquire export:orders --ttl 10m --json | jq -r .owner)

{}", crate::exit::HELP_WITH_LOCK)
)]
pub(crate) struct AcquireArguments {
    /// The key to lock, such as export:orders
    key: String,

    /// How long it is held
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = time::parse)]
    ttl: Duration,

    /// How long to wait when somebody else holds it [default: not at all]
    #[arg(long, value_name = "DURATION", value_parser = time::parse)]
    block: Option<Duration>,

    /// The token that it is released by [default: a random one]
    #[arg(long, value_name = "TOKEN")]
    owner: Option<String>,

    /// Take the lock that callers of this function share; without it, the global one
    #[arg(long, value_name = "FUNCTION")]
    function: Option<String>,

    #[command(flatten)]
    connection: Connection,

    /// Print the server's answer as JSON
    #[arg(long)]
    pub(super) json: bool,
}

pub(super) async fn run(arguments: AcquireArguments) -> Result<(), CommandError> {
    check_own_key(&arguments.key, arguments.function.as_deref())?;
    let client = arguments.connection.client()?;
    let mut lock = client.lock(&arguments.key).ttl(arguments.ttl);
    if let Some(block) = arguments.block {
        lock = lock.wait(block);
    }
    if let Some(owner) = &arguments.owner {
        lock = lock.owner(owner);
    }
    if let Some(function) = &arguments.function {
        lock = lock.function(function);
    }
    let held = lock.hold().await;
    settle(&client).await;
    let held = held.map_err(|error| arguments.connection.failed(error))?;
    let told = arguments.tell(&held);
    if told.is_err() {
        // Nobody has learnt whose it is, so nobody else can give it back.
        let (full_key, fence) = (&held.full_key, Some(held.fence));
        let _ = client.locks().release(full_key, &held.owner, fence).await;
    }
    told
}

impl AcquireArguments {
    fn tell(&self, held: &Held) -> Result<(), CommandError> {
        let expires_at = ServerTime::from(held.expires_at);
        if self.json {
            return print_value(&json!({
                "key": held.key,
                "acquired": true,
                "owner": held.owner,
                "scope": if self.function.is_some() { "function" } else { "global" },
                "expires_at": expires_at.on_the_wire(),
                "full_key": held.full_key,
                "fence": held.fence.to_string(),
            }));
        }
        // It was granted a moment ago, so this is the time by the server's clock as well as it can be known.
        let now = expires_at.before(self.ttl);
        print(&format!(
            "{full_key} is yours\n  owner     {owner}\n  fence     {fence}\n  expires   {expires}\n\nTo release it: {release}\n",
            full_key = plain(&held.full_key),
            owner = plain(&held.owner),
            fence = held.fence,
            expires = in_time(expires_at, now),
            release = plain(&release_command(&held.full_key, &held.owner)),
        ))
    }
}
