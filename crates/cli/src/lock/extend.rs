//! `forrst lock extend`.

use std::time::Duration;

use clap::Args;
use serde::Deserialize;
use serde_json::json;

use super::name::LockName;
use super::release::Lease;
use crate::connection::Connection;
use crate::error::CommandError;
use crate::output::{ServerTime, in_time, plain, print, print_json};
use crate::time;

/// Let a lock last longer: it ends one ttl from now.
#[derive(Args)]
#[command(after_help = format!("\
Examples:
  forrst lock extend export:orders --owner nightly --ttl 10m

{}", crate::exit::HELP))]
pub(crate) struct ExtendArguments {
    #[command(flatten)]
    name: LockName,

    #[command(flatten)]
    lease: Lease,

    /// How long it lasts from now on
    #[arg(long, value_name = "DURATION", value_parser = time::parse)]
    ttl: Duration,

    #[command(flatten)]
    connection: Connection,

    /// Print the server's answer as JSON
    #[arg(long)]
    pub(super) json: bool,
}

pub(super) async fn run(arguments: ExtendArguments) -> Result<(), CommandError> {
    #[derive(Deserialize)]
    struct Extended {
        expires_at: ServerTime,
    }

    let client = arguments.connection.client()?;
    let full_key = arguments.name.full_key();
    let mut wanted = json!({
        "key": full_key,
        "owner": arguments.lease.owner,
        "ttl": time::on_the_wire(arguments.ttl),
    });
    if let Some(fence) = &arguments.lease.fence {
        wanted["fence"] = json!(fence);
    }
    let answer = arguments
        .connection
        .ask(&client, &super::function("extend"), &wanted)
        .await?;
    if arguments.json {
        print_json(&answer)?;
        return Ok(());
    }
    let ends = match serde_json::from_str::<Extended>(answer.get()) {
        Ok(Extended { expires_at }) => in_time(expires_at, expires_at.before(arguments.ttl)),
        Err(_) => "later".to_owned(),
    };
    print(&format!(
        "{} is extended\n  expires   {ends}\n",
        plain(&full_key)
    ))
}
