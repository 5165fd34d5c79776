//! The requests and answers of all callers, and a check that a correct store can have given these answers.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use crate::crash::lease::Lease;
use crate::crash::operation::{Action, Operation, Outcome};
use forrst_testkit::{Lock, Shown};

pub(crate) struct History {
    pub(crate) locks: Vec<Lock>,
    began: Instant,
    /// By lock, in the order in which they were sent.
    operations: Vec<Vec<Operation>>,
    /// How often a server was started.
    pub(crate) starts: usize,
    /// The last of these starts under load. Unanswered requests from before it have been decided since.
    loaded: usize,
    /// The fences of each lock.
    fences: Vec<BTreeSet<u64>>,
    /// The highest fence of each lock that was known when the server was started last.
    highest_before: Vec<u64>,
    pub(crate) acknowledged: usize,
    /// Leases that were found after a crash, and whose grant was not answered.
    pub(crate) adopted: usize,
}

type Checked<T = ()> = Result<T, String>;

impl History {
    pub(crate) fn new(locks: Vec<Lock>) -> Self {
        Self {
            operations: vec![Vec::new(); locks.len()],
            fences: vec![BTreeSet::new(); locks.len()],
            highest_before: vec![0; locks.len()],
            locks,
            began: Instant::now(),
            starts: 0,
            loaded: 0,
            acknowledged: 0,
            adopted: 0,
        }
    }

    /// Adds operations of callers.
    pub(crate) fn add(&mut self, operations: Vec<Operation>) -> Checked {
        self.loaded = self.starts;
        for operation in operations {
            let lock = operation.lock;
            if !operation.is_unanswered() {
                self.acknowledged += 1;
            }
            let granted = match &operation.outcome {
                Outcome::Granted(shown) => Some(shown.fence),
                _ => None,
            };
            self.operations[lock].push(operation);
            if let Some(fence) = granted {
                self.note_fence(lock, fence)?;
            }
        }
        for operations in &mut self.operations {
            operations.sort_by_key(|operation| operation.span.from);
        }
        Ok(())
    }

    /// Checks that the fences of a lock grow. Whether one fence is shown for two leases is checked with the leases.
    fn note_fence(&mut self, lock: usize, fence: u64) -> Checked {
        let is_new = self.fences[lock].insert(fence);
        let before = self.highest_before[lock];
        if is_new && fence <= before {
            let what =
                format!("fence {fence} is not above {before}, which was there before the crash");
            return Err(self.wrong(lock, &what));
        }
        Ok(())
    }

    /// To be called when all locks were checked after a crash: from now on, fences are above all that are known.
    pub(crate) fn set_baseline(&mut self) {
        let highest = |fences: &BTreeSet<u64>| fences.last().copied().unwrap_or_default();
        self.highest_before = self.fences.iter().map(highest).collect();
    }

    /// Adds a status from after a crash.
    ///
    /// If it shows a lease whose grant was not answered, returns the request that must have brought it.
    pub(crate) fn observe(&mut self, status: Operation) -> Checked<Option<Operation>> {
        let lock = status.lock;
        let mut adopted = None;
        if let Outcome::Held { shown, acquired_at } = &status.outcome
            && !self.fences[lock].contains(&shown.fence)
        {
            adopted = Some(self.adopt(lock, shown.clone(), *acquired_at)?);
        }
        self.operations[lock].push(status);
        self.check(lock)?;
        Ok(adopted)
    }

    /// A lease whose grant was not answered: a request just before the last crash must have brought it.
    fn adopt(&mut self, lock: usize, shown: Shown, acquired_at: u64) -> Checked<Operation> {
        let lasts = Duration::from_millis(shown.expires_at - acquired_at);
        let loaded = self.loaded;
        let asked = self.operations[lock].iter_mut().rfind(|operation| {
            operation.is_unanswered()
                && operation.start == loaded
                && operation.owner == shown.owner
                && operation.ttl() == Some(lasts)
        });
        let Some(asked) = asked else {
            let what = format!("no request asked for {shown:?}, for {lasts:?}");
            return Err(self.wrong(lock, &what));
        };
        if let Action::Call { ttl } = asked.action {
            asked.action = Action::Hold { ttl };
        }
        let fence = shown.fence;
        asked.outcome = Outcome::Granted(shown);
        let asked = asked.clone();
        self.adopted += 1;
        self.note_fence(lock, fence)?;
        Ok(asked)
    }

    /// Checks that all that is known about a lock can be true at once.
    fn check(&self, lock: usize) -> Checked {
        let leases = self.leases(lock);
        let leases = leases.map_err(|what| self.wrong(lock, &what))?;
        let mut earlier: Option<(Instant, Instant)> = None;
        for lease in &leases {
            let (fence, ends, slack) = (lease.shown.fence, lease.ends(), self.slack(lease));
            let granted = lease.granted;
            let what = match (lease.found_gone, earlier) {
                (Some(by), _) if by + slack < ends.from => "was lost before its end",
                _ if lease.seen > ends.to + slack => "was held after its end",
                (_, Some((_, sent))) if granted.to < sent => {
                    "was granted before one with a lower fence was asked for"
                }
                (_, Some((end, _))) if granted.to + slack < end => {
                    "was granted while the one before it was live"
                }
                _ => {
                    let (end, sent) = earlier.unwrap_or((ends.from, granted.from));
                    earlier = Some((end.max(ends.from), sent.max(granted.from)));
                    continue;
                }
            };
            let what = format!("the lease with fence {fence} {what}");
            return Err(self.wrong(lock, &what));
        }
        Ok(())
    }

