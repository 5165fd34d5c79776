//! `forrst bench`: puts load on a server, measures it, and checks that no two holders overlap and that fences grow.

mod checker;
mod progress;
mod summary;
mod worker;

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use forrst_client::{Client, Retry};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::connection::{Connection, settle};
use crate::error::CommandError;
use crate::exit;
use crate::output::{print, print_value};
use crate::time;
use checker::Checker;
use progress::Progress;
use summary::Summary;
use worker::{Load, Tally, work};

/// Put load on a server, measure it, and check that no two holders overlap.
///
/// Every connection takes a lock, holds it, releases it, and begins again: as soon
/// as it can, or with --rate at fixed times, however slow the server is. The keys
/// are `bench:`, a random number of this run, and a number.
///
/// The latency of an acquisition counts from the time at which it was due until it
/// was granted or timed out. Waiting is the part of it until the previous holder
/// began to release the lock; service is the rest. Rates count only what was
/// granted before the end.
///
/// A violation is a lock that was held twice at once, between the answer that granted
/// it and the request that released it, or a fence that did not grow.
#[derive(Args)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  forrst bench
  forrst bench --connections 64 --duration 30s --keys 10000
  forrst bench --rate 2000                     latency at a rate that users would have
  forrst bench --keys 1 --hold 5ms --json      how fast a lock is handed over

Exit codes: 0 done, 1 a violation was found, or nothing was ever granted, 2
wrong usage, 69 no server can be reached, 77 not allowed."
)]
pub(crate) struct BenchArguments {
    /// The number of connections
    #[arg(long, value_name = "COUNT", default_value = "16", value_parser = connections)]
    connections: NonZeroUsize,

    /// For how long
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = time::parse)]
    duration: Duration,

    /// How many locks to take each second, over all connections [default: as many as possible]
    #[arg(long, value_name = "COUNT", value_parser = rate)]
    rate: Option<f64>,

    /// The number of keys
    #[arg(long, value_name = "COUNT", default_value = "1000", value_parser = keys)]
    keys: NonZeroUsize,

    /// The share of acquisitions that goes to the first of them, from 0 to 1
    #[arg(long, value_name = "SHARE", default_value = "0.1", value_parser = share)]
    hot: f64,

    /// How long a lock is held before it is released
    #[arg(long, value_name = "DURATION", default_value = "0", value_parser = time::parse_or_zero)]
    hold: Duration,

    /// The ttl of every lock
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = time::parse)]
    ttl: Duration,

    /// How long to wait for a lock; has to be shorter than the ttl
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = time::parse)]
    block: Duration,

    #[command(flatten)]
    connection: Connection,

    /// Print the summary as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

fn connections(text: &str) -> Result<NonZeroUsize, String> {
    count(text, 10_000)
}

/// Limited, because each key is kept in memory.
fn keys(text: &str) -> Result<NonZeroUsize, String> {
    count(text, 1_000_000)
}

fn count(text: &str, most: usize) -> Result<NonZeroUsize, String> {
    let count = text.parse().ok();
    let count = count.filter(|count: &NonZeroUsize| count.get() <= most);
    count.ok_or_else(|| format!("expected a number from 1 to {most}"))
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok();
    let rate = rate.filter(|rate| (0.001..=1_000_000.0).contains(rate));
    rate.ok_or_else(|| "expected a number from 0.001 to 1000000".to_owned())
}

fn share(text: &str) -> Result<f64, String> {
    let share = text
        .parse()
        .ok()
        .filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "expected a number from 0 to 1".to_owned())
}

pub(crate) async fn run(arguments: BenchArguments) -> Result<u8, CommandError> {
    if arguments.block >= arguments.ttl {
        let message = "--block must be shorter than --ttl";
        return Err(CommandError::usage(message)
            .hint("a lock that may have expired before its grant arrived proves nothing"));
    }
    let clients = arguments.clients().await?;
    let started_at = Instant::now();
    let ends_at = started_at + arguments.duration;
    let load = Arc::new(Load {
        run: format!("{:08x}", fastrand::u32(..)),
        hot: arguments.hot,
        hold: arguments.hold,
        ttl: arguments.ttl,
        block: arguments.block,
        interval: arguments.interval(),
        starts_at: started_at,
        ends_at,
        checker: Checker::new(arguments.keys.get()),
        is_stopped: watch::Sender::new(false),
    });
    let progress = Progress::start(arguments.duration, arguments.json, load.clone());
    let mut workers = JoinSet::new();
    let phases = (0_u32..).map(|number| f64::from(number) / arguments.connection_count());
    for (client, phase) in clients.iter().zip(phases) {
        workers.spawn(work(client.clone(), load.clone(), phase));
    }
    let mut end = signal(SignalKind::terminate())
        .map_err(|error| CommandError::local(format!("cannot handle signals: {error}")))?;
    let mut tally = Tally::new();
    let mut ended_at = ends_at;
    let mut end_now = || {
        load.stop();
        ended_at = ended_at.min(Instant::now());
    };
    loop {
        tokio::select! {
            joined = workers.join_next() => match joined {
                Some(Ok(one)) => tally.add(&one),
                Some(Err(error)) => return Err(CommandError::local(format!("a worker failed: {error}"))),
                None => break,
            },
            // What was measured so far is still reported.
            Ok(()) = tokio::signal::ctrl_c() => end_now(),
            Some(()) = end.recv() => end_now(),
        }
    }
    // Calls that were under way at the end were finished after it.
    let measured = ended_at - started_at;
    let settling: JoinSet<bool> = clients
        .into_iter()
        .map(|client| async move { settle(&client).await })
        .collect();
    settling.join_all().await;
    progress.finish();
    let summary = Summary::new(&arguments, measured, &tally, &load.checker);
    if arguments.json {
        print_value(&summary)?;
    } else {
        print(&summary.to_text())?;
    }
    let is_fine = summary.violations.count == 0 && summary.granted > 0;
    Ok(if is_fine { 0 } else { exit::FAILED })
}

impl BenchArguments {
    fn connection_count(&self) -> f64 {
        u32::try_from(self.connections.get()).map_or(f64::MAX, f64::from)
    }

    /// How often each connection takes a lock.
    fn interval(&self) -> Option<Duration> {
        let rate = self.rate?;
        Some(Duration::from_secs_f64(self.connection_count() / rate))
    }

    /// One for each connection. The first one checks that the server answers.
    async fn clients(&self) -> Result<Vec<Client>, CommandError> {
        let mut clients = Vec::new();
        for _ in 0..self.connections.get() {
            // A retried request would be measured as a slow one.
            let client = self.connection.builder().retry(Retry::never()).build();
            clients.push(client.map_err(|error| self.connection.failed(error))?);
        }
        if let Some(first) = clients.first() {
            first
                .ping()
                .await
                .map_err(|error| self.connection.failed(error))?;
        }
        Ok(clients)
    }
}
