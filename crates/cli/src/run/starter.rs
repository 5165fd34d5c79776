//! What becomes the command, when everything is ready for it.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use clap::Args;

use super::signals::stop_here;
use crate::error::CommandError;
use crate::exit;

#[derive(Args)]
pub(crate) struct StarterArguments {
    #[arg(trailing_var_arg = true, required = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// Stops until the guard continues it, and then becomes the command: by then it has the terminal, and somebody who minds
/// how long it may run. Returns only when it cannot.
pub(crate) fn run(arguments: &StarterArguments) -> CommandError {
    die_with_the_guard();
    stop_here();
    let [program, words @ ..] = arguments.command.as_slice() else {
        return CommandError::usage("there is no command");
    };
    let error = Command::new(program).args(words).exec();
    let code = match error.kind() {
        io::ErrorKind::NotFound => exit::NO_SUCH_COMMAND,
        _ => exit::CANNOT_EXECUTE,
    };
    let message = format!("{} cannot be run: {error}", program.display());
    CommandError::local(message).exiting(code)
}

/// Whoever kills every `forrst` there is leaves nobody who could end the command.
fn die_with_the_guard() {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{Signal, set_parent_process_death_signal};
        // Where this is not possible, the guard and `forrst run` still watch over each other.
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
    }
}
