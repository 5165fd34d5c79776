//! `forrst lock status`: whether a lock is held, and by which leases.

use clap::Args;
use forrst_client::LockStatus;

use super::display;
use super::name::LockName;
use crate::connection::Connection;
use crate::error::CommandError;
use crate::exit;
use crate::output::{print, print_json, sanitized};

/// Show whether a lock is held, how, by which owners, and for how long.
#[derive(Args)]
#[command(after_help = "\
Examples:
  forrst lock status export:orders
  forrst lock status lock:payments.charge:user:123 --json
  forrst lock status export:orders --exit-code && echo free

Exit codes: 0 whether it is held or free, 1 the server answered with an error, 2
wrong usage, 69 no server can be reached or it cannot serve now, 77 not allowed;
with --exit-code 75 when it is held, or reserved for a waiter.")]
pub(crate) struct StatusArguments {
    #[command(flatten)]
    name: LockName,

    /// Exit with 75 when the lock is held, or reserved for a waiter
    #[arg(long)]
    exit_code: bool,

    #[command(flatten)]
    connection: Connection,

    /// Print the server's answer as JSON
    #[arg(long)]
    pub(super) json: bool,
}

pub(super) async fn run(arguments: StatusArguments) -> Result<u8, CommandError> {
    let client = arguments.connection.client()?;
    let full_key = arguments.name.full_key();
    let status = client.locks().status(&full_key).with_json().await;
    let (status, json) = status.map_err(|error| arguments.connection.failed(error))?;
    if arguments.json {
        print_json(&json)?;
    } else {
        print(&match &status {
            LockStatus::Held(lock) => display::describe(lock),
            free => describe_free(&full_key, free.waiters()),
        })?;
    }
    // A lock that is reserved for a waiter cannot be acquired either.
    let is_available = !status.is_held() && status.waiters() == 0;
    Ok(if arguments.exit_code && !is_available {
        exit::NOT_ACQUIRED
    } else {
        0
    })
}

fn describe_free(full_key: &str, waiters: usize) -> String {
    format!("{} is {}\n", sanitized(full_key), display::free(waiters))
}
