//! The servers that are measured: this program again, in a separate process, so that the CPU time of the server can be
//! distinguished from that of the load generator.
//!
//! A server process prints its address, executes commands from its standard input, and exits at the end of that input.

mod child;
mod floors;
mod forrst;

use std::fmt;
use std::io::{BufRead, Write};
use std::net::SocketAddr;
use std::path::PathBuf;

use alloc_tracker::Session;
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use tokio::runtime::Runtime;

pub(crate) use child::{ServerProcess, Store};
pub(crate) use forrst::{acquire_command, echo_server, lock_name};

/// Which server to start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ServerKind {
    /// A bare hyper handler that parses JSON and answers with JSON.
    Hyper,
    /// The same as an axum handler.
    Axum,
    /// The same as a method of jsonrpsee.
    Jsonrpsee,
    /// The same over length-prefixed frames, on TCP and on a unix socket.
    Frames,
    /// Our server.
    Forrst,
}

#[derive(Debug, Args)]
pub(crate) struct ServeArguments {
    kind: ServerKind,
    /// The store of our server
    #[arg(long, default_value = "memory:")]
    store: String,
    /// Whether its embedded store acknowledges commits without waiting for the disk
    #[arg(long)]
    process_durability: bool,
    /// The path of its unix socket
    #[arg(long)]
    unix: PathBuf,
}

/// The address of a server.
#[derive(Debug, Clone)]
pub(crate) enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

/// A command to a server process.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) enum Command {
    /// Start to count allocations.
    CountAllocations,
    /// Return the number of allocations since then.
    Allocations,
    /// Acquire this many locks, and keep them.
    Hold(u64),
    /// Acquire one lock, and start this many waiters for it.
    Wait(u64),
    /// Acquire this many locks, and start one waiter for each.
    Contend(u64),
    /// Return the time of listing a page of locks, in microseconds.
    List,
}

/// Serves until the end of standard input.
pub(crate) fn run(arguments: &ServeArguments) -> Result<(), String> {
    let runtime = Runtime::new().map_err(|error| format!("cannot start: {error}"))?;
    let (tcp, server) = runtime.block_on(start(arguments))?;
    print_line(&tcp.to_string());
    let mut allocations = None;
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(|error| error.to_string())?;
        let command = serde_json::from_str(&line).map_err(|error| error.to_string())?;
        let answer = match command {
            Command::CountAllocations => {
                allocations = Some(Allocations::begin());
                Ok(0)
            }
            Command::Allocations => Ok(allocations.take().map_or(0, Allocations::end)),
            Command::Hold(count) => runtime.block_on(forrst::hold(server.as_ref(), count)),
            Command::Wait(count) => runtime.block_on(forrst::wait(server.as_ref(), count)),
            Command::List => runtime.block_on(forrst::list(server.as_ref())),
            Command::Contend(count) => runtime.block_on(forrst::contend(server.as_ref(), count)),
        };
        print_line(&answer.map_or_else(
            |error| child::error_line(&error),
            |number| number.to_string(),
        ));
    }
    Ok(())
}

fn print_line(line: &str) {
    // This fails if the benchmark was interrupted; then standard input ends, too.
    let _ = writeln!(std::io::stdout(), "{line}");
    let _ = std::io::stdout().flush();
}

async fn start(
    arguments: &ServeArguments,
) -> Result<(SocketAddr, Option<forrst_server::Server>), String> {
    match arguments.kind {
        ServerKind::Hyper => Ok((floors::hyper().await?, None)),
        ServerKind::Axum => Ok((floors::axum().await?, None)),
        ServerKind::Jsonrpsee => Ok((floors::jsonrpsee().await?, None)),
        ServerKind::Frames => Ok((floors::frames(&arguments.unix).await?, None)),
        ServerKind::Forrst => {
            let (address, server) = forrst::serve(arguments).await?;
            Ok((address, Some(server)))
        }
    }
}

/// Counts the allocations of the whole process.
struct Allocations {
    session: Session,
    span: alloc_tracker::ProcessSpan,
}

impl Allocations {
    fn begin() -> Self {
        let session = Session::new().no_stdout().no_file();
        let span = session.operation("requests").measure_process();
        Self { session, span }
    }

    fn end(self) -> u64 {
        drop(self.span.iterations(1));
        let report = self.session.to_report();
        let mut operations = report.operations();
        operations
            .next()
            .map_or(0, |(_, operation)| operation.total_allocations_count())
    }
}
