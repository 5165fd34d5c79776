//! `forrst man`: manual pages, generated from the help texts.

use std::fs;
use std::path::PathBuf;

use clap::{Args, CommandFactory};
use clap_mangen::Man;

use crate::error::CommandError;

/// Print a manual page, or write all of them into a folder.
#[derive(Args)]
#[command(after_help = "\
Examples:
  forrst man | man -l -
  forrst man lock status | man -l -
  forrst man --out ~/.local/share/man/man1

Exit codes: 0 done, 1 it cannot be written, 2 wrong usage.")]
pub(crate) struct ManArguments {
    /// The command, such as `lock status` [default: forrst itself]
    #[arg(value_name = "COMMAND", conflicts_with = "out")]
    command: Vec<String>,

    /// Write the pages of all commands into this folder
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

pub(crate) fn run(arguments: &ManArguments) -> Result<(), CommandError> {
    let mut root = crate::Arguments::command().disable_help_subcommand(true);
    if let Some(folder) = &arguments.out {
        let failed =
            |error| CommandError::local(format!("{} cannot be written: {error}", folder.display()));
        let written =
            fs::create_dir_all(folder).and_then(|()| clap_mangen::generate_to(root, folder));
        return written.map_err(failed);
    }
    // Only then do the subcommands know their full names.
    root.build();
    let mut command = &root;
    for name in &arguments.command {
        let found = command.find_subcommand(name);
        command =
            found.ok_or_else(|| CommandError::usage(format!("there is no command `{name}`")))?;
    }
    let mut page = Vec::new();
    Man::new(command.clone())
        .render(&mut page)
        .map_err(|error| CommandError::local(format!("the page cannot be rendered: {error}")))?;
    crate::output::print(&String::from_utf8_lossy(&page))
}
