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

/// Below this, what a process grows by says nothing about one of them.
const MANY: u64 = 10_000;

pub(super) async fn measure(bench: &Bench<'_>) -> Result<Vec<Table>, String> {
    let mut tables = Vec::new();
    for kind in [Kind::Memory, Kind::Embedded, Kind::Redis] {
        let held: &[u64] = match kind {
            Kind::Redis if bench.effort.quick => &[0, 10_000],
            // A million takes Redis a minute.
            Kind::Redis if !bench.effort.full => &[0, 100_000],
            _ if bench.effort.quick => &[0, 100_000],
            _ => &[0, 100_000, 1_000_000],
        };
        let title = format!("Scale: cycles beside held locks, {}", kind.name());
        tables.push(
            kind.table(bench, title, "held", held, Command::Hold)
                .await?,
        );
    }
    for kind in [Kind::Memory, Kind::Embedded, Kind::Redis] {
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
enum Kind {
    Memory,
    Embedded,
    Redis,
}

/// A server in the state that a command has brought about.
struct Filled {
    count: u64,
    served: Arc<Served>,
    /// What the process that keeps the locks has grown by, for each of them.
    bytes_each: Option<f64>,
    /// How long a page of the list takes.
    page_micros: Option<f64>,
    _redis: Option<Redis>,
}

impl Kind {
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
            served.ask(command(count))?;
        }
        let grown = resident_bytes(pid)?.saturating_sub(before);
        let is_many = count >= MANY;
        let page_micros = is_many.then(|| served.ask(Command::List)).transpose()?;
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
                outcome.spread_of(|run| run.cpu_micros.server),
                Spread::of(filled.bytes_each),
                Spread::of(filled.page_micros),
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
            Column::new("list µs", Unit::Micros),
        ],
        rows,
        note: "Bytes are those that the process with the locks grew by: Redis itself, or our server. `list` is a page of a hundred locks.",
    }
}
