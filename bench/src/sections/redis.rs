//! Whether our Redis store meets its goals: ratios to bare clients of the same Redis in the same run.

use std::sync::Arc;
use std::time::Duration;

use forrst_lock::LockStore;
use forrst_stores::{OpenOptions, open};

use super::command_stats::CommandStats;
use super::peers::{two_nodes, waiting};
use super::store_cost::{cycles, percent_of_core};
use super::variants::{Outcome, Variant};
use super::{Bench, CALLERS, Redis, forrst};
use crate::load::{Measured, Pace, Watched};
use crate::peers::{failed, fred_scripts, redis_rs};
use crate::report::{Column, Goal, Limit, Row, Spread, Table, Unit};
use crate::serve::{Command, ServerKind, ServerProcess};
use crate::subject::{Subject, Transport};
use crate::wire::{SERIAL, echo, locked_echo};

/// The number of cycles for which Redis counts commands.
const COUNTED: u64 = 16_384;

pub(super) async fn measure(bench: &Bench<'_>) -> Result<Vec<Table>, String> {
    let clients = Clients::start().await?;
    let commands = clients.commands(bench).await?;
    let mut rows = clients.cycles(bench).await;
    rows.extend(clients.hand_overs(bench).await?);
    // The last goal starts its own Redis.
    drop(clients);
    rows.push(background(bench).await?);
    let goals = Table {
        section: "redis",
        title: format!("Redis: goals; callers: {CALLERS}"),
        rows_are: "ours, and the reference",
        columns: Goal::COLUMNS.to_vec(),
        rows,
        note: "A cycle acquires and releases a new key. Bare scripts: SET NX PX and INCR, then compare and delete, through fred. BLPOP and LPUSH pass one token in turn; with SET NX and BLPOP, a caller that releases the lock may acquire it again before a waiting one.",
    };
    Ok(vec![goals, commands])
}

/// Clients of one Redis.
struct Clients {
    hyper: Subject,
    server: Subject,
    store: Arc<dyn LockStore>,
    redis: Redis,
}

impl Clients {
    async fn start() -> Result<Self, String> {
        let redis = Redis::start()?;
        let hyper = Arc::new(ServerProcess::floor(ServerKind::Hyper)?);
        let served = forrst(&redis.store())?;
        let store = open(&redis.url(), &OpenOptions::default()).await;
        Ok(Self {
            hyper: Subject::new(&hyper, Transport::Http1, echo()),
            server: Subject {
                store: Some(redis.pid),
                ..Subject::new(&served, Transport::Http1, locked_echo(SERIAL, None))
            },
            store: store.map_err(failed)?,
            redis,
        })
    }

    async fn bare_scripts(&self, pace: Pace, duration: Duration) -> Result<Measured, String> {
        let (url, watched) = (self.redis.url(), Watched::store(self.redis.pid));
        fred_scripts::with_fence(&url, pace, CALLERS, duration, watched).await
    }

    async fn our_store(&self, pace: Pace, duration: Duration) -> Result<Measured, String> {
        cycles(self.store.clone(), pace, CALLERS, duration, self.redis.pid).await
    }

