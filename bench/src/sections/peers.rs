//! Locks by other systems, on the same machine and the same stores.

use std::sync::Arc;

use super::variants::{Outcome, Variant};
use super::{Bench, CALLERS, Redis, forrst};
use crate::load::{Pace, Watched};
use crate::peers::etcd::Etcd;
use crate::peers::postgres::Postgres;
use crate::peers::{fred_scripts, redis_rs, rslock};
use crate::report::{Column, Table, Unit};
use crate::serve::{ServerProcess, Store};
use crate::subject::{Subject, Transport};
use crate::wire::{SERIAL, locked_echo};

pub(super) async fn measure(bench: &Bench<'_>) -> Result<Vec<Table>, String> {
    let redis = Redis::start()?;
    let postgres = Postgres::start().await;
    let etcd = Etcd::start().await;
    Ok(vec![
        cycles(bench, &redis, &postgres, &etcd).await?,
        hand_overs(bench, &redis, &postgres, &etcd).await?,
    ])
}

async fn cycles(
    bench: &Bench<'_>,
    redis: &Redis,
    postgres: &Result<Postgres, String>,
    etcd: &Result<Etcd, String>,
) -> Result<Table, String> {
    let duration = bench.effort.duration();
    let url = &redis.url();
    let watched = Watched::store(redis.pid);
    let fenced = locked_echo(SERIAL, None);
    let stores = [
        ("ours: Redis", redis.store()),
        (
            "ours: embedded, full",
            Store::Embedded {
                waits_for_disk: true,
            },
        ),
        ("ours: memory", Store::Memory),
    ];
    let mut variants = vec![
        Variant::new("Redis: redis-rs, with fence", move || {
            redis_rs::with_fence(url, CALLERS, duration, watched)
        }),
        Variant::new("Redis: redis-rs, no fence", move || {
            redis_rs::without_fence(url, CALLERS, duration, watched)
        }),
        Variant::new("Redis: fred, with fence", move || {
            fred_scripts::with_fence(url, Pace::Closed, CALLERS, duration, watched)
        }),
        Variant::new("Redis: rslock", move || {
            rslock::cycles(url, CALLERS, duration, watched)
        }),
    ];
    match postgres {
        Ok(postgres) => {
            variants.push(Variant::new("PostgreSQL: advisory lock", move || {
                postgres.advisory(false, CALLERS, duration)
            }));
            variants.push(Variant::new("PostgreSQL: row table", move || {
                postgres.rows(CALLERS, duration)
            }));
        }
        Err(reason) => variants.push(Variant::missing("PostgreSQL", reason)),
    }
    match etcd {
        Ok(etcd) => variants.push(Variant::new("etcd: lock", move || {
            etcd.cycles(CALLERS, duration)
        })),
        Err(reason) => variants.push(Variant::missing("etcd: lock", reason)),
    }
    for (label, store) in stores {
        let served = forrst(&store)?;
        for transport in [Transport::Http1, Transport::Unix] {
            let mut subject = Subject::new(&served, transport, fenced.clone());
            if matches!(store, Store::Redis { .. }) {
                subject.store = Some(redis.pid);
            }
            let label = format!("{label}, {}", transport.name());
            let pace = Pace::Closed;
            variants.push(Variant::drive(label, subject, CALLERS, pace, duration));
        }
    }
    let outcomes = bench.in_turns(variants).await;
    Ok(table(
        format!("Peers: acquire and release of a new key; callers: {CALLERS}"),
        "cycles/s",
        &outcomes,
        "Peers are called directly from the load generator; ours includes a request to a server, and a function that runs under the lock.",
    ))
}

