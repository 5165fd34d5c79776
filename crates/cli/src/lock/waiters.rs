//! `forrst lock waiters`.

use clap::Args;
use forrst_client::Waiter;
use serde::Deserialize;
use serde_json::json;

use super::name::LockName;
use crate::connection::Connection;
use crate::error::CommandError;
use crate::output::{ServerTime, Table, plain, print, print_json};

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

#[derive(Deserialize)]
struct Queue {
    waiters: Vec<Waiter>,
}

pub(super) async fn run(arguments: WaitersArguments) -> Result<(), CommandError> {
    let client = arguments.connection.client()?;
    let full_key = arguments.name.full_key();
    let wanted = json!({"key": full_key, "limit": arguments.limit});
    let answer = arguments
        .connection
        .ask(&client, &super::function("waiters"), &wanted)
        .await?;
    if arguments.json {
        return print_json(&answer);
    }
    let queue: Queue = serde_json::from_str(answer.get())
        .map_err(|error| CommandError::local(format!("the answer makes no sense: {error}")))?;
    if queue.waiters.is_empty() {
        return print(&format!("No caller waits for {}\n", plain(&full_key)));
    }
    let mut table = Table::new(&["POSITION", "OWNER", "CALLER", "NOTE", "SINCE", "UNTIL"]);
    for waiter in queue.waiters {
        table.row(&[
            waiter.position.to_string(),
            waiter.owner,
            waiter.caller.unwrap_or_default(),
            waiter.note.unwrap_or_default(),
            ServerTime::from(waiter.since).on_the_wire(),
            ServerTime::from(waiter.until).on_the_wire(),
        ]);
    }
    print(&table.text())
}
