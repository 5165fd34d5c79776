//! The violations that a check has found, as text: the leases, and the operations on their key around the same time.

use std::fmt;
use std::time::Duration;

use super::Sharing;
use super::leases::KnownLease;
use super::log::{Action, Entry, KeyId, Log, Outcome};

/// How many violations are kept with their text.
const KEPT: usize = 10;
/// How many operations are shown before and after the moment of a violation.
const BEFORE: usize = 12;
const AFTER: usize = 6;

/// How much there was to check.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "outcomes, by their names")]
pub struct Summary {
    pub keys: usize,
    /// Answers that repeat an earlier one are not counted.
    pub leases: usize,
    pub operations: usize,
    pub granted: usize,
    pub extended: usize,
    pub released: usize,
    pub refused: usize,
    pub unknown: usize,
    /// Operations without an outcome.
    pub open: usize,
}

/// What must be true of every history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Rule {
    /// A lease that is requested after the answer of another one has a larger fence.
    FenceOrder,
    /// No two leases of a key have the same fence.
    FenceRepeated,
    /// Leases whose holders are certain of them do not conflict.
    Overlap,
    /// An operation ends.
    NeverEnded,
    /// After the last fault was repaired, an operation ends with an answer.
    UnknownAfterHealing,
}

/// A rule that is broken. Displayed, it shows the leases and the operations around them.
#[derive(Debug, Clone)]
pub struct Violation {
    /// The rule that is broken.
    pub rule: Rule,
    /// The key, or the first of the operation.
    pub key: String,
    /// The fences of the leases, the earlier one first.
    pub fences: Vec<u64>,
    text: String,
}

/// All violations of a history, of which only the first are kept.
#[derive(Clone)]
pub struct Violations {
    kept: Vec<Violation>,
    total: usize,
}

impl Violations {
    /// The first of them.
    pub fn iter(&self) -> impl Iterator<Item = &Violation> {
        self.kept.iter()
    }

    /// How many there are.
    pub fn total(&self) -> usize {
        self.total
    }
}

impl std::error::Error for Violations {}

impl fmt::Display for Violations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} violations, times in ms:", self.total)?;
        self.kept
            .iter()
            .try_for_each(|violation| violation.fmt(f))?;
        match self.total - self.kept.len() {
            0 => Ok(()),
            more => writeln!(f, "and {more} more"),
        }
    }
}

/// Readable output for `unwrap`.
impl fmt::Debug for Violations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Collects violations.
pub(super) struct Report<'a> {
    log: &'a Log,
    found: Violations,
}

impl<'a> Report<'a> {
    pub(super) fn new(log: &'a Log) -> Self {
        let found = Violations {
            kept: Vec::new(),
            total: 0,
        };
        Self { log, found }
    }

    pub(super) fn pair(
        &mut self,
        rule: Rule,
        key: KeyId,
        earlier: &KnownLease<'_>,
        later: &KnownLease<'_>,
    ) {
        let what = match rule {
            Rule::FenceRepeated => "two leases have the same fence",
            Rule::FenceOrder => "the fence of a lease is smaller than one that was known before",
            _ => "two conflicting leases were held for certain",
        };
        self.add(rule, key, vec![earlier.fence, later.fence], |log| {
            let name = log.name(key);
            let leases = format!("  {}\n  {}\n", LeaseLine(earlier), LeaseLine(later));
            let around = around(log, key, later.answered);
            format!("key `{name}`: {what}\n{leases}{around}")
        });
    }

    pub(super) fn operation(&mut self, rule: Rule, entry: &Entry) {
        let key = self.log.keys(&entry.action)[0];
        let what = match rule {
            Rule::NeverEnded => "an operation never ended",
            _ => "an operation after the last fault has an unknown outcome",
        };
        self.add(rule, key, Vec::new(), |log| {
            let name = log.name(key);
            let around = around(log, key, entry.began);
            format!("key `{name}`: {what}\n  {}\n{around}", line(entry))
        });
    }

    fn add(&mut self, rule: Rule, key: KeyId, fences: Vec<u64>, text: impl Fn(&Log) -> String) {
        self.found.total += 1;
        if self.found.kept.len() < KEPT {
            self.found.kept.push(Violation {
                rule,
                key: self.log.name(key).to_owned(),
                fences,
                text: text(self.log),
            });
        }
    }

    pub(super) fn verdict(self) -> Result<(), Violations> {
        if self.found.total == 0 {
            Ok(())
        } else {
            Err(self.found)
        }
    }
}

struct LeaseLine<'a>(&'a KnownLease<'a>);

impl fmt::Display for LeaseLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lease = self.0;
        let (owner, kind, fence) = (lease.owner, kind(lease.sharing), lease.fence);
        let (requested, answered) = (ms(lease.requested), ms(lease.answered));
        write!(
            f,
            "{owner}: {kind}, fence {fence}, requested at {requested}, "
        )?;
        if lease.is_ever_certain() {
            let until = ms(lease.certain_until);
            write!(f, "certain from {answered} until {until}")
        } else {
            write!(f, "answered at {answered}, never certain")
        }
    }
}

fn around(log: &Log, key: KeyId, moment: Duration) -> String {
    let entries = log.entries().map(|(_, entry)| entry);
    let mut entries: Vec<&Entry> = entries
        .filter(|entry| log.keys(&entry.action).contains(&key))
        .collect();
    entries.sort_by_key(|entry| entry.began);
    let middle = entries.partition_point(|entry| entry.began <= moment);
    let shown = &entries[middle.saturating_sub(BEFORE)..entries.len().min(middle + AFTER)];
    let lines: String = shown
        .iter()
        .map(|entry| format!("    {}\n", line(entry)))
        .collect();
    format!("  operations on this key around {}:\n{lines}", ms(moment))
}

fn line(entry: &Entry) -> String {
    let action = match &entry.action {
        Action::Acquire { sharing, keys } => match keys.len() {
            1 => format!("acquire {}", kind(*sharing)),
            count => format!("acquire {} of {count} keys", kind(*sharing)),
        },
        Action::Extend { ttl, .. } => format!("extend by {}", ms(*ttl)),
        Action::Release { .. } => "release".to_owned(),
        Action::Force { fences, .. } if fences.is_empty() => "force-release all".to_owned(),
        Action::Force { fences, .. } => format!("force-release {fences:?}"),
    };
    let outcome = match entry.outcome() {
        Some(Outcome::Granted { fence, until }) => {
            format!("granted, fence {fence}, until {}", ms(until))
        }
        Some(Outcome::Extended { until }) => format!("extended until {}", ms(until)),
        Some(Outcome::Released) => "released".to_owned(),
        Some(Outcome::Refused) => "refused".to_owned(),
        Some(Outcome::Unknown) => "unknown".to_owned(),
        None => "no end".to_owned(),
    };
    let ended = entry.ended.map_or("…".to_owned(), |(at, _)| ms(at));
    let began = ms(entry.began);
    format!(
        "{began:>10} – {ended:>10}  {}: {action}: {outcome}",
        entry.owner
    )
}

fn kind(sharing: Sharing) -> String {
    match sharing {
        Sharing::Exclusive => "exclusive".to_owned(),
        Sharing::Shared => "shared".to_owned(),
        Sharing::Limit(limit) => format!("limit {limit}"),
    }
}

fn ms(time: Duration) -> String {
    format!("{:.3}", time.as_secs_f64() * 1_000.0)
}
