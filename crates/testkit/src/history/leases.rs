//! Derives leases from operations: how long the holder of each knew for certain that it held the lease.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::Sharing;
use super::log::{Action, Entry, KeyId, Log, OperationId, Outcome};

/// A lease that was granted. Its holder is certain of it from the answer until `certain_until`, if that is later.
#[derive(Debug)]
pub(super) struct KnownLease<'a> {
    pub(super) owner: &'a Arc<str>,
    pub(super) keys: &'a [KeyId],
    pub(super) sharing: Sharing,
    pub(super) fence: u64,
    pub(super) requested: Duration,
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
    let mut follow_ups = follow_ups(log);
    let forced = Forced::from_log(log);
    let mut leases: Vec<(KnownLease<'_>, FollowUps)> = Vec::new();
    let mut latest: HashMap<(&str, u64, &[KeyId]), usize> = HashMap::new();
    for (id, entry) in log.entries() {
        let Some((lease, term)) = granted(entry) else {
            continue;
        };
        let mut what_follows = follow_ups.remove(&id).unwrap_or_default();
        what_follows.terms.push(term);
        let identity = (&**lease.owner, lease.fence, lease.keys);
        let repeated = latest.get(&identity).copied();
        match repeated.map(|index| &mut leases[index]) {
            // A second answer with the same lease, which was not certainly released before.
            Some((known, of_known)) if of_known.released.is_none_or(|at| at >= lease.requested) => {
                known.requested = known.requested.min(lease.requested);
                known.answered = known.answered.min(lease.answered);
                of_known.merge(what_follows);
            }
            _ => {
                latest.insert(identity, leases.len());
                leases.push((lease, what_follows));
            }
        }
    }
    let certain = leases.into_iter().map(|(mut lease, follow_ups)| {
        lease.certain_until = follow_ups.certain_until().min(forced.end_of(&lease));
        lease
    });
    certain.collect()
}

fn granted(entry: &Entry) -> Option<(KnownLease<'_>, Term)> {
    let Action::Acquire { keys, sharing } = &entry.action else {
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
        requested: entry.began,
        answered,
        certain_until: until,
    };
    Some((lease, Term::known(entry.began, answered, until)))
}

/// The operations on a lease after it was granted.
#[derive(Debug, Default)]
struct FollowUps {
    terms: Vec<Term>,
    /// When its holder first stopped relying on it.
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
    /// It takes effect at any time after it was sent, or never; the lease then lasts for `ttl` from there.
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

impl FollowUps {
    fn merge(&mut self, mut other: Self) {
        self.terms.append(&mut other.terms);
        self.given_up = earlier(self.given_up, other.given_up);
        self.released = earlier(self.released, other.released);
    }

    /// The earliest end of the lease, whichever of the terms took effect last.
    fn certain_until(&self) -> Duration {
        let known = self.terms.iter();
        let known = known.filter(|term| matches!(term.end, TermEnd::Known { .. }));
        let newest_sent = known.map(|term| term.sent).max().unwrap_or_default();
        let ends = self.terms.iter().filter_map(|term| match term.end {
            // Replaced by a term that was sent after this one had taken effect.
            TermEnd::Known { answered, .. }
                if term.sent < newest_sent && answered <= newest_sent =>
            {
                None
            }
            TermEnd::Known { until, .. } => Some(until),
            // If it is the last to take effect, it does so after the newest one was sent.
            TermEnd::Unknown { ttl } => Some(term.sent.max(newest_sent) + ttl),
        });
        let end = ends.min().unwrap_or_default();
        self.given_up.map_or(end, |at| end.min(at))
    }
}

fn follow_ups(log: &Log) -> HashMap<OperationId, FollowUps> {
    let mut follow_ups: HashMap<OperationId, FollowUps> = HashMap::new();
    for (_, entry) in log.entries() {
        let sent = entry.began;
        match (&entry.action, entry.ended) {
            (Action::Release { of }, ended) => {
                let follow_ups = follow_ups.entry(*of).or_default();
                follow_ups.given_up = earlier(follow_ups.given_up, Some(sent));
                if let Some((at, Outcome::Released)) = ended {
                    follow_ups.released = earlier(follow_ups.released, Some(at));
                }
            }
            // The lease had ended before.
            (Action::Extend { of, .. }, Some((_, Outcome::Refused))) => {
                let follow_ups = follow_ups.entry(*of).or_default();
                follow_ups.given_up = earlier(follow_ups.given_up, Some(sent));
            }
            (Action::Extend { of, .. }, Some((answered, Outcome::Extended { until }))) => {
                let term = Term::known(sent, answered, until);
                follow_ups.entry(*of).or_default().terms.push(term);
            }
            (Action::Extend { of, ttl }, _) => {
                let end = TermEnd::Unknown { ttl: *ttl };
                follow_ups
                    .entry(*of)
                    .or_default()
                    .terms
                    .push(Term { sent, end });
            }
            (Action::Acquire { .. } | Action::Force { .. }, _) => {}
        }
    }
    follow_ups
}

fn earlier(one: Option<Duration>, other: Option<Duration>) -> Option<Duration> {
    [one, other].into_iter().flatten().min()
}

/// The leases that operators have ended, or may have ended.
#[derive(Default)]
struct Forced {
    /// When the end of one lease of a key was first sent.
    fences: HashMap<(KeyId, u64), Duration>,
    /// For each key, the force-releases of all its leases.
    keys: HashMap<KeyId, Vec<ForcedKey>>,
}

struct ForcedKey {
    sent: Duration,
    /// When it had taken effect at the latest.
    by: Duration,
}

impl Forced {
    fn from_log(log: &Log) -> Self {
        let mut forced = Self::default();
        for (_, entry) in log.entries() {
            let Action::Force { key, fences } = &entry.action else {
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
            // For each, the earliest among it and those that took effect later.
            let mut earliest = Duration::MAX;
            for forced in of_key.iter_mut().rev() {
                earliest = earliest.min(forced.sent);
                forced.sent = earliest;
            }
        }
        forced
    }

    /// When a lease may have been ended at the earliest: any force-release that took effect after it was requested may have ended it.
    fn end_of(&self, lease: &KnownLease<'_>) -> Duration {
        let ends = lease.keys.iter().flat_map(|key| {
            let of_fence = self.fences.get(&(*key, lease.fence)).copied();
            let of_key = self.keys.get(key).and_then(|all| {
                let first = all.partition_point(|forced| forced.by <= lease.requested);
                all.get(first).map(|forced| forced.sent)
            });
            [of_fence, of_key].into_iter().flatten()
        });
        ends.min().unwrap_or(Duration::MAX)
    }
}
