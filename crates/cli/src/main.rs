//! The `forrst` command.

mod demo;
mod options;
mod serve;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Only one at a time: a server for functions whose callers can lock what they touch.
///
/// Try it:
///
///   forrst serve --demo
#[derive(Parser)]
#[command(name = "forrst", version, verbatim_doc_comment)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Serve(Box<options::ServeArguments>),
}

fn main() -> ExitCode {
    let Arguments { command } = Arguments::parse();
    let Command::Serve(arguments) = command;
    let outcome = arguments.resolve().and_then(serve::run);
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("forrst: {error}");
            ExitCode::FAILURE
        }
    }
}
