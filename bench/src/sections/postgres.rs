//! Whether our Postgres store meets its goals: beside a bare client of the same Postgres, with a row for each lock.

use std::sync::Arc;
use std::time::Duration;

use forrst_lock::LockStore;
use forrst_stores::{OpenOptions, open};

use super::peers::waiting;
use super::redis::row;
use super::store_cost::cycles;
use super::variants::{Outcome, Variant};
use super::{Bench, CALLERS, forrst};
use crate::load::{Measured, Pace};
use crate::peers::failed;
use crate::peers::postgres::Postgres;
use crate::report::{Goal, Limit, Row, Spread, Table, Unit};
use crate::serve::Store;
use crate::subject::{Subject, Transport};
use crate::wire::{SERIAL, locked_echo};

/// The number of cycles for which Postgres counts transactions.
const COUNTED: u64 = 8_192;

pub(super) async fn measure(bench: &Bench<'_>) -> Result<Vec<Table>, String> {
    let rows = match Postgres::start().await {
        Ok(postgres) => {
            let mut rows = throughput(bench, &postgres).await?;
            rows.push(transactions(bench, &postgres).await?);
            rows
        }
        Err(reason) => vec![("Postgres".to_owned(), Row::Reason(reason))],
    };
    Ok(vec![Table {
        section: "postgres",
        title: format!("Postgres: goals; callers: {CALLERS}"),
        rows_are: "ours, and the reference",
        columns: Goal::COLUMNS.to_vec(),
        rows,
        note: "A cycle acquires and releases a new key. The row table: INSERT … ON CONFLICT and DELETE, with a connection for each caller; it has neither a queue nor a memory of releases. Every commit waits for the disk.",
    }])
}

async fn throughput(bench: &Bench<'_>, postgres: &Postgres) -> Result<Vec<(String, Row)>, String> {
    let duration = bench.effort.duration();
    let store = Store::Postgres {
        url: postgres.url(),
    };
    let [one, other] = [forrst(&store)?, forrst(&store)?];
    let server = Subject::new(&one, Transport::Http1, locked_echo(SERIAL, None));
    let nodes = [waiting(&one), waiting(&other)];
    let closed = Pace::Closed;
    let variants = vec![
        Variant::new("row table", || postgres.rows(CALLERS, duration)),
        Variant::drive("our server", server, CALLERS, closed, duration),
        Variant::new("advisory lock", || {
            postgres.advisory(true, CALLERS, duration)
        }),
        Variant::drive("one node", waiting(&one), CALLERS, closed, duration),
        Variant::new("two nodes", || {
            let [first, second] = nodes.clone();
            async move {
                let half = CALLERS / 2;
                let (first, second) = tokio::join!(
                    first.drive(half, closed, duration),
                    second.drive(half, closed, duration)
                );
                Ok(first?.together(&second?))
            }
        }),
    ];
    let outcomes = bench.in_turns(variants).await;
    let [rows, server, advisory, one, two] = &outcomes[..] else {
        unreachable!("an outcome for each variant");
    };
    let per_second = |run: &Measured| run.per_second;
    let ratio = |label: &str, ours: &Outcome, bare: &Outcome, limit: f64| {
        let goal = Goal {
            measured: ours.ratio(bare, per_second),
            unit: Unit::Ratio,
            limit: Limit::AtLeast(limit),
            ours: ours.spread(per_second),
            reference: bare.spread(per_second),
            unit_of_both: Unit::PerSecond,
        };
        row(label, &[ours, bare], goal)
    };
    let absolute = |label: &str, ours: &Outcome, bare: &Outcome| {
        let goal = Goal {
            measured: ours.spread(per_second),
            unit: Unit::PerSecond,
            limit: Limit::AtLeast(1000.0),
            ours: ours.spread(per_second),
            reference: bare.spread(per_second),
            unit_of_both: Unit::PerSecond,
        };
        row(label, &[ours, bare], goal)
    };
    Ok(vec![
        ratio(
            "cycles/s: our server over HTTP/1.1, row table",
            server,
            rows,
            1.0,
        ),
        absolute(
            "hand-overs/s of one key: one node, advisory lock",
            one,
            advisory,
        ),
        absolute(
            "hand-overs/s of one key: two nodes, advisory lock",
            two,
            advisory,
        ),
    ])
}

/// The transactions that Postgres counts, for each acquire or release.
async fn transactions(bench: &Bench<'_>, postgres: &Postgres) -> Result<(String, Row), String> {
    let counted = match bench.effort.quick {
        true => COUNTED / 8,
        false => COUNTED,
    };
    let store: Arc<dyn LockStore> = open(&postgres.url(), &OpenOptions::default())
        .await
        .map_err(failed)?;
    let before = postgres.transactions().await?;
    let pace = Pace::Count(counted);
    // The process does not matter here.
    let run = cycles(store, pace, CALLERS, Duration::ZERO, std::process::id()).await?;
    let count = postgres.transactions().await? - before;
    // An acquire and a release.
    let operations = 2.0 * run.done as f64;
    let each = Spread::from_values([count / operations]);
    let goal = Goal {
        measured: each,
        unit: Unit::Ratio,
        limit: Limit::AtMost(0.2),
        ours: each,
        reference: Spread::from_values([1.0]),
        unit_of_both: Unit::Ratio,
    };
    let label = "transactions per operation: our store, row table";
    Ok((label.to_owned(), Row::Goal(goal)))
}
