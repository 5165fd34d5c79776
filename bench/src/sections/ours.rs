//! Our server, on each store and over each transport: throughput, latency, allocations and system calls.

use std::sync::Arc;

use serde_json::Value;

use super::variants::{Outcome, Variant, throughput};
use super::{Bench, CALLERS, Redis, forrst, strace};
use crate::load::Pace;
use crate::report::{Column, Row, Spread, Table, Unit};
use crate::serve::{Command, ServerKind, ServerProcess, Store};
use crate::subject::{Subject, Transport};
use crate::wire::{SERIAL, echo, locked_echo};

const TRANSPORTS: [Transport; 4] = [
    Transport::Http1,
    Transport::Http2,
    Transport::WebSocket,
    Transport::Unix,
];
/// For other numbers of callers, unless with `--full`.
const FEW_TRANSPORTS: [Transport; 2] = [Transport::Http1, Transport::Unix];

/// How many requests are counted, after the same number to warm up.
const COUNTED: u64 = 2048;

pub(super) async fn measure(bench: &Bench<'_>) -> Result<Vec<Table>, String> {
    let servers = Servers::start()?;
    let maxima = servers.throughput(bench, CALLERS, &TRANSPORTS).await;
    let mut tables = vec![table(CALLERS, &maxima)];
    for callers in [1, 16, 256] {
        let transports = match bench.effort.full {
            true => &TRANSPORTS[..],
            false => &FEW_TRANSPORTS[..],
        };
        if !bench.effort.quick || callers == 1 {
            let outcomes = servers.throughput(bench, callers, transports).await;
            tables.push(table(callers, &outcomes));
        }
    }
    tables.push(servers.costs(bench).await);
    tables.push(servers.latencies(bench, &maxima).await);
    Ok(tables)
}

/// A server, and the request that it is measured with.
struct Case {
    name: &'static str,
    served: Arc<ServerProcess>,
    request: Value,
}

impl Case {
    fn subject(&self, transport: Transport) -> Subject {
        Subject::new(&self.served, transport, self.request.clone())
    }
}

struct Servers {
    hyper: Case,
    ours: [Case; 5],
    _redis: Redis,
}

impl Servers {
    fn start() -> Result<Self, String> {
        let redis = Redis::start()?;
        let hyper = Case {
            name: "hyper",
            served: Arc::new(ServerProcess::floor(ServerKind::Hyper)?),
            request: echo(),
        };
        let locked = |name, store: &Store| {
            let served = forrst(store)?;
            let request = locked_echo(SERIAL, None);
            Ok::<_, String>(Case {
                name,
                served,
                request,
            })
        };
        let embedded = |waits_for_disk| Store::Embedded { waits_for_disk };
        let memory = locked("memory", &Store::Memory)?;
        let no_lock = Case {
            name: "no lock",
            served: memory.served.clone(),
            request: echo(),
        };
        let ours = [
            no_lock,
            memory,
            locked("embedded, process", &embedded(false))?,
            locked("embedded, full", &embedded(true))?,
            locked("Redis", &redis.store())?,
        ];
        Ok(Self {
            hyper,
            ours,
            _redis: redis,
        })
    }

    async fn throughput(
        &self,
        bench: &Bench<'_>,
        callers: usize,
        transports: &[Transport],
    ) -> Vec<Outcome> {
        let duration = bench.effort.duration();
        let mut variants = Vec::new();
        let mut add = |name: &str, subject: Subject| {
            let transport = match (subject.transport, subject.connection_each) {
                (Transport::WebSocket, true) => "WebSocket each",
                (transport, _) => transport.name(),
            };
            let label = label(name, transport);
            let pace = Pace::Closed;
            variants.push(Variant::drive(label, subject, callers, pace, duration));
        };
        add(self.hyper.name, self.hyper.subject(Transport::Http1));
        for case in &self.ours {
            for transport in transports {
                add(case.name, case.subject(*transport));
            }
            if transports.contains(&Transport::WebSocket) {
                let mut subject = case.subject(Transport::WebSocket);
                subject.connection_each = true;
                add(case.name, subject);
            }
        }
        bench.in_turns(variants).await
    }

    /// Allocations and system calls of the server per request.
    async fn costs(&self, bench: &Bench<'_>) -> Table {
        let (counted, transports) = match bench.effort.quick {
            true => (COUNTED / 8, &FEW_TRANSPORTS[..]),
            false => (COUNTED, &TRANSPORTS[..]),
        };
        let mut rows = Vec::new();
        let hyper = [(&self.hyper, Transport::Http1)];
        let over_each = |case| transports.iter().map(move |transport| (case, *transport));
        let ours = self.ours.iter().flat_map(over_each);
        for (case, transport) in hyper.into_iter().chain(ours) {
            let subject = case.subject(transport);
            let label = label(case.name, transport.name());
            if case.name != self.hyper.name && !bench.effort.measures(&label) {
                continue;
            }
            let row = match count(&subject, counted).await {
                Ok(cells) => Row::Numbers(cells),
                Err(reason) => Row::Reason(format!("failed: {reason}")),
            };
            rows.push((label, row));
        }
        Table {
            section: "ours",
            title: format!("Ours: cost of a request on the server; callers: {CALLERS}"),
            rows_are: "store, transport",
            columns: vec![
                Column::new("allocations", Unit::Count),
                Column::new("system calls", Unit::Count),
            ],
            rows,
            note: "System calls are counted by strace, which slows the server down, so that more requests than usual share a system call.",
        }
    }

