//! The command line: which sections are measured, and how thoroughly.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::serve::ServeArguments;
use crate::workload::WorkloadArguments;

/// Measure the server, its stores and its peers, and print tables of ratios.
///
/// All processes are started on free ports and in temporary folders: our own
/// servers, redis-server, and Postgres, strace and valgrind if they are installed.
/// Everything that is compared runs in turns within one run; a row has the median
/// of all repetitions and their spread. Compare ratios: for absolute numbers,
/// client and server would have to run on different machines.
///
/// Throughput is measured in a closed loop: a caller sends its next request when
/// the last one is answered. Latency is measured in an open loop: requests are due
/// at fixed times, and their latency counts from then.
#[derive(Debug, Parser)]
#[command(
    name = "forrst-bench",
    version,
    verbatim_doc_comment,
    args_conflicts_with_subcommands = true,
    disable_help_subcommand = true,
    after_help = "\
Examples:
  forrst-bench                         everything, in less than 15 minutes
  forrst-bench --quick                 everything once, in less than 2 minutes
  forrst-bench ours --repetitions 9    one section, with a smaller error
  forrst-bench ours --only memory      some of its rows only
  forrst-bench floors peers --json -   two sections, as JSON
  forrst-bench redis                   the goals of the Redis store, in two minutes
  forrst-bench --chart bench.svg       also draw a chart
  forrst-bench --instructions          compare instruction counts with those in
                                       bench/instructions.json
  forrst-bench --instructions --save   and save the new ones there

The log of the servers is not printed; FORRST_BENCH_LOG=1 prints it."
)]
pub(crate) struct Arguments {
    /// The sections to measure [default: all]
    #[arg(value_name = "SECTION")]
    pub(crate) sections: Vec<Section>,

    #[command(flatten)]
    pub(crate) effort: Effort,

    /// List the sections and what they measure, without measuring
    #[arg(long)]
    pub(crate) list: bool,

    /// Write the results as JSON to a file, or with `-` to standard output in place of the tables
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// Write a chart as SVG
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) chart: Option<PathBuf>,

    /// Measure only the section `instructions`
    #[arg(long, conflicts_with = "sections")]
    pub(crate) instructions: bool,

    /// Save the instruction counts to bench/instructions.json
    #[arg(long)]
    pub(crate) save: bool,

    #[command(subcommand)]
    pub(crate) hidden: Option<Hidden>,
}

#[derive(Debug, Args)]
pub(crate) struct Effort {
    /// Measure each variant once and briefly, for a rough result
    #[arg(long, conflicts_with = "full")]
    pub(crate) quick: bool,

    /// Measure all combinations of store, transport and number of callers
    #[arg(long)]
    pub(crate) full: bool,

    /// How long one measurement takes [default: 1s, with --quick 200ms]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    duration: Option<Duration>,

    /// Measure only variants whose name contains this text, and those they are compared with
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,

    /// How often each variant is measured [default: 3, with --quick 1]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=1000))]
    repetitions: Option<u16>,
}

impl Effort {
    pub(crate) fn duration(&self) -> Duration {
        let default = if self.quick { 200 } else { 1000 };
        self.duration.unwrap_or(Duration::from_millis(default))
    }

    /// Whether a variant of that name is measured.
    pub(crate) fn measures(&self, name: &str) -> bool {
        let only = self.only.as_ref();
        only.is_none_or(|text| name.contains(text.as_str()))
    }

    pub(crate) fn repetitions(&self) -> usize {
        let default = if self.quick { 1 } else { 3 };
        self.repetitions.map_or(default, usize::from)
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    let duration = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    let allowed = Duration::from_millis(20)..=Duration::from_secs(600);
    let problem = || "expected a duration from 20ms to 10m".to_owned();
    allowed
        .contains(&duration)
        .then_some(duration)
        .ok_or_else(problem)
}

/// A group of tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Section {
    /// The upper bound on this machine: the same JSON through hyper, axum, jsonrpsee, and bare frames
    Floors,
    /// Our server: each store over each transport, with 1 to 256 callers; latency, CPU, allocations, system calls
    Ours,
    /// Bare Redis scripts, rslock, Postgres and etcd: cycles, and hand-overs of one lock between 64 callers
    Peers,
    /// The same with 100 000 and 1 000 000 held locks, and with up to 10 000 waiters
    Scale,
    /// Instruction counts of parsing, of a lock in memory, and of a whole request, by callgrind
    Instructions,
    /// CPU time of the Redis process per lock, and for contended locks without any requests
    StoreCost,
    /// The goals of the Redis store, as ratios to bare clients of the same Redis, and how many operations a call carries
    Redis,
    /// The goals of the Postgres store, beside a bare client of the same Postgres
    Postgres,
}

impl Section {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Floors => "floors",
            Self::Ours => "ours",
            Self::Peers => "peers",
            Self::Scale => "scale",
            Self::Instructions => "instructions",
            Self::StoreCost => "store-cost",
            Self::Redis => "redis",
            Self::Postgres => "postgres",
        }
    }
}

/// The subcommands with which the benchmark starts itself.
#[derive(Debug, Subcommand)]
pub(crate) enum Hidden {
    #[command(hide = true)]
    Serve(ServeArguments),
    #[command(hide = true)]
    Workload(WorkloadArguments),
}
