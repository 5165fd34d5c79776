//! Plays the vectors of the wire contract against a server.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use forrst_conformance::{ApiKey, Options, Report, RunError, Transport, run};

/// Plays the vectors of the wire contract against a server that runs the demo functions.
///
/// Start one with `cargo run -p forrst-cli -- serve --demo`. The last line says `N passed, N failed`.
/// The server's API key, if it wants one, is read from `FORRST_API_KEY`. Exit code: 0 when all passed, 1 when some failed, 2 when nothing could be run.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// The server's address.
    #[arg(long, default_value = "http://127.0.0.1:7420")]
    url: String,
    /// Which way to the server.
    #[arg(long, value_enum, default_value_t = Way::All)]
    transport: Way,
    /// Only vectors whose `group/name` contains this text.
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// How many vectors run at once.
    #[arg(long, value_name = "N", default_value_t = Options::default().jobs)]
    jobs: usize,
    /// How many seconds to wait for any one answer.
    #[arg(long, value_name = "SECONDS", default_value_t = Options::default().patience.as_secs())]
    patience: u64,
    /// Vectors of this folder, laid out as `group/name.json`, instead of the built-in ones.
    #[arg(long, value_name = "DIR")]
    vectors: Option<PathBuf>,
    /// Print the outcomes as JSON; the counts go to standard error.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Way {
    /// POST /forrst
    Http,
    /// JSON-RPC 2.0, POST /rpc
    Rpc,
    /// JSON-RPC 2.0 over a WebSocket on /rpc
    Ws,
    /// One after the other
    All,
}

impl Way {
    fn transports(self) -> Vec<Transport> {
        match self {
            Self::Http => vec![Transport::Http],
            Self::Rpc => vec![Transport::Rpc],
            Self::Ws => vec![Transport::Ws],
            Self::All => Transport::ALL.to_vec(),
        }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let options = Options {
        transports: arguments.transport.transports(),
        filter: arguments.filter,
        jobs: arguments.jobs,
        patience: Duration::from_secs(arguments.patience),
        vectors: arguments.vectors,
        api_key: api_key(),
    };
    match run(&arguments.url, &options).await {
        Ok(report) => tell(&report, arguments.json),
        Err(error) => refuse(&error),
    }
}

/// There is no flag for it: everybody on the machine can read the command lines of others.
fn api_key() -> Option<ApiKey> {
    let key = std::env::var("FORRST_API_KEY").ok();
    key.filter(|key| !key.is_empty()).map(ApiKey::from)
}

fn tell(report: &Report, as_json: bool) -> ExitCode {
    let counts = report.counts();
    if as_json {
        println!("{:#}", serde_json::json!(report));
        eprintln!("{} passed, {} failed", counts.passed, counts.failed);
    } else {
        println!("{report}");
    }
    if counts.failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn refuse(error: &RunError) -> ExitCode {
    eprintln!("error: {error}");
    ExitCode::from(2)
}
