//! `forrst lock extend`: moves the end of a lease.

use std::time::Duration;

use clap::Args;

use super::name::LockName;
use super::release::LeaseSelector;
use crate::connection::Connection;
use crate::error::CommandError;
use crate::output::{ServerTime, in_time, print, print_json, sanitized};
use crate::time;

/// Extend a lock: it ends one ttl from now.
#[derive(Args)]
#[command(after_help = format!("\
Examples:
  forrst lock extend export:orders --owner nightly --ttl 10m

{}", crate::exit::HELP))]
pub(crate) struct ExtendArguments {
    #[command(flatten)]
    name: LockName,

    #[command(flatten)]
    lease: LeaseSelector,

    /// How long it is held from now on
    #[arg(long, value_name = "DURATION", value_parser = time::parse)]
    ttl: Duration,

    #[command(flatten)]
    connection: Connection,

    /// Print the server's answer as JSON
    #[arg(long)]
    pub(super) json: bool,
}

pub(super) async fn run(arguments: ExtendArguments) -> Result<(), CommandError> {
    let client = arguments.connection.client()?;
    let full_key = arguments.name.full_key();
    let LeaseSelector { owner, fence } = &arguments.lease;
    let locks = client.locks();
    let extended = locks.extend(&full_key, owner, *fence, arguments.ttl);
    let extended = extended.with_json().await;
    let (extended, json) = extended.map_err(|error| arguments.connection.failed(error))?;
    if arguments.json {
        return print_json(&json);
    }
    // The answer is fresh, so the server's clock shows one ttl before the end.
    let expires_at = ServerTime::from(extended.expires_at);
    let ends = in_time(expires_at, expires_at.before(arguments.ttl));
    print(&format!(
        "{} is extended\n  expires   {ends}\n",
        sanitized(&full_key)
    ))
}
