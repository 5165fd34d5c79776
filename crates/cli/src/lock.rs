//! `forrst lock`: commands that inspect and change single locks.

mod acquire;
mod acquire_options;
mod display;
mod extend;
mod force_release;
mod list;
mod name;
mod release;
mod status;
mod waiters;
mod watch;
mod withdraw;

use clap::Subcommand;

use crate::error::CommandError;
use crate::output::quoted;

pub(crate) use acquire_options::AcquireOptions;
pub(crate) use name::refuse_full_key;

pub(crate) const ABOUT: &str = "\
See, take, extend and release locks.

A lock is named by its key: export:orders is the global lock of that key; with
--function payments.charge, it is the lock that callers of this function share.
A name that begins with lock: is a full key, as `forrst lock list` shows it.";

#[derive(Subcommand)]
pub(crate) enum LockCommand {
    Status(status::StatusArguments),
    List(list::ListArguments),
    Waiters(waiters::WaitersArguments),
    Watch(watch::WatchArguments),
    Acquire(acquire::AcquireArguments),
    Extend(extend::ExtendArguments),
    Release(release::ReleaseArguments),
    Withdraw(withdraw::WithdrawArguments),
    ForceRelease(force_release::ForceReleaseArguments),
}

impl LockCommand {
    pub(crate) fn wants_json(&self) -> bool {
        match self {
            Self::Status(arguments) => arguments.json,
            Self::List(arguments) => arguments.json,
            Self::Waiters(arguments) => arguments.json,
            Self::Watch(arguments) => arguments.json,
            Self::Acquire(arguments) => arguments.json,
            Self::Extend(arguments) => arguments.json,
            Self::Release(arguments) => arguments.json,
            Self::Withdraw(arguments) => arguments.json,
            Self::ForceRelease(arguments) => arguments.json,
        }
    }

    pub(crate) async fn run(self) -> Result<u8, CommandError> {
        match self {
            Self::Status(arguments) => return status::run(arguments).await,
            Self::List(arguments) => list::run(arguments).await?,
            Self::Waiters(arguments) => waiters::run(arguments).await?,
            Self::Watch(arguments) => watch::run(arguments).await?,
            Self::Acquire(arguments) => acquire::run(arguments).await?,
            Self::Extend(arguments) => extend::run(arguments).await?,
            Self::Release(arguments) => release::run(arguments).await?,
            Self::Withdraw(arguments) => withdraw::run(arguments).await?,
            Self::ForceRelease(arguments) => force_release::run(arguments).await?,
        }
        Ok(0)
    }
}

/// The command that releases a lease, to be copied into a shell. It names the fence, because the owner may have other leases
/// on the key.
pub(crate) fn release_command(full_key: &str, owner: &str, fence: &str) -> String {
    // As one word, because an owner may begin with a hyphen.
    let owner = quoted(&format!("--owner={owner}"));
    format!(
        "forrst lock release {} {owner} --fence={fence}",
        quoted(full_key)
    )
}