    /// Cost and throughput of cycles, and their latency at half of that throughput.
    async fn cycles(&self, bench: &Bench<'_>) -> Vec<(String, Row)> {
        let duration = bench.effort.duration();
        let closed = Pace::Closed;
        let variants = vec![
            Variant::drive("hyper", self.hyper.clone(), CALLERS, closed, duration),
            Variant::new("bare scripts", || self.bare_scripts(closed, duration)),
            Variant::new("our store", || self.our_store(closed, duration)),
            Variant::drive("our server", self.server.clone(), CALLERS, closed, duration),
        ];
        let outcomes = bench.in_turns(variants).await;
        let [hyper, bare, store, server] = &outcomes[..] else {
            unreachable!("an outcome for each variant");
        };
        let both_in_turn = |hyper: &Measured, bare: &Measured| {
            1.0 / (1.0 / hyper.per_second + 1.0 / bare.per_second)
        };
        let throughput = Outcome::each_turn([server, hyper, bare], |[server, hyper, bare]| {
            server.per_second / both_in_turn(hyper, bare)
        });
        let redis_cpu = |run: &Measured| run.cpu_micros.store.unwrap_or(f64::NAN);
        let per_second = |run: &Measured| run.per_second;
        let half = server.spread(per_second).map(|most| most.median / 2.0);
        let mut rows = vec![
            row(
                "Redis CPU µs a cycle: our store, bare scripts",
                &[store, bare],
                Goal {
                    measured: store.ratio(bare, redis_cpu),
                    unit: Unit::Ratio,
                    limit: Limit::AtMost(4.0),
                    ours: store.spread(redis_cpu),
                    reference: bare.spread(redis_cpu),
                    unit_of_both: Unit::Micros,
                },
            ),
            row(
                "cycles/s: our server over HTTP/1.1, 1/(1/hyper + 1/bare scripts)",
                &[server, hyper, bare],
                Goal {
                    measured: throughput,
                    unit: Unit::Ratio,
                    limit: Limit::AtLeast(0.4),
                    ours: server.spread(per_second),
                    reference: Outcome::each_turn([hyper, bare], |[hyper, bare]| {
                        both_in_turn(hyper, bare)
                    }),
                    unit_of_both: Unit::PerSecond,
                },
            ),
        ];
        rows.extend(self.latencies(bench, half.unwrap_or_default()).await);
        rows
    }

    async fn latencies(&self, bench: &Bench<'_>, per_second: f64) -> Vec<(String, Row)> {
        // A short run on a busy machine may not have had a single answer.
        let per_second = per_second.max(100.0);
        let pace = Pace::Open { per_second };
        let duration = bench.effort.duration() * 2;
        let variants = vec![
            Variant::new("bare scripts", || self.bare_scripts(pace, duration)),
            Variant::new("our store", || self.our_store(pace, duration)),
            Variant::drive(
                "our server over HTTP/1.1",
                self.server.clone(),
                CALLERS,
                pace,
                duration,
            ),
        ];
        let outcomes = bench.in_turns(variants).await;
        let p99 = |run: &Measured| run.quantile_micros(0.99);
        let (bare, ours) = (&outcomes[0], &outcomes[1..]);
        let rows = ours.iter().map(|ours| {
            row(
                &format!(
                    "p99 µs, {per_second:.0} cycles/s: {}, bare scripts",
                    ours.label
                ),
                &[ours, bare],
                Goal {
                    measured: ours.ratio(bare, p99),
                    unit: Unit::Ratio,
                    limit: Limit::AtMost(3.0),
                    ours: ours.spread(p99),
                    reference: bare.spread(p99),
                    unit_of_both: Unit::Micros,
                },
            )
        });
        rows.collect()
    }

    async fn hand_overs(&self, bench: &Bench<'_>) -> Result<Vec<(String, Row)>, String> {
        let duration = bench.effort.duration();
        let url = &self.redis.url();
        let one_node = waiting(&self.server.served);
        let watched = Watched::default();
        let variants = vec![
            Variant::new("BLPOP and LPUSH", move || {
                redis_rs::token_passes(url, CALLERS, duration, watched)
            }),
            Variant::new("SET NX and BLPOP", move || {
                redis_rs::hand_overs(url, CALLERS, duration, watched)
            }),
            Variant::drive("one node", one_node, CALLERS, Pace::Closed, duration),
            two_nodes("two nodes", bench, &self.redis)?,
        ];
        let outcomes = bench.in_turns(variants).await;
        let (bare, ours) = outcomes.split_at(2);
        let per_second = |run: &Measured| run.per_second;
        let mut rows = Vec::new();
        for bare in bare {
            for (ours, limit) in ours.iter().zip([0.6, 0.45]) {
                rows.push(row(
                    &format!("hand-overs/s of one key: {}, {}", ours.label, bare.label),
                    &[ours, bare],
                    Goal {
                        measured: ours.ratio(bare, per_second),
                        unit: Unit::Ratio,
                        limit: Limit::AtLeast(limit),
                        ours: ours.spread(per_second),
                        reference: bare.spread(per_second),
                        unit_of_both: Unit::PerSecond,
                    },
                ));
            }
        }
        Ok(rows)
    }

