//! `forrst lock acquire`: takes a lock and keeps it, without renewing it.

use std::time::Duration;

use clap::Args;
use forrst_client::Held;
use serde_json::json;

use super::{AcquireOptions, release_command};
use crate::connection::{Connection, settle};
use crate::error::CommandError;
use crate::output::{ServerTime, in_time, print, print_value, sanitized};
use crate::time;

/// Take a lock and keep it until its ttl is over, unless it is released or extended.
///
/// To hold a lock while a command runs, use `forrst run`.
#[derive(Args)]
#[command(
    verbatim_doc_comment,
    after_help = format!("\
Examples:
  forrst lock acquire export:orders --ttl 10m
  forrst lock acquire export:orders --ttl 10m --block 30s --owner nightly
  forrst lock acquire account:1 account:2 --note transfer
  forrst lock acquire licences --limit 3
  owner=$(forrst lock acquire export:orders --ttl 10m --json | jq -r .owner)

{}", crate::exit::HELP_WITH_LOCK)
)]
pub(crate) struct AcquireArguments {
    /// The key to lock, such as export:orders; several are locked together, all or none
    #[arg(value_name = "KEY", required = true)]
    keys: Vec<String>,

    /// How long it is held
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = time::parse)]
    ttl: Duration,

    #[command(flatten)]
    options: AcquireOptions,

    /// A name for this attempt: when it is repeated, it gets the same lock, and it can be withdrawn [default: a random name]
    #[arg(long, value_name = "NAME")]
    attempt: Option<String>,

    #[command(flatten)]
    connection: Connection,

    /// Print the server's answer as JSON
    #[arg(long)]
    pub(super) json: bool,
}

pub(super) async fn run(arguments: AcquireArguments) -> Result<(), CommandError> {
    arguments.options.check(&arguments.keys)?;
    let client = arguments.connection.client()?;
    let options = &arguments.options;
    let mut lock = options.acquire(&client, &arguments.keys, arguments.ttl);
    if let Some(attempt) = &arguments.attempt {
        lock = lock.attempt(attempt);
    }
    let held = lock.hold().await;
    settle(&client).await;
    let held = held.map_err(|error| arguments.connection.failed(error))?;
    let printed = arguments.print_result(&held);
    if printed.is_err() {
        // The caller does not know the owner token, and could not release the lock.
        let (full_key, fence) = (held.full_key(), Some(held.fence));
        let _ = client.locks().release(full_key, &held.owner, fence).await;
    }
    printed
}

impl AcquireArguments {
    fn print_result(&self, held: &Held) -> Result<(), CommandError> {
        let expires_at = ServerTime::from(held.expires_at);
        if self.json {
            let has_function = self.options.function.is_some();
            let mut data = json!({
                "acquired": true,
                "owner": held.owner,
                "scope": if has_function { "function" } else { "global" },
                "expires_at": expires_at.to_rfc3339(),
                "fence": held.fence.to_string(),
            });
            self.options.echo_kind(&mut data);
            for (name, time) in [
                ("ttl_remaining_ms", held.ttl_remaining),
                ("elapsed_ms", held.elapsed),
            ] {
                if let Some(time) = time {
                    data[name] = u64::try_from(time.as_millis()).unwrap_or(u64::MAX).into();
                }
            }
            if let ([key], [full_key]) = (&*held.keys, &*held.full_keys) {
                data["key"] = json!(key);
                data["full_key"] = json!(full_key);
            } else {
                data["keys"] = json!(held.keys);
                data["full_keys"] = json!(held.full_keys);
            }
            return print_value(&data);
        }
        // It was granted a moment ago, so this is about the time of the server's clock.
        let now = expires_at.before(self.ttl);
        let is = if held.full_keys.len() == 1 {
            "is"
        } else {
            "are"
        };
        print(&format!(
            "{full_keys} {is} yours\n  owner     {owner}\n  fence     {fence}\n  expires   {expires}\n\nTo release it: {release}\n",
            full_keys = sanitized(&held.full_keys.join(", ")),
            owner = sanitized(&held.owner),
            fence = held.fence,
            expires = in_time(expires_at, now),
            release = sanitized(&release_command(
                held.full_key(),
                &held.owner,
                &held.fence.to_string()
            )),
        ))
    }
}
