//! `forrst completions`: scripts for shells, generated from the commands and their flags.

use clap::{Args, Command, CommandFactory};
use clap_complete::Shell;

use crate::error::CommandError;

/// Print the script with which a shell completes the arguments of this command.
#[derive(Args)]
#[command(after_help = "\
Examples:
  forrst completions bash > ~/.local/share/bash-completion/completions/forrst
  forrst completions zsh > ~/.zfunc/_forrst
  forrst completions fish > ~/.config/fish/completions/forrst.fish

Exit codes: 0 done, 1 it cannot be printed, 2 wrong usage.")]
pub(crate) struct CompletionsArguments {
    /// Which shell
    shell: Shell,
}

pub(crate) fn run(arguments: &CompletionsArguments) -> Result<(), CommandError> {
    let mut script = Vec::new();
    let forrst = crate::Arguments::command();
    // Otherwise hidden commands would be offered, too.
    let shown = forrst.get_subcommands().filter(|it| !it.is_hide_set());
    let mut forrst = Command::new("forrst")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommands(shown.cloned());
    clap_complete::generate(arguments.shell, &mut forrst, "forrst", &mut script);
    crate::output::print(&String::from_utf8_lossy(&script))
}
