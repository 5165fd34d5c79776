//! The variants that are compared: they run in turns, and each is compared with the first one within the same turn.

use std::time::Duration;

use futures_util::future::BoxFuture;

use super::Bench;
use crate::load::{Measured, Pace};
use crate::report::{Column, Row, Spread, Table, Unit};
use crate::subject::Subject;

type Run<'a> = Box<dyn Fn() -> BoxFuture<'a, Result<Measured, String>> + Send + Sync + 'a>;

/// One row of a table, and how it is measured.
pub(super) struct Variant<'a> {
    label: String,
    run: Result<Run<'a>, String>,
}

impl<'a> Variant<'a> {
    pub(super) fn new<Fut>(
        label: impl Into<String>,
        run: impl Fn() -> Fut + Send + Sync + 'a,
    ) -> Self
    where
        Fut: Future<Output = Result<Measured, String>> + Send + 'a,
    {
        Self {
            label: label.into(),
            run: Ok(Box::new(move || Box::pin(run()))),
        }
    }

    /// A variant that sends requests to a server.
    pub(super) fn drive(
        label: impl Into<String>,
        subject: Subject,
        callers: usize,
        pace: Pace,
        duration: Duration,
    ) -> Self {
        Self::new(label, move || {
            let subject = subject.clone();
            async move { subject.drive(callers, pace, duration).await }
        })
    }

    /// A variant that cannot run on this machine.
    pub(super) fn missing(label: impl Into<String>, reason: impl Into<String>) -> Self {
        Self {
            label: label.into(),
            run: Err(reason.into()),
        }
    }
}

/// The result of a variant.
pub(super) struct Outcome {
    pub(super) label: String,
    /// One result for each turn.
    pub(super) turns: Result<Vec<Measured>, String>,
}

impl Outcome {
    /// A value of each turn.
    pub(super) fn spread(&self, value: impl Fn(&Measured) -> f64) -> Option<Spread> {
        Spread::from_values(self.turns.iter().flatten().map(value))
    }

    /// As [`Self::spread`], of a value that may not have been measured.
    pub(super) fn optional_spread(
        &self,
        value: impl Fn(&Measured) -> Option<f64>,
    ) -> Option<Spread> {
        Spread::from_values(self.turns.iter().flatten().filter_map(value))
    }

    /// The ratio of a value to that of another variant in the same turn.
    pub(super) fn ratio(&self, to: &Self, value: impl Fn(&Measured) -> f64) -> Option<Spread> {
        Self::each_turn([self, to], |[own, other]| value(own) / value(other))
    }

    /// A value computed from the results of several variants in the same turn.
    pub(super) fn each_turn<const N: usize>(
        outcomes: [&Self; N],
        value: impl Fn([&Measured; N]) -> f64,
    ) -> Option<Spread> {
        let turns = outcomes.map(|outcome| outcome.turns.as_deref().unwrap_or_default());
        let complete = turns.iter().map(|turns| turns.len()).min().unwrap_or(0);
        Spread::from_values((0..complete).map(|turn| value(turns.map(|turns| &turns[turn]))))
    }

    pub(super) fn row(&self, cells: impl FnOnce() -> Vec<Option<Spread>>) -> (String, Row) {
        let row = match &self.turns {
            Ok(_) => Row::Numbers(cells()),
            Err(reason) => Row::Reason(reason.clone()),
        };
        (self.label.clone(), row)
    }
}

impl Bench<'_> {
    /// Runs all variants in turns, so that other load on the machine affects all of them.
    pub(super) async fn in_turns(&self, variants: Vec<Variant<'_>>) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        let mut runs = Vec::new();
        for (index, Variant { label, run }) in variants.into_iter().enumerate() {
            // All variants are compared with the first.
            if index > 0 && !self.effort.measures(&label) {
                continue;
            }
            let turns = run.as_ref().map(|_| Vec::new()).map_err(Clone::clone);
            outcomes.push(Outcome { label, turns });
            runs.push(run.ok());
        }
        for _ in 0..self.effort.repetitions() {
            for (outcome, run) in outcomes.iter_mut().zip(&runs) {
                if let (Ok(turns), Some(run)) = (&mut outcome.turns, run) {
                    match run().await {
                        Ok(measured) => turns.push(measured),
                        Err(error) => outcome.turns = Err(format!("failed: {error}")),
                    }
                }
            }
        }
        outcomes
    }
}

/// Throughput, latency and CPU time, compared with the first variant.
pub(super) fn throughput(
    section: &'static str,
    title: impl Into<String>,
    rows_are: &'static str,
    outcomes: &[Outcome],
    note: &'static str,
) -> Table {
    let columns = vec![
        Column::new("per second", Unit::PerSecond),
        Column::with_spread("vs first row", Unit::Ratio),
        Column::new("p50 µs", Unit::Micros),
        Column::new("p99 µs", Unit::Micros),
        Column::new("server CPU µs", Unit::Micros),
        Column::new("client CPU µs", Unit::Micros),
    ];
    let rows = outcomes.iter().map(|outcome| {
        outcome.row(|| {
            let per_second = |measured: &Measured| measured.per_second;
            vec![
                outcome.spread(per_second),
                outcome.ratio(&outcomes[0], per_second),
                outcome.spread(|measured| measured.quantile_micros(0.5)),
                outcome.spread(|measured| measured.quantile_micros(0.99)),
                outcome.optional_spread(|measured| measured.cpu_micros.server),
                outcome.spread(|measured| measured.own_cpu_micros),
            ]
        })
    });
    Table {
        section,
        title: title.into(),
        rows_are,
        columns,
        rows: rows.collect(),
        note,
    }
}
