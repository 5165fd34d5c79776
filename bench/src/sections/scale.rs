//! Whether a lock costs more when many others are held, or many callers wait.

use std::sync::Arc;

use super::variants::Variant;
use super::{Bench, CALLERS, Redis, forrst};
use crate::load::Pace;
use crate::process::resident_bytes;
use crate::report::{Column, Row, Spread, Table, Unit};
use crate::serve::{Command, ServerProcess, Store};
use crate::subject::{Subject, Transport};
use crate::wire::{SERIAL, locked_echo};

/// With fewer locks or waiters, the growth of the process says nothing about the size of each.
const MANY: u64 = 10_000;

pub(super) async fn measure(bench: &Bench<'_>) -> Result<Vec<Table>, String> {
    let mut tables = Vec::new();
    for kind in [StoreKind::Memory, StoreKind::Embedded, StoreKind::Redis] {
        let held: &[u64] = match kind {
            StoreKind::Redis if bench.effort.quick => &[0, 10_000],
            // A million takes Redis a minute.
            StoreKind::Redis if !bench.effort.full => &[0, 100_000],
            _ if bench.effort.quick => &[0, 100_000],
            _ => &[0, 100_000, 1_000_000],
        };
        let title = format!("Scale: cycles beside held locks, {}", kind.name());
        tables.push(
            kind.table(bench, title, "held", held, Command::Hold)
                .await?,
        );
    }
    for kind in [StoreKind::Memory, StoreKind::Embedded, StoreKind::Redis] {
        let title = format!("Scale: cycles beside waiters for one lock, {}", kind.name());
        let waiting = &[0, 1, 100, 10_000];
        tables.push(
            kind.table(bench, title, "waiting", waiting, Command::Wait)
                .await?,
        );
    }
    Ok(tables)
}

#[derive(Clone, Copy)]
enum StoreKind {
    Memory,
    Embedded,
    Redis,
}

/// A server with held locks or waiters.
struct Filled {
    count: u64,
    served: Arc<ServerProcess>,
    /// The growth of the process that keeps the locks, per lock or waiter.
    bytes_each: Option<f64>,
    /// How long a page of the list takes.
    page_micros: Option<f64>,
    _redis: Option<Redis>,
}

impl StoreKind {
    fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Embedded => "embedded, full",
            Self::Redis => "Redis",
        }
    }

    async fn table(
        self,
        bench: &Bench<'_>,
        title: String,
        rows_are: &'static str,
        counts: &[u64],
        command: fn(u64) -> Command,
    ) -> Result<Table, String> {
        let servers = counts.iter().map(|count| self.filled(*count, command));
        let servers: Vec<Filled> = servers.collect::<Result<_, String>>()?;
        let mut table = cycles(bench, &servers, rows_are).await;
        table.title = format!("{title}; callers: {CALLERS}");
        Ok(table)
    }

    fn filled(self, count: u64, command: fn(u64) -> Command) -> Result<Filled, String> {
        let redis = match self {
            Self::Redis => Some(Redis::start()?),
            Self::Memory | Self::Embedded => None,
        };
        let store = match &redis {
            Some(redis) => redis.store(),
            None if matches!(self, Self::Memory) => Store::Memory,
            None => Store::Embedded {
                waits_for_disk: true,
            },
        };
        let served = forrst(&store)?;
        let pid = redis.as_ref().map_or(served.pid(), |redis| redis.pid);
        let before = resident_bytes(pid)?;
        if count > 0 {
            served.run(command(count))?;
        }
        let grown = resident_bytes(pid)?.saturating_sub(before);
        let is_many = count >= MANY;
        let page_micros = is_many.then(|| served.run(Command::List)).transpose()?;
        Ok(Filled {
            count,
            served,
            bytes_each: is_many.then(|| grown as f64 / count as f64),
            page_micros: page_micros.map(|micros| micros as f64),
            _redis: redis,
        })
    }
}

async fn cycles(bench: &Bench<'_>, servers: &[Filled], rows_are: &'static str) -> Table {
    let duration = bench.effort.duration();
    let variants = servers.iter().map(|Filled { count, served, .. }| {
        let subject = Subject::new(served, Transport::Http1, locked_echo(SERIAL, None));
        Variant::drive(count.to_string(), subject, CALLERS, Pace::Closed, duration)
    });
    let outcomes = bench.in_turns(variants.collect()).await;
    let rows = outcomes.iter().zip(servers).map(|(outcome, filled)| {
        outcome.row(|| {
            vec![
                outcome.spread(|run| run.per_second),
                outcome.ratio(&outcomes[0], |run| run.per_second),
                outcome.spread(|run| run.quantile_micros(0.99)),
                outcome.optional_spread(|run| run.cpu_micros.server),
                Spread::from_values(filled.bytes_each),
                Spread::from_values(filled.page_micros),
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
            Column::with_spread("vs first row", Unit::Ratio),
            Column::new("p99 µs", Unit::Micros),
            Column::new("server CPU µs", Unit::Micros),
            Column::new("bytes each", Unit::Bytes),
            Column::new("list µs", Unit::Micros),
        ],
        rows,
        note: "Bytes are the growth of the process that keeps the locks: Redis, or our server. `list` is a page of a hundred locks.",
    }
}
