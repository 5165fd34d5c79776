//! The result of a run: the outcome of every vector over every transport, for people and as JSON.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::play::Failure;
use crate::vector::Transport;

/// The result of a run.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The transports that were used.
    pub transports: Vec<Transport>,
    /// One entry for each vector and transport, in order of the vectors' paths.
    pub outcomes: Vec<Outcome>,
}

/// One vector over one transport.
#[derive(Debug, Serialize)]
pub struct Outcome {
    /// The vector's group.
    pub group: String,
    /// The vector's name.
    pub name: String,
    /// The transport.
    pub transport: Transport,
    /// The result.
    #[serde(flatten)]
    pub verdict: Verdict,
}

/// The result of a vector.
#[derive(Debug, Serialize)]
#[serde(tag = "verdict", rename_all = "lowercase")]
pub enum Verdict {
    /// Every answer was as expected.
    Passed,
    /// An answer was not as expected.
    Failed(Box<Failure>),
    /// It is not meant for this transport.
    Skipped,
}

/// How many vectors passed, failed and were skipped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Every answer was as expected.
    pub passed: usize,
    /// An answer was not as expected.
    pub failed: usize,
    /// Not meant for the transport.
    pub skipped: usize,
}

impl Counts {
    fn add(&mut self, verdict: &Verdict) {
        match verdict {
            Verdict::Passed => self.passed += 1,
            Verdict::Failed(_) => self.failed += 1,
            Verdict::Skipped => self.skipped += 1,
        }
    }
}

impl Report {
    /// The totals over all vectors and transports.
    pub fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for outcome in &self.outcomes {
            counts.add(&outcome.verdict);
        }
        counts
    }

    /// Every failure, with its outcome.
    pub fn failures(&self) -> impl Iterator<Item = (&Outcome, &Failure)> {
        self.outcomes
            .iter()
            .filter_map(|outcome| match &outcome.verdict {
                Verdict::Failed(failure) => Some((outcome, failure.as_ref())),
                Verdict::Passed | Verdict::Skipped => None,
            })
    }

    fn table(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut groups: BTreeMap<&str, BTreeMap<Transport, Counts>> = BTreeMap::new();
        for outcome in &self.outcomes {
            groups
                .entry(&outcome.group)
                .or_default()
                .entry(outcome.transport)
                .or_default()
                .add(&outcome.verdict);
        }
        let width = groups.keys().map(|group| group.len()).max().unwrap_or(0);
        write!(f, "{:width$}", "")?;
        for transport in &self.transports {
            write!(f, "  {:>28}", transport.name())?;
        }
        writeln!(f)?;
        for (group, by_transport) in groups {
            write!(f, "{group:width$}")?;
            for transport in &self.transports {
                let counts = by_transport.get(transport).copied().unwrap_or_default();
                write!(f, "  {:>28}", counts.to_string())?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed", self.passed)?;
        if self.failed > 0 {
            write!(f, ", {} FAILED", self.failed)?;
        }
        if self.skipped > 0 {
            write!(f, ", {} skipped", self.skipped)?;
        }
        Ok(())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "  step {}", self.step)?;
        if let Some(about) = &self.about {
            write!(f, ": {about}")?;
        }
        writeln!(f)?;
        writeln!(f, "    sent      {}", self.request)?;
        writeln!(f, "    expected  {}", self.expected)?;
        writeln!(f, "    answer    {}", self.answer)?;
        for mismatch in &self.mismatches {
            writeln!(f, "    mismatch  {mismatch}")?;
        }
        Ok(())
    }
}

/// The failures, the table, and as the last line `N passed, N failed`.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (outcome, failure) in self.failures() {
            let Outcome { group, name, .. } = outcome;
            writeln!(f, "FAILED {group}/{name} over {}", outcome.transport.name())?;
            writeln!(f, "{failure}")?;
        }
        self.table(f)?;
        writeln!(f)?;
        let Counts { passed, failed, .. } = self.counts();
        write!(f, "{passed} passed, {failed} failed")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mismatch::Mismatch;
    use serde_json::json;

    fn report() -> Report {
        let outcome = |name: &str, transport, verdict| Outcome {
            group: "1-envelope".to_owned(),
            name: name.to_owned(),
            transport,
            verdict,
        };
        let failure = Failure {
            step: 2,
            about: Some("the contender".to_owned()),
            request: "POST /forrst {}".to_owned(),
            expected: json!({"status": 423}),
            answer: "HTTP 200 {}".to_owned(),
            mismatches: vec![Mismatch::new("status", "423", "200")],
        };
        Report {
            transports: vec![Transport::Http, Transport::Ws],
            outcomes: vec![
                outcome("a", Transport::Http, Verdict::Failed(Box::new(failure))),
                outcome("a", Transport::Ws, Verdict::Skipped),
                outcome("b", Transport::Http, Verdict::Passed),
                outcome("b", Transport::Ws, Verdict::Passed),
            ],
        }
    }

    #[test]
    fn the_last_line_has_the_counts_and_a_failure_is_printed_in_full() {
        let text = report().to_string();
        assert_eq!(text.lines().last(), Some("2 passed, 1 failed"));
        for part in [
            "FAILED 1-envelope/a over http",
            "step 2: the contender",
            "mismatch  status: expected 423, found 200",
            "1 passed, 1 FAILED",
            "1 passed, 1 skipped",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
    }

    #[test]
    fn as_json_each_outcome_has_its_verdict() {
        let json = serde_json::to_value(report()).unwrap();
        assert_eq!(json["outcomes"][0]["verdict"], "failed");
        assert_eq!(json["outcomes"][0]["step"], 2);
        assert_eq!(json["outcomes"][1]["verdict"], "skipped");
        assert_eq!(json["transports"], json!(["http", "ws"]));
    }
}
