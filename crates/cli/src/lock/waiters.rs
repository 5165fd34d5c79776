//! `forrst lock waiters`: the queue of a lock.

use clap::Args;

use super::name::LockName;
use crate::connection::Connection;
use crate::error::CommandError;
use crate::output::{ServerTime, Table, print, print_json, sanitized};

/// Show which callers wait for a lock, the next one first.
#[derive(Args)]
#[command(after_help = format!("\
Examples:
  forrst lock waiters export:orders
  forrst lock waiters export:orders --limit 1 --json

{}", crate::exit::HELP))]
pub(crate) struct WaitersArguments {
    #[command(flatten)]
    name: LockName,

    /// How many at most, up to 1000
    #[arg(long, value_name = "COUNT", default_value = "100")]
    limit: usize,

    #[command(flatten)]
    connection: Connection,

    /// Print the server's answer as JSON
    #[arg(long)]
    pub(super) json: bool,
}

pub(super) async fn run(arguments: WaitersArguments) -> Result<(), CommandError> {
    let client = arguments.connection.client()?;
    let full_key = arguments.name.full_key();
    let locks = client.locks();
    let waiters = locks.waiters(&full_key, Some(arguments.limit)).with_json();
    let (waiters, json) = waiters
        .await
        .map_err(|error| arguments.connection.failed(error))?;
    if arguments.json {
        return print_json(&json);
    }
    if waiters.is_empty() {
        return print(&format!("No caller waits for {}\n", sanitized(&full_key)));
    }
    let mut table = Table::new(&["POSITION", "OWNER", "CALLER", "NOTE", "SINCE", "UNTIL"]);
    for waiter in waiters {
        table.row(&[
            waiter.position.to_string(),
            waiter.owner,
            waiter.caller.unwrap_or_default(),
            waiter.note.unwrap_or_default(),
            ServerTime::from(waiter.since).to_rfc3339(),
            ServerTime::from(waiter.until).to_rfc3339(),
        ]);
    }
    print(&table.text())
}
