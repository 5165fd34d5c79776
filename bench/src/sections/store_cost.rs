//! The CPU time of the Redis process: it runs commands on one thread, which all nodes share.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forrst_lock::LockStore;
use forrst_stores::{OpenOptions, open};

use super::variants::Variant;
use super::{Bench, Redis, forrst};
use crate::load::{Measured, Pace, Watched, repeat_at};
use crate::peers::{failed, fred_scripts};
use crate::process::cpu_time;
use crate::report::{Column, Row, Spread, Table, Unit};
use crate::serve::Command;
use crate::subject::{Subject, Transport};
use crate::wire::{SERIAL, locked_echo};
use crate::workload::cycle;

pub(super) async fn measure(bench: &Bench<'_>) -> Result<Vec<Table>, String> {
    Ok(vec![each_cycle(bench).await?, idle(bench).await?])
}

/// CPU time of Redis per acquire and release.
async fn each_cycle(bench: &Bench<'_>) -> Result<Table, String> {
    let redis = Redis::start()?;
    let (url, pid) = (&redis.url(), redis.pid);
    let duration = bench.effort.duration();
    let store = open(url, &OpenOptions::default()).await.map_err(failed)?;
    let served = forrst(&redis.store())?;
    let mut rows = Vec::new();
    for callers in [1, 16, 64] {
        let store = &store;
        let mut subject = Subject::new(&served, Transport::Http1, locked_echo(SERIAL, None));
        subject.store = Some(pid);
        let variants = vec![
            Variant::new(
                format!("bare fence scripts, {callers}"),
                move || async move {
                    let watched = Watched::store(pid);
                    fred_scripts::with_fence(url, Pace::Closed, callers, duration, watched).await
                },
            ),
            Variant::new(format!("our store, {callers}"), move || {
                cycles(store.clone(), Pace::Closed, callers, duration, pid)
            }),
            Variant::drive(
                format!("our server, {callers}"),
                subject,
                callers,
                Pace::Closed,
                duration,
            ),
        ];
        let outcomes = bench.in_turns(variants).await;
        rows.extend(outcomes.iter().map(|outcome| {
            outcome.row(|| {
                vec![
                    outcome.optional_spread(|run| run.cpu_micros.store),
                    outcome.ratio(&outcomes[0], |run| run.cpu_micros.store.unwrap_or(f64::NAN)),
                    outcome.spread(|run| run.per_second),
                ]
            })
        }));
    }
    Ok(Table {
        section: "store-cost",
        title: "Store cost: CPU of the Redis process for each acquire and release".to_owned(),
        rows_are: "lock, callers",
        columns: vec![
            Column::new("Redis CPU µs", Unit::Micros),
            Column::with_spread("vs bare scripts", Unit::Ratio),
            Column::new("cycles/s", Unit::PerSecond),
        ],
        rows,
        note: "The fewer requests arrive together, the larger the share of socket I/O compared with scripts.",
    })
}

/// Cycles of new keys on our store, without a server.
pub(super) async fn cycles(
    store: Arc<dyn LockStore>,
    pace: Pace,
    callers: usize,
    duration: Duration,
    pid: u32,
) -> Result<Measured, String> {
    let watched = Watched::store(pid);
    repeat_at(pace, callers, duration, watched, move |_, serial| {
        let store = store.clone();
        async move { cycle(&store, &format!("direct:{serial}")).await }
    })
    .await
}

/// CPU time of Redis and of a node while locks are contended and no client sends a request.
async fn idle(bench: &Bench<'_>) -> Result<Table, String> {
    let counts: &[u64] = if bench.effort.quick {
        &[0, 1_000]
    } else {
        &[0, 1_000, 100_000]
    };
    let time = bench.effort.duration() * if bench.effort.quick { 5 } else { 4 };
    let mut rows = Vec::new();
    for count in counts {
        let redis = Redis::start()?;
        let served = forrst(&redis.store())?;
        let mut label = count.to_string();
        let row = match served.run(Command::Contend(*count)) {
            Ok(reached) => {
                if reached < *count {
                    label = format!("{reached}, of {count}: Redis did not keep up");
                }
                let percents = percent_of_core([redis.pid, served.pid()], time).await?;
                let cells = percents.map(|percent| Spread::from_values([percent]));
                Row::Numbers(cells.to_vec())
            }
            Err(reason) => Row::Reason(reason),
        };
        rows.push((label, row));
    }
    Ok(Table {
        section: "store-cost",
        title: "Store cost: CPU while locks are contended, without requests".to_owned(),
        rows_are: "contended locks",
        columns: vec![
            Column::new("Redis, % of a core", Unit::Percent),
            Column::new("node, % of a core", Unit::Percent),
        ],
        rows,
        note: "One waiter for each lock, all on one node.",
    })
}

/// The CPU usage of processes over some time.
pub(super) async fn percent_of_core<const N: usize>(
    pids: [u32; N],
    time: Duration,
) -> Result<[f64; N], String> {
    let (before, since) = (pids.map(cpu_time), Instant::now());
    tokio::time::sleep(time).await;
    let (after, elapsed) = (pids.map(cpu_time), since.elapsed());
    let mut percents = [0.0; N];
    for ((percent, before), after) in percents.iter_mut().zip(before).zip(after) {
        let spent = after?.saturating_sub(before?);
        *percent = 100.0 * spent.as_secs_f64() / elapsed.as_secs_f64();
    }
    Ok(percents)
}
