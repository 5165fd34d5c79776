//! The result of a run: rates, latencies, errors and violations.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use hdrhistogram::Histogram;
use serde::Serialize;

use super::BenchArguments;
use super::checker::{Checker, Violation};
use super::worker::Tally;
use crate::output::{Table, sanitized};

const GOOD: Style = AnsiColor::Green.on_default();
const BAD: Style = AnsiColor::Red.on_default().bold();

#[derive(Serialize)]
pub(super) struct Summary {
    connections: usize,
    keys: usize,
    /// Without the time in which the last acquisitions were finished.
    elapsed_ms: u64,
    /// The rate that was requested, per second.
    rate: Option<f64>,
    pub(super) granted: u64,
    /// Only grants before the end of the run.
    granted_per_second: f64,
    timed_out: u64,
    /// Due, but not sent because the connections were busy.
    unsent: u64,
    refused: u64,
    lost: u64,
    errors: BTreeMap<String, u64>,
    latency_us: Latencies,
    pub(super) violations: Violations,
}

#[derive(Serialize)]
struct Latencies {
    acquire: Percentiles,
    waiting: Percentiles,
    service: Percentiles,
    release: Percentiles,
}

#[derive(Serialize)]
struct Percentiles {
    count: u64,
    p50: u64,
    p90: u64,
    p99: u64,
    p999: u64,
    max: u64,
}

#[derive(Serialize)]
pub(super) struct Violations {
    pub(super) count: u64,
    first: Vec<Violation>,
}

impl Summary {
    pub(super) fn new(
        arguments: &BenchArguments,
        elapsed: Duration,
        tally: &Tally,
        checker: &Checker,
    ) -> Self {
        Self {
            connections: arguments.connections.get(),
            keys: arguments.keys.get(),
            elapsed_ms: u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX),
            rate: arguments.rate,
            granted: tally.granted,
            granted_per_second: per_second(tally.granted_in_time, elapsed),
            timed_out: tally.timed_out,
            unsent: tally.unsent,
            refused: tally.refused,
            lost: tally.lost,
            errors: tally.errors.clone(),
            latency_us: Latencies {
                acquire: Percentiles::from_histogram(&tally.acquire),
                waiting: Percentiles::from_histogram(&tally.waiting),
                service: Percentiles::from_histogram(&tally.service),
                release: Percentiles::from_histogram(&tally.release),
            },
            violations: Violations {
                count: checker.violation_count(),
                first: checker.violations(),
            },
        }
    }

    /// As a table, for people.
    pub(super) fn to_text(&self) -> String {
        let mut text = format!(
            "{} connections, {} keys, {:.1}s{}\n\n",
            self.connections,
            self.keys,
            Duration::from_millis(self.elapsed_ms).as_secs_f64(),
            self.rate
                .map_or(String::new(), |rate| format!(", {rate} due each second"))
        );
        let _ = writeln!(
            text,
            "granted    {} ({:.0}/s)",
            self.granted, self.granted_per_second
        );
        let _ = writeln!(text, "timed out  {}", self.timed_out);
        let rare = [
            ("not sent", self.unsent),
            ("refused", self.refused),
            ("lost", self.lost),
        ];
        for (label, count) in rare {
            if count > 0 {
                let _ = writeln!(text, "{label:<9}  {count}");
            }
        }
        for (code, count) in &self.errors {
            let _ = writeln!(text, "{BAD}errors{BAD:#}     {count} × {}", sanitized(code));
        }
        let mut table = Table::new(&["", "p50", "p90", "p99", "p99.9", "max"]);
        table.row(&self.latency_us.acquire.row("acquire"));
        table.row(&self.latency_us.waiting.row("  waiting"));
        table.row(&self.latency_us.service.row("  service"));
        table.row(&self.latency_us.release.row("release"));
        let _ = write!(text, "\n{}\n{}", table.text(), self.verdict());
        text
    }

    fn verdict(&self) -> String {
        if self.granted == 0 {
            return format!("{BAD}Nothing was ever granted.{BAD:#}\n");
        }
        if self.violations.count == 0 {
            return format!("{GOOD}No two holders overlapped, and all fences grew.{GOOD:#}\n");
        }
        let mut text = format!("{BAD}{} violations:{BAD:#}\n", self.violations.count);
        for violation in &self.violations.first {
            let _ = match violation {
                Violation::Overlap { key, held, granted } => writeln!(
                    text,
                    "  key {key} was granted with fence {granted} while it was held with fence {held}"
                ),
                Violation::Fence { key, before, after } => {
                    writeln!(
                        text,
                        "  key {key} was granted with fence {after} after fence {before}"
                    )
                }
            };
        }
        text
    }
}

impl Percentiles {
    fn from_histogram(histogram: &Histogram<u64>) -> Self {
        Self {
            count: histogram.len(),
            p50: histogram.value_at_quantile(0.5),
            p90: histogram.value_at_quantile(0.9),
            p99: histogram.value_at_quantile(0.99),
            p999: histogram.value_at_quantile(0.999),
            max: histogram.max(),
        }
    }

    fn row(&self, label: &str) -> [String; 6] {
        let shown = |micros: u64| {
            let millis = Duration::from_micros(micros).as_secs_f64() * 1000.0;
            format!("{millis:.2}ms")
        };
        let [p50, p90, p99, p999, max] =
            [self.p50, self.p90, self.p99, self.p999, self.max].map(shown);
        [label.to_owned(), p50, p90, p99, p999, max]
    }
}

fn per_second(count: u64, elapsed: Duration) -> f64 {
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    f64::from(count) / elapsed.as_secs_f64().max(f64::EPSILON)
}
