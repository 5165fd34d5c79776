//! `forrst lock force-release`: ends leases of other clients, after asking.

use std::collections::BTreeSet;
use std::io::{BufRead, IsTerminal};

use clap::Args;
use forrst_client::{Error, Fence, Holder, LockInfo};
use serde_json::json;

use super::display;
use super::name::LockName;
use crate::connection::Connection;
use crate::error::CommandError;
use crate::output::{print, print_error, print_value, sanitized};

/// Release a lock that other clients hold.
///
/// The holders are not asked, and may still be working: only a resource that checks
/// fences is safe from them. So this command asks first, unless --yes is given, and
/// then ends only the leases that it has shown. A lease on several keys ends as a whole.
#[derive(Args)]
#[command(
    verbatim_doc_comment,
    after_help = format!("\
Examples:
  forrst lock force-release export:orders
  forrst lock force-release lock:payments.charge:user:123 --yes
  forrst lock force-release export:orders --fence 000000000000042 --yes

{}
Exit code 1 also when the question was not answered with yes.", crate::exit::HELP)
)]
pub(crate) struct ForceReleaseArguments {
    #[command(flatten)]
    name: LockName,

    /// End only the lease with this fence
    #[arg(long, value_name = "FENCE")]
    fence: Option<Fence>,

    /// Do not ask
    #[arg(long, short)]
    yes: bool,

    #[command(flatten)]
    connection: Connection,

    /// Print the server's answer as JSON
    #[arg(long)]
    pub(super) json: bool,
}

pub(super) async fn run(arguments: ForceReleaseArguments) -> Result<(), CommandError> {
    let full_key = arguments.name.full_key();
    if !arguments.yes && !std::io::stdin().is_terminal() {
        let message = format!("{full_key} is not released: there is no terminal to ask on");
        return Err(CommandError::usage(message).hint("--yes releases it without asking"));
    }
    let client = arguments.connection.client()?;
    let locks = client.locks();
    let failed = |error| arguments.connection.failed(error);
    if arguments.yes {
        let leases = locks.force_release(&full_key, arguments.fence).await;
        return arguments.print_result(&full_key, leases.map_err(failed)?, 0);
    }
    let status = locks.status(&full_key).await.map_err(failed)?.held();
    let shown = status.as_ref().map(|lock| shown(lock, arguments.fence));
    let mut shown = shown.unwrap_or_default();
    if !confirmed(&full_key, status.as_ref(), &shown) {
        return Err(CommandError::local("nothing was released"));
    }
    // The answer is about the leases that were shown, not about one that was granted meanwhile.
    let mut fences: Vec<Option<Fence>> = shown.drain(..).map(|holder| holder.fence).collect();
    if fences.is_empty() {
        fences.push(arguments.fence);
    }
    let mut ended = Ended::default();
    for fence in &fences {
        match locks.force_release(&full_key, *fence).await {
            Ok(leases) => ended.leases += leases,
            // One of several may have ended since it was shown.
            Err(error @ (Error::NotHeld(_) | Error::Mismatch(_))) if fences.len() > 1 => {
                ended.missed = Some(error);
            }
            Err(error) => return Err(ended.before(failed(error))),
        }
    }
    if let (0, Some(error)) = (ended.leases, ended.missed) {
        return Err(failed(error));
    }
    let unlisted = status.as_ref().map_or(0, display::unlisted);
    let unlisted = if arguments.fence.is_some() {
        0
    } else {
        unlisted
    };
    arguments.print_result(&full_key, ended.leases, unlisted)
}

/// What has been released so far.
#[derive(Default)]
struct Ended {
    leases: usize,
    /// The error about a lease that had ended already.
    missed: Option<Error>,
}

impl Ended {
    /// Adds to an error that some leases were released before it.
    fn before(&self, error: CommandError) -> CommandError {
        match self.leases {
            0 => error,
            leases => error.hint(format!("{leases} of the leases have ended before that")),
        }
    }
}

/// The leases that the question is about.
fn shown(lock: &LockInfo, fence: Option<Fence>) -> Vec<&Holder> {
    let is_meant = |holder: &&Holder| fence.is_none() || holder.fence == fence;
    lock.holders.iter().filter(is_meant).collect()
}

impl ForceReleaseArguments {
    /// `unlisted` leases were not shown, and so not ended.
    fn print_result(
        &self,
        full_key: &str,
        leases: usize,
        unlisted: usize,
    ) -> Result<(), CommandError> {
        if self.json {
            let done = json!({"released": true, "key": full_key, "forced": true, "leases": leases});
            return print_value(&done);
        }
        let full_key = sanitized(full_key);
        let mut text = match leases {
            1 => format!("{full_key} is released by force\n"),
            leases => {
                format!("{full_key} is released by force: {leases} leases have ended\n")
            }
        };
        if unlisted > 0 {
            text.push_str(&format!(
                "{unlisted} more hold it, which were not shown: run this again, or end all of them with --yes\n"
            ));
        }
        print(&text)
    }
}

fn confirmed(full_key: &str, status: Option<&LockInfo>, shown: &[&Holder]) -> bool {
    let lock = sanitized(full_key);
    let question = match (status, shown) {
        (None, _) => {
            format!("{lock} is free. Release it by force, if it is taken by now? [y/N] ")
        }
        (Some(_), []) => format!(
            "{lock} is held, but not by a lease with that fence. Release it by force all the same? [y/N] "
        ),
        (Some(_), [holder]) => format!(
            "{lock} is held by {owner} and expires {expires}.\n{keys}The holder may still be working. Release it by force? [y/N] ",
            owner = sanitized(&holder.owner),
            expires = display::expires(holder),
            keys = other_keys(full_key, shown),
        ),
        (Some(held), several) => format!(
            "{description}{keys}The holders may still be working. Release these {count} leases by force? [y/N] ",
            description = display::describe(held),
            keys = other_keys(full_key, shown),
            count = several.len(),
        ),
    };
    print_error(&question);
    let mut answer = String::new();
    let read = std::io::stdin().lock().read_line(&mut answer);
    read.is_ok() && matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes")
}

/// The other keys of these leases, which are released with them.
fn other_keys(full_key: &str, shown: &[&Holder]) -> String {
    let keys = shown.iter().flat_map(|holder| &holder.full_keys);
    let others: BTreeSet<&str> = keys
        .map(String::as_str)
        .filter(|key| *key != full_key)
        .collect();
    if others.is_empty() {
        return String::new();
    }
    let others: Vec<&str> = others.into_iter().collect();
    format!("Released with it: {}.\n", sanitized(&others.join(", ")))
}