    /// Latencies in an open loop: hyper and our server at the same rates.
    async fn latencies(&self, bench: &Bench<'_>, maxima: &[Outcome]) -> Table {
        let duration = bench.effort.duration();
        let mut rows = Vec::new();
        let hyper = self.hyper.subject(Transport::Http1);
        for case in &self.ours {
            let is_measured = bench
                .effort
                .measures(&label(case.name, Transport::Http1.name()));
            if !is_measured || (bench.effort.quick && case.name != "memory") {
                continue;
            }
            let ours = case.subject(Transport::Http1);
            let slower = [&self.hyper, case].map(|case| {
                let label = label(case.name, Transport::Http1.name());
                let found = maxima.iter().find(|outcome| outcome.label == label);
                let most = found.and_then(|outcome| outcome.spread(|run| run.per_second));
                most.map_or(f64::INFINITY, |most| most.median)
            });
            let slower = slower[0].min(slower[1]);
            // A short run on a busy machine may not have had a single answer.
            if !slower.is_finite() || slower < 1.0 {
                let reason = "not measured: the maximum throughput is unknown".to_owned();
                rows.push((case.name.to_owned(), Row::Reason(reason)));
                continue;
            }
            for (share, part) in [("¼", 0.25), ("½", 0.5), ("¾", 0.75)] {
                // Below this rate, a short run may not have a single answer.
                let per_second = (slower * part).max(100.0);
                let pace = Pace::Open { per_second };
                let at_rate = |name: &str, subject: &Subject| {
                    let label = format!("{name}, {share}");
                    Variant::drive(label, subject.clone(), CALLERS, pace, duration)
                };
                let pair = vec![at_rate("hyper", &hyper), at_rate(case.name, &ours)];
                let outcomes = bench.in_turns(pair).await;
                rows.extend(
                    outcomes
                        .iter()
                        .map(|outcome| latency_row(outcome, &outcomes[0])),
                );
            }
        }
        Table {
            section: "ours",
            title: format!(
                "Ours: latency at equal rates, HTTP/1.1, {CALLERS} connections, open loop"
            ),
            rows_are: "store, share of the slower one's maximum",
            columns: vec![
                Column::new("per second", Unit::PerSecond),
                Column::with_spread("p50 vs hyper's", Unit::Ratio),
                Column::new("p50 µs", Unit::Micros),
                Column::new("p99 µs", Unit::Micros),
                Column::new("p99.9 µs", Unit::Micros),
            ],
            rows,
            note: "Each row of ours follows that of hyper at the same rate. Requests are due at fixed times, from which latency counts.",
        }
    }
}

fn label(name: &str, transport: &str) -> String {
    format!("{name}, {transport}")
}

fn table(callers: usize, outcomes: &[Outcome]) -> Table {
    throughput(
        "ours",
        format!("Ours: one request per cycle, each with a new key; callers: {callers}"),
        "store, transport",
        outcomes,
        "HTTP/1.1 and \"WebSocket each\": a connection for each caller; all others: one connection for all callers.",
    )
}

fn latency_row(outcome: &Outcome, hyper: &Outcome) -> (String, Row) {
    outcome.row(|| {
        let quantile = |quantile: f64| outcome.spread(move |run| run.quantile_micros(quantile));
        vec![
            outcome.spread(|run| run.per_second),
            outcome.ratio(hyper, |run| run.quantile_micros(0.5)),
            quantile(0.5),
            quantile(0.99),
            quantile(0.999),
        ]
    })
}

async fn count(subject: &Subject, requests: u64) -> Result<Vec<Option<Spread>>, String> {
    let run = || subject.drive(CALLERS, Pace::Count(requests), std::time::Duration::ZERO);
    // One-time allocations happen here.
    run().await?;
    subject.served.run(Command::CountAllocations)?;
    let done = run().await?.done as f64;
    let allocations = subject.served.run(Command::Allocations)? as f64 / done;
    let system_calls = match strace::attach(subject.served.pid())? {
        Some(trace) => {
            let done = run().await?.done as f64;
            Some(trace.finish()? as f64 / done)
        }
        None => None,
    };
    Ok(vec![
        Spread::from_values([allocations]),
        Spread::from_values(system_calls),
    ])
}