    /// All known leases of a lock by their fences.
    pub(crate) fn leases(&self, lock: usize) -> Checked<Vec<Lease>> {
        let mut leases: BTreeMap<u64, Lease> = BTreeMap::new();
        for operation in &self.operations[lock] {
            self.apply(operation, &mut leases)?;
        }
        let mut leases: Vec<Lease> = leases.into_values().collect();
        for operation in &self.operations[lock] {
            leases
                .iter_mut()
                .for_each(|lease| apply_end(lease, operation));
        }
        Ok(leases)
    }

    /// Applies one operation to the leases: grants, extensions, and observations.
    fn apply(&self, operation: &Operation, leases: &mut BTreeMap<u64, Lease>) -> Checked {
        let Operation { span, start, .. } = *operation;
        let known = "only granted leases are released or extended";
        match (&operation.action, &operation.outcome) {
            (_, Outcome::Granted(shown)) => {
                if let Some(lease) = leases.get_mut(&shown.fence) {
                    let slack = self.slack(lease);
                    lease.see(span.from);
                    return lease.is_shown(shown, None, slack);
                }
                if shown.owner != operation.owner {
                    return Err(format!("{} was given {shown:?}", operation.owner));
                }
                let ttl = operation
                    .ttl()
                    .expect("only requests with a ttl are granted");
                let lease = Lease::granted(shown.clone(), start, ttl, span);
                leases.insert(shown.fence, lease);
            }
            (Action::Extend { fence, ttl }, outcome) => {
                let lease = leases.get_mut(fence).expect(known);
                let slack = self.slack(lease);
                match outcome {
                    Outcome::Extended { expires_at } => {
                        lease.see(span.from);
                        lease.extended(*expires_at, *ttl, span, slack)?;
                    }
                    Outcome::Unanswered => lease.may_be_extended(*ttl, span),
                    _ => {}
                }
            }
            (Action::Release { fence }, Outcome::Released) => {
                leases.get_mut(fence).expect(known).see(span.from);
            }
            (_, Outcome::Held { shown, acquired_at }) => {
                let lease = leases.get_mut(&shown.fence).expect(known);
                let slack = self.slack(lease);
                lease.see(span.from);
                lease.is_shown(shown, Some(*acquired_at), slack)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// The imprecision of times: the store counts whole milliseconds, and rounds them again at each start.
    pub(crate) fn slack(&self, lease: &Lease) -> Duration {
        let starts = u32::try_from(self.starts - lease.start).unwrap();
        Duration::from_millis(2) * (1 + starts)
    }

    /// The release of the last lease of a lock, if no unanswered request can have been carried out since.
    pub(crate) fn last_release(&self, lock: usize) -> Option<(&Operation, u64)> {
        let last = self.leases(lock).ok()?.pop()?;
        let fence = last.shown.fence;
        let operations = &self.operations[lock];
        let is_known =
            |operation: &Operation| !operation.is_unanswered() || operation.start < last.start;
        let release = operations.iter().find(|operation| {
            operation.action == Action::Release { fence } && operation.outcome == Outcome::Released
        })?;
        operations.iter().all(is_known).then_some((release, fence))
    }

    /// The message about a violation, with all operations on the lock.
    fn wrong(&self, lock: usize, what: &str) -> String {
        let name = self.locks[lock].full_key();
        let mut text = format!("{name}: {what}\n");
        let time = |at: Instant| at.saturating_duration_since(self.began).as_secs_f64();
        for operation in &self.operations[lock] {
            let Operation { start, caller, .. } = operation;
            let (from, to) = (time(operation.span.from), time(operation.span.to));
            let _ = writeln!(
                text,
                "  start {start} caller {caller:2} {from:9.4}-{to:9.4} {:12} {:?} -> {:?}",
                operation.owner, operation.action, operation.outcome
            );
        }
        text
    }
}

/// Applies to a lease that an operation has ended it, may have ended it, or found it ended.
fn apply_end(lease: &mut Lease, operation: &Operation) {
    let span = operation.span;
    let is_before = lease.granted.to <= span.from;
    match (&operation.action, &operation.outcome) {
        // The lock was released before the answer.
        (Action::Call { .. }, Outcome::Granted(shown)) if shown.fence == lease.shown.fence => {
            lease.may_be_closed(span);
            lease.is_closed_by(span.to);
        }
        (Action::Release { fence } | Action::Extend { fence, .. }, Outcome::Gone { .. })
            if *fence == lease.shown.fence =>
        {
            lease.is_found_gone(span.to);
        }
        // An attempt that holds the lock gets it again when it is repeated; so a refusal means that the lease has ended.
        (
            Action::Acquire {
                attempt: Some(_), ..
            },
            Outcome::Refused,
        ) if is_before && operation.owner == lease.shown.owner => {
            lease.is_found_gone(span.to);
        }
        (Action::Release { fence }, Outcome::Released) if *fence == lease.shown.fence => {
            lease.may_be_closed(span);
            lease.is_closed_by(span.to);
        }
        (Action::Release { fence }, Outcome::Unanswered) if *fence == lease.shown.fence => {
            lease.may_be_closed(span);
        }
        (Action::ForceRelease, Outcome::Released | Outcome::Unanswered)
            if lease.granted.from <= span.to =>
        {
            lease.may_be_closed(span);
            if is_before && operation.outcome == Outcome::Released {
                lease.is_closed_by(span.to);
            }
        }
        (Action::ForceRelease, Outcome::Gone { .. }) | (_, Outcome::Free) if is_before => {
            lease.is_found_gone(span.to);
        }
        (_, Outcome::Held { shown, .. }) if shown.fence > lease.shown.fence => {
            lease.is_closed_by(span.to);
        }
        _ => {}
    }
}
