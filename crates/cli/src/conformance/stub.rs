//! `forrst conformance stub`: plays the server of a test vector for clients, in any language.

use std::collections::BTreeMap;

use clap::Args;
use forrst_conformance::{ClientVector, Stub, embedded_client_vectors};
use serde_json::{Value, json};

use crate::error::CommandError;
use crate::exit;
use crate::output::{print, print_value};

/// Play the server of a test vector for clients.
///
/// The first line on standard output is JSON: the URL of the server, the settings of
/// the client, and what to do. Write one line to standard input when that is done:
/// {"outcome": […]} with an entry for each step, or {"skip": "why"}. Lines with the
/// mismatches follow, and a verdict: passed, failed or skipped.
#[derive(Args)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  forrst conformance stub --list
  forrst conformance stub --vector lost-answer-is-asked-for-again

Exit codes: 0 passed or skipped, 1 failed, 2 wrong usage."
)]
pub(crate) struct StubArguments {
    /// The name of the vector
    #[arg(long, value_name = "NAME", required_unless_present = "list")]
    vector: Option<String>,

    /// Print the names of all vectors
    #[arg(long, conflicts_with = "vector")]
    list: bool,
}

pub(super) async fn run(arguments: StubArguments) -> Result<u8, CommandError> {
    let vectors = embedded_client_vectors().map_err(failed)?;
    let mut vectors: BTreeMap<String, ClientVector> = vectors
        .into_iter()
        .map(|vector| (vector.name.clone(), vector))
        .collect();
    let Some(name) = arguments.vector else {
        for name in vectors.keys() {
            print(&format!("{name}\n"))?;
        }
        return Ok(0);
    };
    let vector = vectors.remove(&name).ok_or_else(|| {
        CommandError::usage(format!("there is no vector `{name}`"))
            .hint("`forrst conformance stub --list` names them all")
    })?;
    let stub = Stub::start(vector).map_err(failed)?;
    print_value(&stub.instructions())?;
    let report = read_report().await?;
    if report.get("skip").is_some() {
        print_value(&json!({"verdict": "skipped"}))?;
        return Ok(0);
    }
    let verdict = stub.judge(&report["outcome"]).await;
    for mismatch in &verdict.mismatches {
        print_value(&json!({"mismatch": mismatch}))?;
    }
    let passed = verdict.passed();
    print_value(&json!({"verdict": if passed { "passed" } else { "failed" }}))?;
    Ok(if passed { 0 } else { exit::FAILED })
}

/// The line that the client's test writes at its end.
async fn read_report() -> Result<Value, CommandError> {
    let read = tokio::task::spawn_blocking(|| {
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).map(|_| line)
    });
    let line = read.await.map_err(failed)?.map_err(failed)?;
    let report = serde_json::from_str::<Value>(&line)
        .ok()
        .filter(|report| report["outcome"].is_array() || report["skip"].is_string());
    report.ok_or_else(|| {
        let why = format!(
            "expected a line with {{\"outcome\": […]}} or {{\"skip\": \"why\"}} on standard input, found {line:?}"
        );
        CommandError::local(why).exiting(exit::FAILED)
    })
}

fn failed(error: impl std::fmt::Display) -> CommandError {
    CommandError::local(error.to_string()).exiting(exit::FAILED)
}
