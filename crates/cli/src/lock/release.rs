//! `forrst lock release`: releases a lock with its owner token.

use clap::Args;
use forrst_client::Fence;
use serde_json::json;

use super::name::LockName;
use crate::connection::Connection;
use crate::error::CommandError;
use crate::output::{print, print_value, sanitized};

/// Release a lock with its owner token.
#[derive(Args)]
#[command(after_help = format!("\
Examples:
  forrst lock release export:orders --owner nightly
  forrst lock release lock:payments.charge:user:123 --owner 165954c3-27f9-4ca8-a886-11d9093c0da7

{}", crate::exit::HELP))]
pub(crate) struct ReleaseArguments {
    #[command(flatten)]
    name: LockName,

    #[command(flatten)]
    lease: LeaseSelector,

    #[command(flatten)]
    connection: Connection,

    /// Print the server's answer as JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// Which lease of a lock is meant.
#[derive(Args)]
pub(super) struct LeaseSelector {
    /// The owner token of the lock; `forrst run` sets it for its command
    #[arg(
        long,
        env = "FORRST_LOCK_OWNER",
        value_name = "TOKEN",
        hide_env_values = true
    )]
    pub(super) owner: String,

    /// Only the lease with this fence
    #[arg(long, value_name = "FENCE")]
    pub(super) fence: Option<Fence>,
}

pub(super) async fn run(arguments: ReleaseArguments) -> Result<(), CommandError> {
    let client = arguments.connection.client()?;
    let full_key = arguments.name.full_key();
    let LeaseSelector { owner, fence } = &arguments.lease;
    let released = client.locks().release(&full_key, owner, *fence).await;
    released.map_err(|error| arguments.connection.failed(error))?;
    if arguments.json {
        return print_value(&json!({"key": full_key, "released": true}));
    }
    print(&format!("{} is released\n", sanitized(&full_key)))
}
