//! The end of `forrst run` by the signal that ended its command.

use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::exit;

/// A handler that was installed cannot be removed again without `unsafe`, and a new program has none: so a shell takes the
/// place of this process, and sends itself the signal. The parent sees what it would see of the command itself.
///
/// The shell writes no core file, and exits with the usual code where the signal is ignored.
const SCRIPT: &str = "ulimit -c 0; kill -\"$0\" $$; exit \"$1\"";

/// Ends this process by a signal. Returns the exit code instead where there is no shell.
pub(super) fn die_by(signal: i32) -> u8 {
    let code = exit::by_signal(signal);
    let _ = Command::new("/bin/sh")
        .args(["-c", SCRIPT, &signal.to_string(), &code.to_string()])
        .exec();
    code
}
