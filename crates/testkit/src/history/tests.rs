//! Histories written by hand, each with the expected violations. Times are milliseconds.

mod live;
mod written;

use std::time::Duration;

use super::Sharing;
use super::check::{check, nothing_stuck};
use super::log::{Action, Log, OperationId, Outcome};
use super::report::{Rule, Violations};

fn ms(time: u64) -> Duration {
    Duration::from_millis(time)
}

/// A history that is written by hand.
#[derive(Default)]
struct TestHistory(Log);

/// When a lease was requested, answered, and lasts until if nothing more is done.
type Times = (u64, u64, u64);

impl TestHistory {
    fn exclusive(&mut self, owner: &str, fence: u64, times: Times) -> OperationId {
        self.lease(owner, &["a"], Sharing::Exclusive, fence, times)
    }

    fn lease(
        &mut self,
        owner: &str,
        keys: &[&str],
        sharing: Sharing,
        fence: u64,
        (requested, answered, until): Times,
    ) -> OperationId {
        let id = self.request(owner, keys, sharing, requested);
        let until = ms(until);
        self.end(id, answered, Outcome::Granted { fence, until });
        id
    }

    fn request(&mut self, owner: &str, keys: &[&str], sharing: Sharing, at: u64) -> OperationId {
        let keys = keys.iter().map(|key| self.0.key((*key).to_owned()));
        let keys = keys.collect();
        self.0
            .begin(ms(at), owner, Action::Acquire { keys, sharing })
    }

    fn end(&mut self, id: OperationId, at: u64, outcome: Outcome) {
        self.0.end(id, ms(at), outcome);
    }

    fn release(&mut self, of: OperationId, sent: u64, answered: u64, outcome: Outcome) {
        let id = self.0.begin(ms(sent), "", Action::Release { of });
        self.end(id, answered, outcome);
    }

    fn extend(&mut self, of: OperationId, sent: u64, ttl: u64, answered: u64, outcome: Outcome) {
        let ttl = ms(ttl);
        let id = self.0.begin(ms(sent), "", Action::Extend { of, ttl });
        self.end(id, answered, outcome);
    }

    fn extended(&mut self, of: OperationId, sent: u64, ttl: u64, answered: u64) {
        let until = ms(sent + ttl);
        self.extend(of, sent, ttl, answered, Outcome::Extended { until });
    }

    fn force(&mut self, key: &str, fences: &[u64], sent: u64) -> OperationId {
        let key = self.0.key(key.to_owned());
        let fences = fences.to_vec();
        self.0
            .begin(ms(sent), "operator", Action::Force { key, fences })
    }

    fn forced(&mut self, key: &str, fences: &[u64], sent: u64, answered: u64) {
        let id = self.force(key, fences, sent);
        self.end(id, answered, Outcome::Released);
    }

    /// The rules that are broken, and by which fences.
    fn broken(&self) -> Vec<(Rule, Vec<u64>)> {
        rules(check(&self.0).map(drop))
    }

    #[track_caller]
    fn is_good(&self) {
        check(&self.0).unwrap();
    }

    #[track_caller]
    fn is_bad(&self, rule: Rule, earlier: u64, later: u64) {
        assert_eq!(self.broken(), [(rule, vec![earlier, later])]);
    }

    fn stuck(&self) -> Vec<Rule> {
        let found = rules(nothing_stuck(&self.0));
        found.into_iter().map(|(rule, _)| rule).collect()
    }
}

fn rules(verdict: Result<(), Violations>) -> Vec<(Rule, Vec<u64>)> {
    let Err(violations) = verdict else {
        return Vec::new();
    };
    let found = violations.iter();
    found
        .map(|violation| (violation.rule, violation.fences.clone()))
        .collect()
}
