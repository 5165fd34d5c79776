//! `forrst completions`.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::error::CommandError;

/// Print what a shell needs to complete this command's words.
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
    clap_complete::generate(
        arguments.shell,
        &mut crate::Arguments::command(),
        "forrst",
        &mut script,
    );
    crate::output::print(&String::from_utf8_lossy(&script))
}
