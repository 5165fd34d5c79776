//! `forrst lock`: locks, looked at and looked after.

mod acquire;
mod extend;
mod force_release;
mod held;
mod list;
mod name;
mod release;
mod status;
mod waiters;
mod wanted;
mod withdraw;

use clap::Subcommand;

use crate::error::CommandError;
use crate::output::quoted;

pub(crate) use name::check_own_key;
pub(crate) use wanted::Wanted;

pub(crate) const ABOUT: &str = "\
See, take, extend and release locks.

A lock is named by its key: export:orders is the global lock of that key, and
with --function payments.charge the one that callers of this function share. A
name that begins with lock: is a full key, as lists show it.";

#[derive(Subcommand)]
pub(crate) enum LockCommand {
    Status(status::StatusArguments),
    List(list::ListArguments),
    Waiters(waiters::WaitersArguments),
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
            Self::Acquire(arguments) => acquire::run(arguments).await?,
            Self::Extend(arguments) => extend::run(arguments).await?,
            Self::Release(arguments) => release::run(arguments).await?,
            Self::Withdraw(arguments) => withdraw::run(arguments).await?,
            Self::ForceRelease(arguments) => force_release::run(arguments).await?,
        }
        Ok(0)
    }
}

/// How a lock is released, to be copied into a shell.
///
/// With the fence: the owner may have other leases on the key.
pub(crate) fn release_command(full_key: &str, owner: &str, fence: &str) -> String {
    // One word, because an owner may begin with a hyphen.
    let owner = quoted(&format!("--owner={owner}"));
    format!(
        "forrst lock release {} {owner} --fence={fence}",
        quoted(full_key)
    )
}
