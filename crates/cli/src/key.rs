//! `forrst key`: makes API keys, and the entries of the keys file that have their hashes.

use std::io::Write;

use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};
use forrst_server::{ApiKey, KeyEntry, Role};
use serde_json::json;

/// Makes API keys for `forrst serve --auth-file`.
#[derive(Subcommand)]
pub(crate) enum KeyCommand {
    New(NewArguments),
}

/// Make a key, and the block that goes into the keys file.
///
/// The key is shown only once: give it to the caller. The file has only its hash.
/// A running server reads the file again on SIGHUP.
#[derive(Args)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  forrst key new --name dashboard --role observe
  forrst key new --name billing --role call --functions 'billing.*' --locks 'lock:billing*'
  forrst key new --name ops --role admin | tee >(head -1 > ops.key) | tail -n +3 >> keys.toml

Exit codes: 0 done, 1 the key cannot be made or printed, 2 wrong usage.
"
)]
pub(crate) struct NewArguments {
    /// The name of the caller in answers and logs
    #[arg(long, value_name = "NAME")]
    name: String,

    /// What it may do: call functions and use locks, observe locks, or administer the locks of others; can be given more than once
    #[arg(
        long = "role", value_name = "ROLE", required = true,
        value_parser = PossibleValuesParser::new(Role::ALL.map(|(name, _)| name))
    )]
    roles: Vec<String>,

    /// Allow only functions that match this pattern; can be given more than once
    #[arg(long, value_name = "PATTERN")]
    functions: Vec<String>,

    /// Allow only locks whose full key matches this pattern; can be given more than once
    #[arg(long, value_name = "PATTERN")]
    locks: Vec<String>,

    /// Print the key and its entry as JSON, with the block for the keys file as `toml`
    #[arg(long)]
    json: bool,
}

impl KeyCommand {
    pub(crate) fn wants_json(&self) -> bool {
        let Self::New(arguments) = self;
        arguments.json
    }

    pub(crate) fn run(self) -> Result<(), String> {
        let Self::New(arguments) = self;
        let is_json = arguments.json;
        let key = ApiKey::random().map_err(|error| format!("cannot make a key: {error}"))?;
        let entry = KeyEntry {
            name: arguments.name,
            hash: key.hash().to_string(),
            roles: arguments.roles,
            functions: arguments.functions,
            locks: arguments.locks,
        };
        let block = entry.to_toml()?;
        let shown = if is_json {
            let shown = json!({
                "key": key.reveal(),
                "name": entry.name,
                "hash": entry.hash,
                "roles": entry.roles,
                "functions": entry.functions,
                "locks": entry.locks,
                "toml": block,
            });
            format!("{shown}\n")
        } else {
            format!("{}\n\n{block}", key.reveal())
        };
        let written = std::io::stdout().write_all(shown.as_bytes());
        written.map_err(|error| format!("cannot print the key: {error}"))?;
        if !is_json {
            eprintln!(
                "The first line is the key, which is not shown again. The rest goes into the keys file."
            );
        }
        Ok(())
    }
}
