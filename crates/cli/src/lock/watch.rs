//! `forrst lock watch`: a line for each change of a lock.

use std::io::{self, Write};
use std::pin::pin;
use std::time::SystemTime;

use clap::Args;
use forrst_client::{Change, Error, LockStatus};
use futures_util::StreamExt;

use super::display;
use super::name::LockName;
use crate::connection::Connection;
use crate::error::CommandError;
use crate::output::{check_written, print_error, sanitized};

/// Print a line when a lock is taken, released, handed on, or expires.
///
/// The first line is how it is now. Renewals and changes of the queue are not
/// shown; and of several changes at once, only the last one.
#[derive(Args)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  forrst lock watch export:orders
  forrst lock watch user:123 --function payments.charge
  forrst lock watch export:orders --json | jq --unbuffered -r '.owner // \"free\"'

It goes on until ^C, also while the server cannot be reached: standard error says
so, and a line shows how the lock is when the server is back.

Exit codes: 1 the server answered with an error, 2 wrong usage, 69 no server can be
reached at first, 77 not allowed, which takes the role observe or admin. ^C ends it
by its signal, which a shell shows as 130."
)]
pub(crate) struct WatchArguments {
    #[command(flatten)]
    name: LockName,

    #[command(flatten)]
    connection: Connection,

    /// Print the server's answers as JSON, one a line
    #[arg(long)]
    pub(super) json: bool,
}

pub(super) async fn run(arguments: WatchArguments) -> Result<(), CommandError> {
    let client = arguments.connection.client()?;
    let mut changes = pin!(client.locks().watch(&arguments.name.full_key()));
    let mut is_reached = false;
    let mut has_warned = false;
    while let Some(change) = changes.next().await {
        match change {
            Ok(change) => {
                (is_reached, has_warned) = (true, false);
                let written = print_line(&arguments.line(&change));
                if written.is_err() {
                    return check_written(written);
                }
            }
            Err(error) if is_reached && may_pass(&error) => {
                if !has_warned {
                    let error = sanitized(&error.to_string());
                    print_error(&format!("warning: {error}; trying again\n"));
                }
                has_warned = true;
            }
            Err(error) => return Err(arguments.connection.failed(error)),
        }
    }
    Ok(())
}

/// Whether the server may answer later.
fn may_pass(error: &Error) -> bool {
    matches!(
        error,
        Error::Unreachable(_)
            | Error::Interrupted(_)
            | Error::Unavailable(_)
            | Error::RateLimited(_)
    )
}

fn print_line(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush())
}

impl WatchArguments {
    fn line(&self, change: &Change) -> String {
        if self.json {
            return change.json.get().to_owned();
        }
        let state = match &change.status {
            LockStatus::Held(lock) => display::summary(lock),
            free => display::free(free.waiters()),
        };
        // By the clock of this machine, which noticed it now.
        let now = humantime::format_rfc3339_millis(SystemTime::now());
        format!("{now}  {state}")
    }
}
