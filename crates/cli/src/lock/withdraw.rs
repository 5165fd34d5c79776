//! `forrst lock withdraw`: withdraws an attempt to acquire a lock.

use clap::Args;
use forrst_client::Withdrawn;
use serde_json::json;

use super::name::LockName;
use crate::connection::Connection;
use crate::error::CommandError;
use crate::output::{print, print_value, sanitized};

/// Withdraw an attempt to acquire a lock whose outcome is not known.
///
/// If it has the lock, the lock is released; if it waits, it leaves the queue; and
/// if its request arrives within a minute after this, it is refused.
#[derive(Args)]
#[command(
    verbatim_doc_comment,
    after_help = format!("\
Examples:
  forrst lock acquire export:orders --owner nightly --attempt 42 --block 1m
  forrst lock withdraw export:orders --owner nightly --attempt 42

{}", crate::exit::HELP)
)]
pub(crate) struct WithdrawArguments {
    #[command(flatten)]
    name: LockName,

    /// The owner token of the attempt
    #[arg(long, value_name = "TOKEN")]
    owner: String,

    /// The name of the attempt
    #[arg(long, value_name = "NAME")]
    attempt: String,

    #[command(flatten)]
    connection: Connection,

    /// Print the server's answer as JSON
    #[arg(long)]
    pub(super) json: bool,
}

pub(super) async fn run(arguments: WithdrawArguments) -> Result<(), CommandError> {
    let client = arguments.connection.client()?;
    let full_key = arguments.name.full_key();
    let (owner, attempt) = (&arguments.owner, &arguments.attempt);
    let withdrawn = client.locks().withdraw(&full_key, owner, attempt).await;
    let withdrawn = withdrawn.map_err(|error| arguments.connection.failed(error))?;
    let (was, description) = match withdrawn {
        Withdrawn::Held => ("held", "it had the lock, which is released"),
        Withdrawn::Waiting => ("waiting", "it waited, and has left the queue"),
        _ => ("unknown", "the server did not know of it"),
    };
    if arguments.json {
        return print_value(&json!({"withdrawn": true, "key": full_key, "was": was}));
    }
    print(&format!(
        "{} is withdrawn: {description}\n",
        sanitized(&full_key)
    ))
}
