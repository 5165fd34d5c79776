//! From operations to leases: how long the holder of each knew for certain that it held it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::Sharing;
use super::log::{Act, Entry, KeyId, Log, OperationId, Outcome};

/// A lease that was granted. Its holder is certain of it from the answer until `certain_until`, if that is later.
#[derive(Debug)]
pub(super) struct KnownLease<'a> {
    pub(super) owner: &'a Arc<str>,
    pub(super) keys: &'a [KeyId],
    pub(super) sharing: Sharing,
    pub(super) fence: u64,
    pub(super) asked: Duration,
    pub(super) answered: Duration,
    pub(super) certain_until: Duration,
}

impl KnownLease<'_> {
    pub(super) fn is_ever_certain(&self) -> bool {
        self.answered < self.certain_until
    }
}

/// All leases of a log.
pub(super) fn leases(log: &Log) -> Vec<KnownLease<'_>> {
    let mut later = later(log);
    let forced = Forced::of(log);
    let mut leases: Vec<(KnownLease<'_>, Later)> = Vec::new();
    let mut latest: HashMap<(&str, u64, &[KeyId]), usize> = HashMap::new();
    for (id, entry) in log.entries() {
        let Some((lease, term)) = granted(entry) else {
            continue;
        };
        let mut what_follows = later.remove(&id).unwrap_or_default();
        what_follows.terms.push(term);
        let identity = (&**lease.owner, lease.fence, lease.keys);
        let repeated = latest.get(&identity).copied();
        match repeated.map(|index| &mut leases[index]) {
            // A second answer about the same lease: it was not yet released for certain.
            Some((known, of_known)) if of_known.released.is_none_or(|at| at >= lease.asked) => {
                known.asked = known.asked.min(lease.asked);
                known.answered = known.answered.min(lease.answered);
                of_known.merge(what_follows);
            }
            _ => {
                latest.insert(identity, leases.len());
                leases.push((lease, what_follows));
            }
        }
    }
    let certain = leases.into_iter().map(|(mut lease, later)| {
        lease.certain_until = later.certain_until().min(forced.end_of(&lease));
        lease
    });
    certain.collect()
}

fn granted(entry: &Entry) -> Option<(KnownLease<'_>, Term)> {
    let Act::Acquire { keys, sharing } = &entry.act else {
        return None;
    };
    let Some((answered, Outcome::Granted { fence, until })) = entry.ended else {
        return None;
    };
    let lease = KnownLease {
        owner: &entry.owner,
        keys,
        sharing: *sharing,
        fence,
        asked: entry.began,
        answered,
        certain_until: until,
    };
    Some((lease, Term::known(entry.began, answered, until)))
}

/// What was requested about a lease after it was granted.
#[derive(Debug, Default)]
struct Later {
    terms: Vec<Term>,
    /// When its holder first ceased to count on it.
    given_up: Option<Duration>,
    /// When it was first known to have been released.
    released: Option<Duration>,
}

/// A statement about the end of a lease.
#[derive(Debug)]
struct Term {
    sent: Duration,
    end: TermEnd,
}

#[derive(Debug)]
enum TermEnd {
    Known {
        answered: Duration,
        until: Duration,
    },
    /// It takes effect at any time after it was sent, or never; then the lease lasts for so long from there.
    Unknown {
        ttl: Duration,
    },
}

impl Term {
    fn known(sent: Duration, answered: Duration, until: Duration) -> Self {
        let end = TermEnd::Known { answered, until };
        Self { sent, end }
    }
}

impl Later {
    fn merge(&mut self, mut other: Self) {
        self.terms.append(&mut other.terms);
        self.given_up = earlier(self.given_up, other.given_up);
        self.released = earlier(self.released, other.released);
    }