async fn hand_overs(
    bench: &Bench<'_>,
    redis: &Redis,
    postgres: &Result<Postgres, String>,
    etcd: &Result<Etcd, String>,
) -> Result<Table, String> {
    let duration = bench.effort.duration();
    let url = &redis.url();
    let watched = Watched::store(redis.pid);
    let mut variants = vec![
        Variant::new("Redis: SET NX, and BLPOP of a signal", move || {
            redis_rs::hand_overs(url, CALLERS, duration, watched)
        }),
        Variant::new("Redis: rslock, polling", move || {
            rslock::hand_overs(url, CALLERS, duration, watched)
        }),
    ];
    match postgres {
        Ok(postgres) => variants.push(Variant::new("PostgreSQL: advisory lock", move || {
            postgres.advisory(true, CALLERS, duration)
        })),
        Err(reason) => variants.push(Variant::missing("PostgreSQL: advisory lock", reason)),
    }
    match etcd {
        Ok(etcd) => variants.push(Variant::new("etcd: lock", move || {
            etcd.hand_overs(CALLERS, duration)
        })),
        Err(reason) => variants.push(Variant::missing("etcd: lock", reason)),
    }
    let stores = [
        ("ours: Redis, one node", redis.store()),
        (
            "ours: embedded, full",
            Store::Embedded {
                waits_for_disk: true,
            },
        ),
        ("ours: memory", Store::Memory),
    ];
    for (label, store) in stores {
        let served = forrst(&store)?;
        let mut subject = waiting(&served);
        if matches!(store, Store::Redis { .. }) {
            subject.store = Some(redis.pid);
        }
        variants.push(Variant::drive(
            label,
            subject,
            CALLERS,
            Pace::Closed,
            duration,
        ));
    }
    variants.push(two_nodes("ours: Redis, two nodes", bench, redis)?);
    let outcomes = bench.in_turns(variants).await;
    Ok(table(
        format!("Peers: hand-overs of one lock between {CALLERS} callers"),
        "hand-overs/s",
        &outcomes,
        "Ours are fair (first come, first served) and fenced, over a unix socket; BLPOP and rslock are neither.",
    ))
}

/// A request that waits for one lock shared by all callers.
pub(super) fn waiting(served: &Arc<ServerProcess>) -> Subject {
    Subject::new(served, Transport::Unix, locked_echo("hot", Some(25)))
}

/// Two servers with half of the callers each, which all compete for one lock.
pub(super) fn two_nodes<'a>(
    label: &str,
    bench: &Bench<'_>,
    redis: &Redis,
) -> Result<Variant<'a>, String> {
    let duration = bench.effort.duration();
    let nodes = [forrst(&redis.store())?, forrst(&redis.store())?];
    let pid = redis.pid;
    let subjects = nodes.map(|node| Subject {
        store: Some(pid),
        ..waiting(&node)
    });
    Ok(Variant::new(label, move || {
        let [first, second] = subjects.clone();
        async move {
            let half = CALLERS / 2;
            let (first, second) = tokio::join!(
                first.drive(half, Pace::Closed, duration),
                second.drive(half, Pace::Closed, duration)
            );
            Ok(first?.together(&second?))
        }
    }))
}

fn table(title: String, what: &'static str, outcomes: &[Outcome], note: &'static str) -> Table {
    let rows = outcomes.iter().map(|outcome| {
        outcome.row(|| {
            vec![
                outcome.spread(|run| run.per_second),
                outcome.ratio(&outcomes[0], |run| run.per_second),
                outcome.spread(|run| run.quantile_micros(0.5)),
                outcome.spread(|run| run.quantile_micros(0.99)),
                outcome.optional_spread(|run| run.cpu_micros.store),
            ]
        })
    });
    Table {
        section: "peers",
        title,
        rows_are: "lock",
        columns: vec![
            Column::new(what, Unit::PerSecond),
            Column::with_spread("vs first row", Unit::Ratio),
            Column::new("p50 µs", Unit::Micros),
            Column::new("p99 µs", Unit::Micros),
            Column::new("Redis CPU µs", Unit::Micros),
        ],
        rows: rows.collect(),
        note,
    }
}
