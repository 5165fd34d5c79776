//! Exit codes, as `sysexits.h` has them where it has any.

/// The server answered with an error, or a check has failed.
pub(crate) const FAILED: u8 = 1;
/// The command line is wrong.
pub(crate) const USAGE: u8 = 2;
/// No Forrst server answers, or it cannot serve now.
pub(crate) const UNAVAILABLE: u8 = 69;
/// Something broke that should not be able to.
pub(crate) const INTERNAL: u8 = 70;
/// Somebody else holds the lock. Trying again later may help.
pub(crate) const NOT_ACQUIRED: u8 = 75;
/// The lock was lost while the command ran.
pub(crate) const LOST: u8 = 76;
/// The API key is missing or wrong, or may not do this.
pub(crate) const NOT_ALLOWED: u8 = 77;
/// The command to run exists, and cannot be run.
pub(crate) const CANNOT_EXECUTE: u8 = 126;
/// The command to run does not exist.
pub(crate) const NO_SUCH_COMMAND: u8 = 127;

/// As shells say that a signal ended something.
pub(crate) fn by_signal(number: i32) -> u8 {
    u8::try_from(128_i32.saturating_add(number)).unwrap_or(u8::MAX)
}

/// What the help of most commands says about them.
pub(crate) const HELP: &str = "\
Exit codes: 0 done, 1 the server answered with an error, 2 wrong usage, 69 no
server can be reached or it cannot serve now, 77 not allowed.";

/// The same, of commands that take a lock.
pub(crate) const HELP_WITH_LOCK: &str = "\
Exit codes: 0 done, 1 the server answered with an error, 2 wrong usage, 69 no
server can be reached or it cannot serve now, 75 somebody else holds the lock,
77 not allowed.";
