//! `forrst lock status`.

use std::time::Duration;

use clap::Args;
use serde::Deserialize;
use serde_json::json;

use super::name::LockName;
use crate::connection::Connection;
use crate::error::CommandError;
use crate::exit;
use crate::output::{ServerTime, ago, in_time, plain, print, print_json};

/// Show whether a lock is held, by whom, and for how long.
#[derive(Args)]
#[command(after_help = "\
Examples:
  forrst lock status export:orders
  forrst lock status lock:payments.charge:user:123 --json
  forrst lock status export:orders --exit-code && echo free

Exit codes: 0 whether it is held or free, 1 the server answered with an error, 2
wrong usage, 69 no server can be reached or it cannot serve now, 77 not allowed;
with --exit-code 75 when it is held.")]
pub(crate) struct StatusArguments {
    #[command(flatten)]
    name: LockName,

    /// Exit with 75 when the lock is held
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
    let wanted = json!({"key": full_key});
    let answer = arguments
        .connection
        .ask(&client, &super::function("status"), &wanted)
        .await?;
    let held: Option<HeldLock> = serde_json::from_str(answer.get()).ok();
    if arguments.json {
        print_json(&answer)?;
    } else {
        print(&match &held {
            Some(held) => held.told(),
            None => format!("{} is free\n", plain(&full_key)),
        })?;
    }
    let is_held = held.is_some();
    Ok(if arguments.exit_code && is_held {
        exit::NOT_ACQUIRED
    } else {
        0
    })
}

/// A lock that somebody holds.
#[derive(Deserialize)]
pub(super) struct HeldLock {
    pub(super) key: String,
    pub(super) owner: String,
    pub(super) fence: String,
    acquired_at: ServerTime,
    expires_at: ServerTime,
    ttl_remaining: u64,
}

impl HeldLock {
    /// What the server's clock said. That of this machine may be wrong.
    fn now(&self) -> ServerTime {
        self.expires_at
            .before(Duration::from_secs(self.ttl_remaining))
    }

    pub(super) fn acquired(&self) -> String {
        ago(self.acquired_at, self.now())
    }

    pub(super) fn expires(&self) -> String {
        in_time(self.expires_at, self.now())
    }

    fn told(&self) -> String {
        format!(
            "{key} is held\n  owner     {owner}\n  fence     {fence}\n  acquired  {acquired}\n  expires   {expires}\n",
            key = plain(&self.key),
            owner = plain(&self.owner),
            fence = plain(&self.fence),
            acquired = self.acquired(),
            expires = self.expires(),
        )
    }
}
