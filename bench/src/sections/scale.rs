//! Whether a lock costs more where many others are held, or many callers wait.

use std::sync::Arc;

use super::variants::Variant;
use super::{Bench, CALLERS, Redis, forrst};
use crate::load::Pace;
use crate::process::resident_bytes;
use crate::report::{Column, Row, Spread, Table, Unit};
use crate::serve::{Command, Served, Store};
use crate::subject::{Subject, Transport};
use crate::wire::{SERIAL, locked_echo};

const EMBEDDED: Store = Store::Embedded {
    waits_for_disk: true,
};

pub(super) async fn measure(bench: &Bench<'_>) -> Result<Vec<Table>, String> {
    let redis = Redis::start()?;
    let mut tables = Vec::new();
    let held: &[u64] = if bench.effort.quick {
        &[0, 100_000]
    } else {
        &[0, 100_000, 1_000_000]
    };
    for (name, store) in [("memory", Store::Memory), ("embedded, full", EMBEDDED)] {
        tables.push(beside_held(bench, name, &store, None, held).await?);
    }
    // A million takes Redis a minute.
    let held = if bench.effort.full { held } else { &held[..2] };
    // Not quick at all: each lock is a script.
    let held = if bench.effort.quick {
        &[0, 10_000]
    } else {
        held
    };
    tables.push(beside_held(bench, "Redis", &redis.store(), Some(&redis), held).await?);
    for (name, store) in [
        ("memory", Store::Memory),
        ("embedded, full", EMBEDDED),
        ("Redis", redis.store()),
    ] {
        tables.push(beside_waiters(bench, name, &store).await?);
    }
    Ok(tables)
}

/// Servers in the state that a command brings about, and what memory it took for each.
fn servers(
    store: &Store,
    store_pid: Option<u32>,
    counts: &[u64],
    command: fn(u64) -> Command,
) -> Result<Vec<(u64, Arc<Served>, Option<f64>)>, String> {
    let mut servers = Vec::new();
    for count in counts {
        let served = forrst(store)?;
        let pid = store_pid.unwrap_or_else(|| served.pid());
        let before = resident_bytes(pid)?;
        if *count > 0 {
            served.ask(command(*count))?;
        }
        let grown = resident_bytes(pid)?.saturating_sub(before);
        let each = (*count > 0).then(|| grown as f64 / *count as f64);
        servers.push((*count, served, each));
    }
    Ok(servers)
}

async fn beside_held(
    bench: &Bench<'_>,
    name: &str,
    store: &Store,
    redis: Option<&Redis>,
    counts: &[u64],
) -> Result<Table, String> {
    let servers = servers(store, redis.map(|redis| redis.pid), counts, Command::Hold)?;
    let mut table = cycles(bench, &servers, "held").await;
    table.title = format!("Scale: cycles beside held locks, {name}; callers: {CALLERS}");
    Ok(table)
}

async fn beside_waiters(bench: &Bench<'_>, name: &str, store: &Store) -> Result<Table, String> {
    let counts = [0, 1, 100, 10_000];
    let redis = match store {
        // The queue of one run is not to be seen by the next.
        Store::Redis { .. } => Some(Redis::start()?),
        _ => None,
    };
    let store = redis.as_ref().map_or(store.clone(), Redis::store);
    let mut all = Vec::new();
    for count in counts {
        if let Some(redis) = &redis {
            redis.server.cli(&["FLUSHALL"]);
        }
        all.extend(servers(&store, None, &[count], Command::Wait)?);
    }
    let mut table = cycles(bench, &all, "waiting").await;
    table.title = format!("Scale: cycles beside waiters for one lock, {name}; callers: {CALLERS}");
    Ok(table)
}

async fn cycles(
    bench: &Bench<'_>,
    servers: &[(u64, Arc<Served>, Option<f64>)],
    rows_are: &'static str,
) -> Table {
    let duration = bench.effort.duration();
    let variants = servers.iter().map(|(count, served, _)| {
        let subject = Subject::new(served, Transport::Http1, locked_echo(SERIAL, None));
        Variant::new(count.to_string(), move || {
            let subject = subject.clone();
            async move { subject.drive(CALLERS, Pace::Closed, duration).await }
        })
    });
    let outcomes = bench.in_turns(variants.collect()).await;
    let rows = outcomes
        .iter()
        .zip(servers)
        .map(|(outcome, (_, _, bytes))| {
            outcome.row(|| {
                vec![
                    outcome.spread(|run| run.per_second),
                    outcome.ratio(&outcomes[0], |run| run.per_second),
                    outcome.spread(|run| run.quantile_micros(0.99)),
                    outcome.spread_of(|run| run.cpu_micros.server),
                    Spread::of(*bytes),
                ]
            })
        });
    let rows: Vec<(String, Row)> = rows.collect();
    Table {
        section: "scale",
        title: String::new(),
        rows_are,
        columns: vec![
            Column::new("cycles/s", Unit::PerSecond),
            Column::with_spread("of the first", Unit::Ratio),
            Column::new("p99 µs", Unit::Micros),
            Column::new("server CPU µs", Unit::Micros),
            Column::new("bytes each", Unit::Bytes),
        ],
        rows,
        note: "",
    }
}