    /// The earliest end that any order of what may have taken effect last leads to.
    fn certain_until(&self) -> Duration {
        let known = self.terms.iter();
        let known = known.filter(|term| matches!(term.end, TermEnd::Known { .. }));
        let newest_sent = known.map(|term| term.sent).max().unwrap_or_default();
        let ends = self.terms.iter().filter_map(|term| match term.end {
            // Replaced by one that was sent after it had taken effect.
            TermEnd::Known { answered, .. }
                if term.sent < newest_sent && answered <= newest_sent =>
            {
                None
            }
            TermEnd::Known { until, .. } => Some(until),
            // As the last it takes effect after the newest one was sent.
            TermEnd::Unknown { ttl } => Some(term.sent.max(newest_sent) + ttl),
        });
        let end = ends.min().unwrap_or_default();
        self.given_up.map_or(end, |at| end.min(at))
    }
}

fn later(log: &Log) -> HashMap<OperationId, Later> {
    let mut later: HashMap<OperationId, Later> = HashMap::new();
    for (_, entry) in log.entries() {
        let sent = entry.began;
        match (&entry.act, entry.ended) {
            (Act::Release { of }, ended) => {
                let later = later.entry(*of).or_default();
                later.given_up = earlier(later.given_up, Some(sent));
                if let Some((at, Outcome::Released)) = ended {
                    later.released = earlier(later.released, Some(at));
                }
            }
            // It was gone before.
            (Act::Extend { of, .. }, Some((_, Outcome::Refused))) => {
                let later = later.entry(*of).or_default();
                later.given_up = earlier(later.given_up, Some(sent));
            }
            (Act::Extend { of, .. }, Some((answered, Outcome::Extended { until }))) => {
                let term = Term::known(sent, answered, until);
                later.entry(*of).or_default().terms.push(term);
            }
            (Act::Extend { of, ttl }, _) => {
                let end = TermEnd::Unknown { ttl: *ttl };
                later.entry(*of).or_default().terms.push(Term { sent, end });
            }
            (Act::Acquire { .. } | Act::Force { .. }, _) => {}
        }
    }
    later
}

fn earlier(one: Option<Duration>, other: Option<Duration>) -> Option<Duration> {
    [one, other].into_iter().flatten().min()
}

/// What operators have ended, or may have.
#[derive(Default)]
struct Forced {
    /// When the end of one lease of a key was first sent.
    fences: HashMap<(KeyId, u64), Duration>,
    /// For each key, those that ended all of its leases.
    keys: HashMap<KeyId, Vec<ForcedKey>>,
}

struct ForcedKey {
    sent: Duration,
    /// When it had taken effect at the latest.
    by: Duration,
}

impl Forced {
    fn of(log: &Log) -> Self {
        let mut forced = Self::default();
        for (_, entry) in log.entries() {
            let Act::Force { key, fences } = &entry.act else {
                continue;
            };
            if matches!(entry.outcome(), Some(Outcome::Refused)) {
                continue;
            }
            let sent = entry.began;
            for fence in fences {
                let first = forced.fences.entry((*key, *fence)).or_insert(sent);
                *first = sent.min(*first);
            }
            if fences.is_empty() {
                let by = entry.answered().unwrap_or(Duration::MAX);
                let of_key = forced.keys.entry(*key).or_default();
                of_key.push(ForcedKey { sent, by });
            }
        }
        for of_key in forced.keys.values_mut() {
            of_key.sort_unstable_by_key(|forced| forced.by);
            // Of each and those that took effect later, the earliest.
            let mut earliest = Duration::MAX;
            for forced in of_key.iter_mut().rev() {
                earliest = earliest.min(forced.sent);
                forced.sent = earliest;
            }
        }
        forced
    }

    /// When a lease may have been ended first: any that took effect after it was requested may have ended it.
    fn end_of(&self, lease: &KnownLease<'_>) -> Duration {
        let ends = lease.keys.iter().flat_map(|key| {
            let of_fence = self.fences.get(&(*key, lease.fence)).copied();
            let of_key = self.keys.get(key).and_then(|all| {
                let first = all.partition_point(|forced| forced.by <= lease.asked);
                all.get(first).map(|forced| forced.sent)
            });
            [of_fence, of_key].into_iter().flatten()
        });
        ends.min().unwrap_or(Duration::MAX)
    }
}