    /// The script calls that Redis counts for each way to acquire and release.
    async fn commands(&self, bench: &Bench<'_>) -> Result<Table, String> {
        let counted = match bench.effort.quick {
            true => COUNTED / 64,
            false => COUNTED,
        };
        let (pace, untimed) = (Pace::Count(counted), Duration::ZERO);
        let mut rows = Vec::new();
        for label in ["bare scripts", "our store", "our server"] {
            CommandStats::reset(&self.redis);
            let run = match label {
                "our store" => self.our_store(pace, untimed).await?,
                "our server" => self.server.drive(CALLERS, pace, untimed).await?,
                _ => self.bare_scripts(pace, untimed).await?,
            };
            let CommandStats { scripts, others } = CommandStats::read(&self.redis);
            // An acquire and a release.
            let operations = 2.0 * run.done as f64;
            let cells = [
                scripts.count,
                scripts.micros / scripts.count,
                operations / scripts.count,
                scripts.micros / operations,
                others.count / operations,
            ];
            let cells = cells.map(|value| Spread::from_values([value]));
            rows.push((label.to_owned(), Row::Numbers(cells.to_vec())));
        }
        Ok(Table {
            section: "redis",
            title: format!("Redis: script calls of {counted} cycles; callers: {CALLERS}"),
            rows_are: "lock",
            columns: vec![
                Column::new("calls", Unit::Count),
                Column::new("µs per call", Unit::Micros),
                Column::new("operations per call", Unit::Count),
                Column::new("µs per operation", Unit::Micros),
                Column::new("commands per operation", Unit::Count),
            ],
            rows,
            note: "From INFO commandstats: FCALL and EVALSHA, and the commands that they run. A cycle is two operations. Socket I/O is not included.",
        })
    }
}

/// CPU time of Redis while keys are contended and no client sends a request.
async fn background(bench: &Bench<'_>) -> Result<(String, Row), String> {
    let (count, time) = match bench.effort.quick {
        true => (1_000, bench.effort.duration() * 5),
        false => (100_000, Duration::from_secs(5)),
    };
    let redis = Redis::start()?;
    let served = forrst(&redis.store())?;
    let [uncontended] = percent_of_core([redis.pid], time).await?;
    let row = match served.run(Command::Contend(count)) {
        Ok(reached) if reached < count => Row::Reason(format!(
            "not measured: Redis did not keep up; only {reached} keys have a waiter"
        )),
        Ok(_) => {
            let [contended] = percent_of_core([redis.pid], time).await?;
            Row::Goal(Goal {
                measured: Spread::from_values([contended]),
                unit: Unit::Percent,
                limit: Limit::AtMost(5.0),
                ours: Spread::from_values([contended]),
                reference: Spread::from_values([uncontended]),
                unit_of_both: Unit::Percent,
            })
        }
        Err(reason) => Row::Reason(reason),
    };
    let label = format!("Redis, % of a core, no requests: {count} contended keys, none");
    Ok((label, row))
}

/// A goal, or the reason why one of its measurements failed.
pub(super) fn row(label: &str, outcomes: &[&Outcome], goal: Goal) -> (String, Row) {
    let failed = outcomes
        .iter()
        .find_map(|outcome| outcome.turns.as_ref().err());
    let row = match failed {
        Some(reason) => Row::Reason(reason.clone()),
        None => Row::Goal(goal),
    };
    (label.to_owned(), row)
}
