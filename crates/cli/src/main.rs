//! The `forrst` command: the server, and the commands that talk to one.
//!
//! Each command is a module with its arguments, its help text and a `run` function.

mod bench;
mod call;
mod completions;
mod conformance;
mod connection;
mod demo;
mod error;
mod exit;
mod key;
mod lock;
mod man;
mod options;
mod output;
mod run;
mod serve;
mod store;
mod time;
#[cfg(feature = "otlp")]
mod traces;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use mimalloc::MiMalloc;
use tokio::runtime::{Builder, Runtime};

use error::CommandError;

/// Requests are allocated on one thread and often freed on another, for which the system's allocator takes locks.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// Only one at a time: a lock server, which runs functions under locks, and holds locks for work that runs elsewhere.
///
/// Try it:
///
///   forrst serve --demo
///   forrst call demo.echo greeting=hello --lock greetings
///   forrst run --key export:orders -- ./export.sh
///   forrst lock list
#[derive(Parser)]
#[command(
    name = "forrst",
    version,
    verbatim_doc_comment,
    after_help = "\
The server is named by --url or FORRST_URL, the API key by FORRST_API_KEY, the
certificates of a private authority by SSL_CERT_FILE.

Exit codes: 0 done, 1 the server answered with an error, 2 wrong usage, 69 no
server can be reached or it cannot serve now, 75 another client holds the lock,
76 the lock was lost, 77 not allowed. `forrst run` has those of its command, too."
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Serve(Box<options::ServeArguments>),
    Call(Box<call::CallArguments>),
    /// See, take, extend and release locks.
    #[command(subcommand, long_about = lock::ABOUT)]
    Lock(lock::LockCommand),
    Run(Box<run::RunArguments>),
    Bench(Box<bench::BenchArguments>),
    Conformance(Box<conformance::ConformanceArguments>),
    /// Make API keys for `forrst serve --auth-file`.
    #[command(subcommand)]
    Key(key::KeyCommand),
    /// Check a store, and create its tables.
    #[command(subcommand)]
    Store(store::StoreCommand),
    Completions(completions::CompletionsArguments),
    Man(man::ManArguments),
    /// The process between `forrst run` and its command.
    #[command(hide = true)]
    Guard(run::guard::GuardArguments),
    /// The process that becomes that command.
    #[command(hide = true)]
    Starter(run::guard::StarterArguments),
}

fn main() -> ExitCode {
    let Arguments { command } = Arguments::parse();
    let wants_json = command.wants_json();
    match command.run() {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            if let Some(json) = error.as_json().filter(|_| wants_json) {
                // If this fails, the exit code still reports the error.
                let _ = output::print_value(&json);
            }
            output::print_error(&error.to_text());
            ExitCode::from(error.exit_code())
        }
    }
}

impl Command {
    fn run(self) -> Result<u8, CommandError> {
        match self {
            Self::Serve(arguments) => {
                serve::run(arguments.resolve()?)?;
            }
            Self::Call(arguments) => block_on(call::run(*arguments))?,
            Self::Lock(command) => return block_on(command.run()),
            Self::Run(arguments) => return block_on(run::run(*arguments)),
            Self::Bench(arguments) => {
                let runtime = Runtime::new().map_err(|error| cannot_start(&error))?;
                return runtime.block_on(bench::run(*arguments));
            }
            Self::Conformance(arguments) => return block_on(conformance::run(*arguments)),
            Self::Store(command) => return block_on(command.run()),
            Self::Completions(arguments) => completions::run(&arguments)?,
            Self::Man(arguments) => man::run(&arguments)?,
            Self::Key(command) => command.run().map_err(CommandError::local)?,
            Self::Guard(arguments) => {
                run::guard::run(&arguments)
                    .map_err(|error| CommandError::local(error.to_string()))?;
            }
            Self::Starter(arguments) => return Err(run::guard::run_starter(&arguments)),
        }
        Ok(0)
    }

    /// Whether errors are also printed as JSON.
    fn wants_json(&self) -> bool {
        match self {
            Self::Call(arguments) => arguments.json,
            Self::Lock(command) => command.wants_json(),
            Self::Bench(arguments) => arguments.json,
            Self::Conformance(arguments) => arguments.json,
            Self::Key(command) => command.wants_json(),
            Self::Store(command) => command.wants_json(),
            _ => false,
        }
    }
}

/// For commands that send one request at a time: a single thread is enough.
fn block_on<T>(work: impl Future<Output = Result<T, CommandError>>) -> Result<T, CommandError> {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime
        .map_err(|error| cannot_start(&error))?
        .block_on(work)
}

fn cannot_start(error: &std::io::Error) -> CommandError {
    CommandError::local(format!("cannot start: {error}"))
}
