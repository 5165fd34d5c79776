//! `forrst store`: checks a store before a server uses it, and creates the tables of a Postgres.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use forrst_stores::{
    CheckError, Checked, OpenError, OpenOptions, STORE_TIMEOUT, check, migrate, url_without_secrets,
};
use serde_json::json;

use crate::error::CommandError;
use crate::exit;
use crate::output::{print, print_value};
use crate::time;

/// Checks a store, and creates its tables.
#[derive(Subcommand)]
pub(crate) enum StoreCommand {
    Check(CheckArguments),
    Migrate(MigrateArguments),
}

/// Check whether a store can be used, and say what can lose locks.
///
/// It makes the same checks as `forrst serve --strict`. An embedded store must not be
/// in use, and its folder is created. Nothing is changed in a Postgres.
#[derive(Args)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  forrst store check --store postgres://forrst@db.internal/locks?sslmode=require
  FORRST_STORE=redis://10.0.0.5:6379 forrst store check --json

Exit codes: 0 it is fit for locks, 1 it can lose locks or cannot be used, 2
wrong usage, 69 it cannot be reached.
"
)]
pub(crate) struct CheckArguments {
    #[command(flatten)]
    store: StoreOptions,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Create or upgrade the tables of a Postgres store.
///
/// A server does that itself when it starts, if its role may create tables. If it may
/// not, run this with a role that may, and grant the server what docs/postgres.md says.
#[derive(Args)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  forrst store migrate --store postgres://admin@db.internal/locks?sslmode=require

Exit codes: 0 the tables are there, 1 that failed, 2 wrong usage, 69 the server
cannot be reached.
"
)]
pub(crate) struct MigrateArguments {
    #[command(flatten)]
    store: StoreOptions,
}

#[derive(Args)]
struct StoreOptions {
    /// The store, as for `forrst serve`; the environment does not show up in `ps`
    #[arg(long, env = "FORRST_STORE", value_name = "URL", hide_env_values = true)]
    store: String,

    /// The schema of the tables in Postgres
    #[arg(
        long,
        env = "FORRST_POSTGRES_SCHEMA",
        value_name = "NAME",
        default_value = "forrst"
    )]
    postgres_schema: String,

    /// The certificates of the authority of Postgres, in PEM [default: those of the system]
    #[arg(long, env = "FORRST_POSTGRES_CA", value_name = "FILE")]
    postgres_ca: Option<PathBuf>,

    /// The prefix of all keys in Redis
    #[arg(
        long,
        env = "FORRST_REDIS_PREFIX",
        value_name = "TEXT",
        default_value = "forrst"
    )]
    redis_prefix: String,

    /// How many replicas of Redis have to have a lock before it counts as acquired
    #[arg(
        long,
        env = "FORRST_REDIS_WAIT",
        value_name = "COUNT",
        default_value_t = 0
    )]
    redis_wait: u32,

    /// The certificates of the authority of Redis, in PEM [default: those of the system]
    #[arg(long, env = "FORRST_REDIS_CA", value_name = "FILE")]
    redis_ca: Option<PathBuf>,

    /// How long the store may take to answer [default: 2s]
    #[arg(long, env = "FORRST_STORE_TIMEOUT", value_name = "DURATION", value_parser = time::parse)]
    store_timeout: Option<Duration>,
}

impl StoreOptions {
    fn to_open(&self) -> OpenOptions {
        let mut options = OpenOptions::default();
        options.store_timeout = self.store_timeout.unwrap_or(STORE_TIMEOUT);
        options.postgres.schema.clone_from(&self.postgres_schema);
        options.postgres.ca.clone_from(&self.postgres_ca);
        options.redis.prefix.clone_from(&self.redis_prefix);
        options.redis.wait = self.redis_wait;
        options.redis.ca.clone_from(&self.redis_ca);
        options
    }

    fn failed(error: &CheckError) -> CommandError {
        let failed = CommandError::local(error.to_string());
        match error {
            CheckError::Open(error) if error.is_worth_waiting() => {
                failed.exiting(exit::UNAVAILABLE)
            }
            CheckError::Open(OpenError::Unknown(_) | OpenError::NoFolder) => {
                failed.exiting(exit::USAGE)
            }
            _ => failed,
        }
    }
}

impl StoreCommand {
    pub(crate) fn wants_json(&self) -> bool {
        match self {
            Self::Check(arguments) => arguments.json,
            Self::Migrate(_) => false,
        }
    }

    pub(crate) async fn run(self) -> Result<u8, CommandError> {
        match self {
            Self::Check(arguments) => arguments.run().await,
            Self::Migrate(arguments) => arguments.run().await,
        }
    }
}

impl CheckArguments {
    async fn run(self) -> Result<u8, CommandError> {
        let checked = check(&self.store.store, &self.store.to_open()).await;
        let checked = checked.map_err(|error| StoreOptions::failed(&error))?;
        let store = url_without_secrets(&self.store.store);
        let Checked {
            problems, notes, ..
        } = &checked;
        if self.json {
            let is_fit = problems.is_empty();
            print_value(
                &json!({ "store": store, "fit": is_fit, "problems": problems, "notes": notes }),
            )?;
        } else {
            print(&lines(&store, &checked))?;
        }
        Ok(if problems.is_empty() { 0 } else { exit::FAILED })
    }
}

fn lines(store: &str, checked: &Checked) -> String {
    let verdict = match checked.problems.is_empty() {
        true => "is fit for locks",
        false => "can lose locks:",
    };
    let mut lines = vec![format!("{store} {verdict}")];
    let problems = checked.problems.iter();
    lines.extend(problems.map(|problem| format!("  UNSAFE: {problem}")));
    let notes = checked.notes.iter();
    lines.extend(notes.map(|note| format!("  {note}")));
    lines.join("\n")
}

impl MigrateArguments {
    async fn run(self) -> Result<u8, CommandError> {
        let migrated = migrate(&self.store.store, &self.store.to_open()).await;
        migrated.map_err(|error| StoreOptions::failed(&error))?;
        let store = url_without_secrets(&self.store.store);
        let schema = &self.store.postgres_schema;
        print(&format!(
            "{store}: the tables in the schema `{schema}` are there"
        ))?;
        Ok(0)
    }
}
