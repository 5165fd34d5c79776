//! `forrst lock force-release`.

use std::io::{BufRead, IsTerminal};

use clap::Args;
use forrst_client::Fence;
use serde_json::json;

use super::name::LockName;
use super::status::HeldLock;
use crate::connection::Connection;
use crate::error::CommandError;
use crate::output::{complain, plain, print, print_json};

/// Release a lock that another client holds.
///
/// The holder is not asked, and may still be at work: only what checks fences
/// is safe from it. So this asks first, unless --yes is given, and then releases
/// only the lease that it asked about.
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

    /// Only the lease with this fence, and none that was granted after it
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
    let mut wanted = json!({"key": full_key});
    let mut fence = arguments.fence.map(|fence| json!(fence));
    if !arguments.yes {
        let answer = arguments
            .connection
            .ask(&client, &super::function("status"), &wanted)
            .await?;
        let holder = serde_json::from_str::<HeldLock>(answer.get()).ok();
        if !confirmed(&full_key, holder.as_ref()) {
            return Err(CommandError::local("nothing was released"));
        }
        // Yes is said to the lease that was shown, not to one that was granted meanwhile.
        fence = fence.or_else(|| holder.map(|held| json!(held.fence)));
    }
    if let Some(fence) = fence {
        wanted["fence"] = fence;
    }
    let forced = super::function("force-release");
    let answer = arguments.connection.tell(&client, &forced, &wanted).await?;
    if arguments.json {
        print_json(&answer)?;
    } else {
        print(&format!("{} is released by force\n", plain(&full_key)))?;
    }
    Ok(())
}

fn confirmed(full_key: &str, holder: Option<&HeldLock>) -> bool {
    let lock = plain(full_key);
    let question = match holder {
        Some(held) => format!(
            "{lock} is held by {owner} and expires {expires}.\nThe holder may still be at work. Release it by force? [y/N] ",
            owner = plain(&held.owner),
            expires = held.expires(),
        ),
        None => format!("{lock} is free. Release it by force, if somebody takes it now? [y/N] "),
    };
    complain(&question);
    let mut answer = String::new();
    let read = std::io::stdin().lock().read_line(&mut answer);
    read.is_ok() && matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes")
}
