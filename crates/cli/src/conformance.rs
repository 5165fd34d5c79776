//! `forrst conformance`: runs the test vectors of the wire contract against a server.

mod stub;

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use forrst_conformance::{ApiKey, Options, Profile, RunError, Transport, run as run_vectors};

use crate::connection::ServerAddress;
use crate::error::CommandError;
use crate::exit;
use crate::output::{print, print_error, print_value};
use crate::time;

/// Run the test vectors of the wire contract against a server.
///
/// The server has to have the demo functions, as with `forrst serve --demo`. If it
/// needs an API key, the key has to have all rights. The last line is
/// `N passed, N failed`.
#[derive(Args)]
#[command(
    verbatim_doc_comment,
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  forrst conformance
  forrst conformance --url http://127.0.0.1:8080 --transport ws
  forrst conformance --filter atomic-lock --json
  forrst conformance --url https://locks.example.com --profile core

Exit codes: 0 all passed, 1 some failed, 2 wrong usage, 69 no server can be
reached."
)]
pub(crate) struct ConformanceArguments {
    #[command(subcommand)]
    command: Option<ConformanceCommand>,

    /// What is asked of the server
    #[arg(long, value_name = "PROFILE", default_value = "extended")]
    profile: ProfileName,

    /// The transport to use [default: all; `http` for the core profile, `ws` for a ws or wss URL]
    #[arg(long, value_name = "TRANSPORT")]
    transport: Option<TransportName>,

    /// Only vectors whose `group/name` contains this text
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,

    /// How many vectors run at once
    #[arg(long, value_name = "COUNT", default_value_t = Options::default().jobs)]
    jobs: usize,

    /// How long to wait for each answer
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = time::parse)]
    patience: std::time::Duration,

    /// Vectors of this folder, laid out as group/name.json, instead of the built-in ones
    #[arg(long, value_name = "DIR")]
    vectors: Option<PathBuf>,

    #[command(flatten)]
    server: ServerAddress,

    /// Print all outcomes as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Subcommand)]
enum ConformanceCommand {
    Stub(stub::StubArguments),
}

#[derive(Clone, Copy, ValueEnum)]
enum ProfileName {
    /// Only what the published specification of atomicLock asks of any server
    Core,
    /// The whole contract of this server
    Extended,
}

#[derive(Clone, Copy, ValueEnum)]
enum TransportName {
    /// POST /forrst
    Http,
    /// JSON-RPC 2.0, POST /rpc
    Rpc,
    /// JSON-RPC 2.0 over a WebSocket on /rpc
    Ws,
}

pub(crate) async fn run(arguments: ConformanceArguments) -> Result<u8, CommandError> {
    if let Some(ConformanceCommand::Stub(arguments)) = arguments.command {
        return stub::run(arguments).await;
    }
    let profile = match arguments.profile {
        ProfileName::Core => Profile::Core,
        ProfileName::Extended => Profile::Extended,
    };
    let url = arguments.server.url();
    let transports = match arguments.transport {
        Some(TransportName::Http) => vec![Transport::Http],
        Some(TransportName::Rpc) => vec![Transport::Rpc],
        Some(TransportName::Ws) => vec![Transport::Ws],
        None if url.starts_with("ws") => vec![Transport::Ws],
        // The specification has no binding to JSON-RPC.
        None if profile == Profile::Core => vec![Transport::Http],
        None => Transport::ALL.to_vec(),
    };
    let options = Options {
        profile,
        transports,
        filter: arguments.filter,
        without: Vec::new(),
        jobs: arguments.jobs,
        patience: arguments.patience,
        vectors: arguments.vectors,
        api_key: ServerAddress::api_key().map(ApiKey::from),
    };
    let report = run_vectors(url, &options)
        .await
        .map_err(|error| run_failed(&error))?;
    let counts = report.counts();
    if arguments.json {
        print_value(&report)?;
        print_error(&format!(
            "{} passed, {} failed\n",
            counts.passed, counts.failed
        ));
    } else {
        print(&format!("{report}\n"))?;
    }
    Ok(if counts.failed == 0 { 0 } else { exit::FAILED })
}

fn run_failed(error: &RunError) -> CommandError {
    let message = error.to_string();
    match error {
        RunError::Unreachable { .. } if error.is_certificate_error() => {
            CommandError::local(message)
                .exiting(exit::UNAVAILABLE)
                .hint("SSL_CERT_FILE names the certificates of a private authority")
        }
        RunError::Unreachable { .. } => CommandError::local(message)
            .exiting(exit::UNAVAILABLE)
            .hint("is it running? `forrst serve --demo` starts one"),
        _ => CommandError::usage(message),
    }
}
