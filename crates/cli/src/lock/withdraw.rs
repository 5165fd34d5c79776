//! `forrst lock withdraw`.

use clap::Args;
use forrst_client::Withdrawn;
use serde_json::json;

use super::name::LockName;
use crate::connection::Connection;
use crate::error::CommandError;
use crate::output::{plain, print, print_value};

/// Take back an attempt to acquire a lock whose outcome is not known.
///
/// If it has the lock, that is released; if it waits, it leaves the queue; and
/// if it is still on its way, it comes to nothing when it arrives within a
/// minute.
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

    /// The token that the lock was asked for with
    #[arg(long, value_name = "TOKEN")]
    owner: String,

    /// What the attempt was called
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
    let (was, told) = match withdrawn {
        Withdrawn::Held => ("held", "it had the lock, which is released"),
        Withdrawn::Waiting => ("waiting", "it waited, and has left the queue"),
        _ => ("unknown", "the server did not know of it"),
    };
    if arguments.json {
        return print_value(&json!({"withdrawn": true, "key": full_key, "was": was}));
    }
    print(&format!("{} is withdrawn: {told}\n", plain(&full_key)))
}
