//! The benchmark: `cargo run --release -p forrst-bench`.
//!
//! The results are ratios: everything that is compared runs on this machine within one run and in turns, so that other load on
//! the machine affects all of it alike. Servers are separate processes, on free ports and in temporary folders.

// Rates, shares and counts for people: none of them needs 53 bits.
#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "numbers for people"
)]

mod load;
mod machine;
mod options;
mod peers;
mod process;
mod report;
mod sections;
mod serve;
mod subject;
mod wire;
mod workload;

use std::process::ExitCode;

use alloc_tracker::Allocator;
use clap::Parser;
use mimalloc::MiMalloc;

use options::{Arguments, Hidden};

/// The allocator of the `forrst` binary, for everything that is compared. Its counters are per thread, so that counting costs
/// little.
#[global_allocator]
static ALLOCATOR: Allocator<MiMalloc> = Allocator::new(MiMalloc);

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = match &arguments.hidden {
        Some(Hidden::Serve(arguments)) => serve::run(arguments),
        Some(Hidden::Workload(arguments)) => workload::run(arguments),
        None => sections::run(&arguments),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
