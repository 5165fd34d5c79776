//! Checks a history for violations of the rules. Pure, and O(n log n) in the number of operations.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use super::Sharing;
use super::leases::{KnownLease, leases};
use super::log::{KeyId, Log, Outcome};
use super::report::{Report, Rule, Summary, Violations};

pub(super) fn check(log: &Log) -> Result<Summary, Violations> {
    let leases = leases(log);
    let mut of_key: HashMap<KeyId, Vec<&KnownLease<'_>>> = HashMap::new();
    for lease in &leases {
        for key in lease.keys {
            of_key.entry(*key).or_default().push(lease);
        }
    }
    let mut report = Report::new(log);
    for key in log.names() {
        let leases = of_key.get(&key).map_or(&[][..], Vec::as_slice);
        repeated_fences(key, leases, &mut report);
        fence_order(key, leases, &mut report);
        overlaps(key, leases, &mut report);
    }
    report.verdict()?;
    Ok(summary(log, &leases))
}

pub(super) fn nothing_stuck(log: &Log) -> Result<(), Violations> {
    let mut report = Report::new(log);
    for (_, entry) in log.entries() {
        let is_after = log.healed().is_some_and(|healed| entry.began >= healed);
        match entry.outcome() {
            None => report.operation(Rule::NeverEnded, entry),
            Some(Outcome::Unknown) if is_after => {
                report.operation(Rule::UnknownAfterHealing, entry);
            }
            Some(_) => {}
        }
    }
    report.verdict()
}

fn repeated_fences(key: KeyId, leases: &[&KnownLease<'_>], report: &mut Report<'_>) {
    let mut leases = leases.to_vec();
    leases.sort_by_key(|lease| (lease.fence, lease.answered));
    for pair in leases.windows(2) {
        if pair[0].fence == pair[1].fence {
            report.pair(Rule::FenceRepeated, key, pair[0], pair[1]);
        }
    }
}

/// A lease has a larger fence than all leases that were answered before it was requested.
fn fence_order(key: KeyId, leases: &[&KnownLease<'_>], report: &mut Report<'_>) {
    let (mut by_requested, mut by_answered) = (leases.to_vec(), leases.to_vec());
    by_requested.sort_by_key(|lease| lease.requested);
    by_answered.sort_by_key(|lease| lease.answered);
    let mut answered = by_answered.into_iter().peekable();
    let mut largest: Option<&KnownLease<'_>> = None;
    for lease in by_requested {
        while let Some(before) = answered.next_if(|before| before.answered < lease.requested) {
            if largest.is_none_or(|largest| before.fence > largest.fence) {
                largest = Some(before);
            }
        }
        if let Some(before) = largest.filter(|before| before.fence > lease.fence) {
            report.pair(Rule::FenceOrder, key, before, lease);
        }
    }
}

fn overlaps(key: KeyId, leases: &[&KnownLease<'_>], report: &mut Report<'_>) {
    // At the same time the end comes first: an interval does not contain its end.
    let mut edges: Vec<(Duration, bool, usize)> = Vec::with_capacity(leases.len() * 2);
    for (index, lease) in leases.iter().enumerate() {
        if lease.is_ever_certain() {
            edges.push((lease.answered, true, index));
            edges.push((lease.certain_until, false, index));
        }
    }
    edges.sort_unstable();
    let mut certain: BTreeSet<(Sharing, usize)> = BTreeSet::new();
    for (_, begins, index) in edges {
        let sharing = leases[index].sharing;
        if !begins {
            certain.remove(&(sharing, index));
            continue;
        }
        if let Some(other) = conflict(sharing, &certain) {
            report.pair(Rule::Overlap, key, leases[other], leases[index]);
        }
        certain.insert((sharing, index));
    }
}

/// One of these leases that conflicts with another lease of this kind.
fn conflict(sharing: Sharing, certain: &BTreeSet<(Sharing, usize)>) -> Option<usize> {
    // They are sorted by kind: if any is of another kind, then the first or the last is.
    let (first, last) = (certain.first()?, certain.last()?);
    if let Some((_, other)) = [first, last]
        .into_iter()
        .find(|(other, _)| *other != sharing)
    {
        return Some(*other);
    }
    let is_full = match sharing {
        Sharing::Exclusive => true,
        Sharing::Shared => false,
        Sharing::Limit(limit) => certain.len() >= limit as usize,
    };
    is_full.then_some(first.1)
}

fn summary(log: &Log, leases: &[KnownLease<'_>]) -> Summary {
    let mut summary = Summary {
        keys: log.names().count(),
        leases: leases.len(),
        ..Summary::default()
    };
    for (_, entry) in log.entries() {
        summary.operations += 1;
        *match entry.outcome() {
            Some(Outcome::Granted { .. }) => &mut summary.granted,
            Some(Outcome::Extended { .. }) => &mut summary.extended,
            Some(Outcome::Released) => &mut summary.released,
            Some(Outcome::Refused) => &mut summary.refused,
            Some(Outcome::Unknown) => &mut summary.unknown,
            None => &mut summary.open,
        } += 1;
    }
    summary
}
