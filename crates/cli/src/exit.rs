//! Exit codes, those of `sysexits.h` where it has one for the case.

/// The server answered with an error, or a check has failed.
pub(crate) const FAILED: u8 = 1;
/// The command line is wrong.
pub(crate) const USAGE: u8 = 2;
/// No Forrst server can be reached, or it cannot serve now.
pub(crate) const UNAVAILABLE: u8 = 69;
/// An internal error.
pub(crate) const INTERNAL: u8 = 70;
/// Another client holds the lock. A later try may succeed.
pub(crate) const NOT_ACQUIRED: u8 = 75;
/// The lock was lost while the command ran.
pub(crate) const LOST: u8 = 76;
/// The API key is missing or wrong, or may not do this.
pub(crate) const NOT_ALLOWED: u8 = 77;
/// The command to run exists, but cannot be run.
pub(crate) const CANNOT_EXECUTE: u8 = 126;
/// The command to run does not exist.
pub(crate) const NO_SUCH_COMMAND: u8 = 127;

/// Interrupted by ^C.
pub(crate) const INTERRUPTED: u8 = 130;

/// The exit code by which shells report that a signal ended a process.
pub(crate) fn by_signal(number: i32) -> u8 {
    u8::try_from(128_i32.saturating_add(number)).unwrap_or(u8::MAX)
}

/// The exit codes in the help of most commands.
pub(crate) const HELP: &str = "\
Exit codes: 0 done, 1 the server answered with an error, 2 wrong usage, 69 no
server can be reached or it cannot serve now, 77 not allowed.";

/// The exit codes in the help of commands that acquire a lock.
pub(crate) const HELP_WITH_LOCK: &str = "\
Exit codes: 0 done, 1 the server answered with an error, 2 wrong usage, 69 no
server can be reached or it cannot serve now, 75 another client holds the lock,
77 not allowed.";
