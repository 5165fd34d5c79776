//! The servers that are measured: this program again, as a process of its own, so that what the server spends can be told from
//! what the load generator spends.
//!
//! A served process prints where it listens, obeys commands on its standard input, and ends with it.

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

pub(crate) use child::{Served, Store};
pub(crate) use forrst::{acquire_of, echo_server, lock_name};

/// What is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
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
    kind: Kind,
    /// The store of our server
    #[arg(long, default_value = "memory:")]
    store: String,
    /// Whether its embedded store does not wait for the disk
    #[arg(long)]
    process_durability: bool,
    /// Where to make a unix socket
    #[arg(long)]
    unix: PathBuf,
}

/// Where a server listens.
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

/// What a served process is asked to do.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) enum Command {
    /// Begin to count allocations.
    CountAllocations,
    /// How many there were since.
    Allocations,
    /// Take so many locks, and keep them.
    Hold(u64),
    /// Take one lock, and let so many wait for it.
    Wait(u64),
    /// Take so many locks, with one waiter each.
    Contend(u64),
    /// How many microseconds a page of locks takes.
    List,
}

/// Serves until standard input ends.
pub(crate) fn run(arguments: &ServeArguments) -> Result<(), String> {
    let runtime = Runtime::new().map_err(|error| format!("cannot start: {error}"))?;
    let (tcp, server) = runtime.block_on(start(arguments))?;
    say(&tcp.to_string());
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
        say(&answer.map_or_else(|error| child::refusal(&error), |number| number.to_string()));
    }
    Ok(())
}

fn say(line: &str) {
    // Nobody reads it when the benchmark was interrupted, and then standard input ends, too.
    let _ = writeln!(std::io::stdout(), "{line}");
    let _ = std::io::stdout().flush();
}

async fn start(
    arguments: &ServeArguments,
) -> Result<(SocketAddr, Option<forrst_server::Server>), String> {
    match arguments.kind {
        Kind::Hyper => Ok((floors::hyper().await?, None)),
        Kind::Axum => Ok((floors::axum().await?, None)),
        Kind::Jsonrpsee => Ok((floors::jsonrpsee().await?, None)),
        Kind::Frames => Ok((floors::frames(&arguments.unix).await?, None)),
        Kind::Forrst => {
            let (address, server) = forrst::serve(arguments).await?;
            Ok((address, Some(server)))
        }
    }
}

/// Counts what the whole process allocates.
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
