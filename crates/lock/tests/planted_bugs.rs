//! The contract suite finds faults: a store with a bug of choice, each of which some case has to catch.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use forrst_lock::contract::CASES;
use forrst_lock::contract::model::{Pace, behaves_like_the_model};
use forrst_lock::state::{
    Abandon, Acquire, Acquired, Command, Extend, ForceRelease, Holder, Release, Settle, State, step,
};
use forrst_lock::{
    Answer, Capabilities, Fence, Lease, ListError, ListRequest, LockName, LockStatus, LockStore,
    NotHeld, Owner, Page, ReleaseMemory, Settled, StoreError, Ticket, Timestamp, Ttl, Waiter,
    Waiting, Wake,
};
use tokio::time::Instant;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bug {
    None,
    ReleaseWithoutOwnerCheck,
    ReleaseIgnoresTheFence,
    ReleaseTakesTheNext,
    FencePerProcess,
    ExtendRevives,
    ExtendAdds,
    ExpiryOffByOne,
    LostWakeUp,
    EveryoneIsWoken,
    TombstoneKeptTooLong,
    NoTombstone,
    ContenderClearsTheHolder,
    Reentrant,
    AbandonDoesNothing,
    AbandonForgetsTheLease,
    GoneWaiterKeepsTheLock,
    QueueWithoutLimit,
    ReleasedOnlyWhileFree,
    ForgetsThatItWasForced,
    OnlyTheLastReleaseRemembered,
    ForceReleaseIgnoresTheFence,
}

/// Bugs, and a case that must catch each.
const PLANTED: &[(Bug, &str)] = &[
    (Bug::ReleaseWithoutOwnerCheck, "only_the_owner_releases"),
    (
        Bug::ReleaseIgnoresTheFence,
        "a_late_release_leaves_the_successor_alone",
    ),
    (
        Bug::ReleaseTakesTheNext,
        "what_comes_for_an_expired_lease_leaves_the_next_alone",
    ),
    (Bug::FencePerProcess, "fences_grow_with_every_grant"),
    (Bug::ExtendRevives, "extend_never_revives"),
    (Bug::ExtendAdds, "extend_replaces_the_remaining_time"),
    (Bug::ExpiryOffByOne, "a_lease_ends_at_its_expiry"),
    (Bug::LostWakeUp, "waiters_are_served_in_arrival_order"),
    (Bug::EveryoneIsWoken, "a_release_wakes_one_waiter_only"),
    (
        Bug::TombstoneKeptTooLong,
        "a_release_is_forgotten_after_a_while",
    ),
    (Bug::NoTombstone, "a_second_release_says_so"),
    (
        Bug::ContenderClearsTheHolder,
        "a_refused_contender_changes_nothing",
    ),
    (Bug::Reentrant, "held_is_held_also_for_its_own_owner"),
    (
        Bug::AbandonDoesNothing,
        "whoever_gives_up_waiting_leaves_the_queue",
    ),
    (
        Bug::AbandonForgetsTheLease,
        "a_grant_that_is_given_up_goes_to_the_next",
    ),
    (
        Bug::GoneWaiterKeepsTheLock,
        "a_waiter_that_is_gone_is_passed_by",
    ),
    (Bug::QueueWithoutLimit, "a_full_queue_refuses"),
    (
        Bug::ReleasedOnlyWhileFree,
        "a_released_owner_learns_so_whoever_holds_the_lock_now",
    ),
    (
        Bug::ForgetsThatItWasForced,
        "a_forced_release_says_so_to_the_old_holder",
    ),
    (
        Bug::OnlyTheLastReleaseRemembered,
        "the_last_sixteen_releases_are_remembered",
    ),
    (
        Bug::ForceReleaseIgnoresTheFence,
        "force_release_of_a_fence_spares_the_successor",
    ),
];

/// In the model test nobody vanishes without giving up.
const INVISIBLE_TO_THE_MODEL: &[Bug] = &[Bug::GoneWaiterKeepsTheLock];

#[test]
fn without_a_bug_every_case_passes() {
    assert_eq!(failing_cases(Bug::None), [""; 0]);
    behaves_like_the_model(async |_| (store(Bug::None), ()), Pace::PAUSED);
}

#[test]
fn the_suite_catches_every_planted_bug() {
    for (bug, case) in PLANTED {
        let failing = failing_cases(*bug);
        assert!(failing.contains(case), "{bug:?} is caught by {failing:?}");
    }
}

#[test]
fn the_model_test_catches_planted_bugs() {
    for (bug, _) in PLANTED {
        let caught = quietly(|| behaves_like_the_model(async |_| (store(*bug), ()), Pace::PAUSED));
        let expected = !INVISIBLE_TO_THE_MODEL.contains(bug);
        assert_eq!(caught, expected, "{bug:?}");
    }
}

fn failing_cases(bug: Bug) -> Vec<&'static str> {
    let fails = |case: forrst_lock::contract::Case| {
        quietly(|| {
            let mut builder = tokio::runtime::Builder::new_current_thread();
            let runtime = builder.enable_all().start_paused(true).build().unwrap();
            // A bug may also make a case wait for ever; a day of paused time is over in no time.
            let day = Duration::from_secs(86_400);
            let in_time =
                runtime.block_on(async { tokio::time::timeout(day, case(store(bug))).await });
            in_time.expect("a case must end");
        })
    };
    CASES
        .iter()
        .filter(|(_, case)| fails(*case))
        .map(|(name, _)| *name)
        .collect()
}

/// Whether it panics.
fn quietly(check: impl FnOnce() + Send) -> bool {
    std::thread::scope(|scope| {
        // The test harness shows what a test's own thread prints; the panics of this one are wanted.
        let thread = std::thread::Builder::new().spawn_scoped(scope, check);
        thread.unwrap().join().is_err()
    })
}

fn store(bug: Bug) -> Arc<dyn LockStore> {
    Arc::new(BuggyStore {
        bug,
        started: Instant::now(),
        inner: Mutex::default(),
    })
}

/// The simplest store there is, with a switch for each bug.
#[derive(Debug)]
struct BuggyStore {
    bug: Bug,
    started: Instant,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    keys: HashMap<LockName, State<Waiter>>,
    last_fence: u64,
    grants: u64,
    released: HashSet<(LockName, Owner)>,
    unreachable: Vec<Waiter>,
}

impl BuggyStore {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(1_000_000) + self.started.elapsed()
    }

    fn run<C: Command<Waiter>>(&self, name: &LockName, command: C) -> Answer<C::Outcome> {
        let now = self.now();
        let ends_now = self
            .lease(name)
            .is_some_and(|lease| lease.expires_at == now);
        let late = u64::from(self.bug == Bug::ExpiryOffByOne && ends_now);
        self.run_at(
            name,
            command,
            Timestamp::from_millis(now.as_millis() - late),
        )
    }

    fn run_at<C: Command<Waiter>>(
        &self,
        name: &LockName,
        command: C,
        now: Timestamp,
    ) -> Answer<C::Outcome> {
        let mut inner = self.inner.lock().unwrap();
        let Inner {
            keys,
            last_fence,
            grants,
            unreachable,
            ..
        } = &mut *inner;
        let mut mint = || {
            *grants += 1;
            *last_fence += 1;
            if self.bug == Bug::FencePerProcess && *grants % 3 == 0 {
                *last_fence = 1;
            }
            Fence::new(*last_fence)
        };
        let state = keys
            .entry(name.clone())
            .or_insert_with(|| State::new(name.clone()));
        let done = step(state, command, now, ReleaseMemory::default(), &mut mint);
        let mut to_tell = done.woken;
        while let Some(woken) = to_tell.pop() {
            let granted = match &woken.wake {
                Wake::Granted(lease) => Some(lease.clone()),
                _ => None,
            };
            if granted.is_some() && self.bug == Bug::LostWakeUp {
                unreachable.push(woken.waiter);
                continue;
            }
            let is_gone = !woken.waiter.wake(woken.wake);
            let Some(lease) = granted else { continue };
            if is_gone && self.bug != Bug::GoneWaiterKeepsTheLock {
                let ticket = woken.ticket;
                let memory = ReleaseMemory::default();
                to_tell.extend(step(state, Abandon { ticket }, now, memory, &mut mint).woken);
            } else if self.bug == Bug::EveryoneIsWoken {
                // As with a broadcast: the next one wakes up, too, finds it held, and would have to queue again.
                *state = held(lease, woken.ticket);
            }
        }
        if self.bug == Bug::NoTombstone {
            state.forget_releases();
        }
        if self.bug == Bug::OnlyTheLastReleaseRemembered
            && state.waiters() == 0
            && let [.., last] = state.releases()
        {
            let last = vec![last.clone()];
            *state = State::restored(name.clone(), state.holder().cloned(), last);
        }
        Answer {
            outcome: done.outcome,
            now,
            expired: done.expired,
        }
    }

    /// What a store says that remembers releases wrongly.
    fn misremembered(
        &self,
        name: &LockName,
        outcome: Result<Lease, NotHeld>,
    ) -> Result<Lease, NotHeld> {
        match (self.bug, outcome) {
            (Bug::ReleasedOnlyWhileFree, Err(NotHeld::AlreadyReleased { .. }))
                if self.lease(name).is_some() =>
            {
                Err(NotHeld::OwnedByAnother)
            }
            (Bug::ForgetsThatItWasForced, Err(NotHeld::AlreadyReleased { .. })) => {
                Err(NotHeld::AlreadyReleased { forced: false })
            }
            (_, outcome) => outcome,
        }
    }

    fn lease(&self, name: &LockName) -> Option<Lease> {
        let inner = self.inner.lock().unwrap();
        inner.keys.get(name).and_then(State::lease).cloned()
    }
}

#[async_trait]
impl LockStore for BuggyStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            durable: false,
            shared: false,
            notifies: false,
            release_memory: ReleaseMemory::default(),
        }
    }

    fn secret(&self) -> forrst_lock::Secret {
        forrst_lock::Secret::from_bytes([0; 32])
    }

    async fn acquire(
        &self,
        name: &LockName,
        mut command: Acquire<Waiter>,
    ) -> Result<Answer<Acquired>, StoreError> {
        let held = self.lease(name).filter(|lease| lease.is_live(self.now()));
        if let (Bug::Reentrant, Some(lease)) = (self.bug, &held)
            && lease.owner == command.claim.owner
        {
            let lease = lease.clone();
            let mut answer = self.run(name, command);
            answer.outcome = Acquired::Granted(lease);
            return Ok(answer);
        }
        if let (Bug::QueueWithoutLimit, Some(wait)) = (self.bug, &mut command.wait) {
            wait.max_ahead = usize::MAX;
        }
        let answer = self.run(name, command);
        if self.bug == Bug::ContenderClearsTheHolder
            && matches!(answer.outcome, Acquired::Held { .. })
        {
            self.inner.lock().unwrap().keys.remove(name);
        }
        Ok(answer)
    }

    fn abandon(&self, name: &LockName, ticket: Ticket) {
        match self.bug {
            Bug::AbandonDoesNothing => {}
            Bug::AbandonForgetsTheLease => {
                let before = self.lease(name);
                let answer = self.run(name, Abandon { ticket });
                if let (forrst_lock::state::Abandoned::Returned(_), Some(lease)) =
                    (answer.outcome, before)
                {
                    let state = held(lease, ticket);
                    self.inner.lock().unwrap().keys.insert(name.clone(), state);
                }
            }
            _ => drop(self.run(name, Abandon { ticket })),
        }
    }

    async fn release(
        &self,
        name: &LockName,
        mut command: Release,
    ) -> Result<Answer<Result<Lease, NotHeld>>, StoreError> {
        if let (Bug::ReleaseWithoutOwnerCheck, Some(lease)) = (self.bug, self.lease(name)) {
            command.owner = lease.owner;
            command.fence = None;
        }
        if self.bug == Bug::ReleaseIgnoresTheFence {
            command.fence = None;
        }
        if self.bug == Bug::ReleaseTakesTheNext {
            self.run(name, Settle);
        }
        let who = (name.clone(), command.owner.clone());
        let mut answer = self.run(name, command);
        let mut inner = self.inner.lock().unwrap();
        match answer.outcome {
            Ok(_) => drop(inner.released.insert(who)),
            Err(NotHeld::NotFound)
                if self.bug == Bug::TombstoneKeptTooLong && inner.released.contains(&who) =>
            {
                answer.outcome = Err(NotHeld::AlreadyReleased { forced: false });
            }
            Err(_) => {}
        }
        drop(inner);
        answer.outcome = self.misremembered(name, answer.outcome);
        Ok(answer)
    }

    async fn extend(
        &self,
        name: &LockName,
        mut command: Extend,
    ) -> Result<Answer<Result<Lease, NotHeld>>, StoreError> {
        let now = self.now();
        if let Some(lease) = self.lease(name) {
            let left = lease.expires_at.remaining(now);
            if self.bug == Bug::ExtendAdds {
                command.ttl = Ttl::new(command.ttl.as_duration() + left).unwrap();
            }
            if self.bug == Bug::ExtendRevives && left.is_zero() {
                let before = Timestamp::from_millis(lease.expires_at.as_millis() - 1);
                let ttl = command.ttl.as_duration() + now.remaining(before);
                command.ttl = Ttl::new(ttl).unwrap();
                return Ok(self.run_at(name, command, before));
            }
        }
        let mut answer = self.run(name, command);
        answer.outcome = self.misremembered(name, answer.outcome);
        Ok(answer)
    }

    async fn force_release(
        &self,
        name: &LockName,
        mut command: ForceRelease,
    ) -> Result<Answer<Result<Lease, NotHeld>>, StoreError> {
        if self.bug == Bug::ForceReleaseIgnoresTheFence {
            command.fence = None;
        }
        Ok(self.run(name, command))
    }

    async fn settle(&self, name: &LockName) -> Result<Answer<Settled>, StoreError> {
        let Answer { now, expired, .. } = self.run(name, Settle);
        let inner = self.inner.lock().unwrap();
        let state = &inner.keys[name];
        let outcome = Settled {
            expires_at: state.lease().map(|lease| lease.expires_at),
            waiters: state.waiters(),
        };
        Ok(Answer {
            outcome,
            now,
            expired,
        })
    }

    async fn inspect(&self, name: &LockName) -> Result<Answer<Option<LockStatus>>, StoreError> {
        let now = self.now();
        let inner = self.inner.lock().unwrap();
        let state = inner.keys.get(name);
        Ok(Answer {
            outcome: state.and_then(|state| status(state, now)),
            now,
            expired: None,
        })
    }

    async fn queue(
        &self,
        name: &LockName,
        limit: usize,
    ) -> Result<Answer<Vec<Waiting>>, StoreError> {
        let inner = self.inner.lock().unwrap();
        let waiting = inner.keys.get(name).into_iter().flat_map(State::queue);
        Ok(Answer {
            outcome: waiting.take(limit).collect(),
            now: self.now(),
            expired: None,
        })
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, ListError> {
        let (after, now) = (request.after()?, self.now());
        let inner = self.inner.lock().unwrap();
        let mut locks: Vec<LockStatus> = inner
            .keys
            .iter()
            .filter(|(name, _)| name.as_str().starts_with(&request.prefix))
            .filter(|(name, _)| after.as_ref().is_none_or(|after| *name > after))
            .filter_map(|(_, state)| status(state, now))
            .collect();
        locks.sort_by(|a, b| a.lease.name.cmp(&b.lease.name));
        Ok(Page::cut(locks, request.limit, now))
    }

    async fn expire(&self, limit: usize) -> Result<Vec<Lease>, StoreError> {
        let now = self.now();
        let due: Vec<LockName> = {
            let inner = self.inner.lock().unwrap();
            let leases = inner.keys.values().filter_map(State::lease);
            let due = leases.filter(|lease| !lease.is_live(now));
            due.map(|lease| lease.name.clone()).take(limit).collect()
        };
        let settled = due.iter().filter_map(|name| self.run(name, Settle).expired);
        Ok(settled.collect())
    }

    async fn health(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

fn held(lease: Lease, ticket: Ticket) -> State<Waiter> {
    let holder = Holder {
        lease,
        attempt: None,
        ticket: Some(ticket),
    };
    State::restored(holder.lease.name.clone(), Some(holder), Vec::new())
}

fn status(state: &State<Waiter>, now: Timestamp) -> Option<LockStatus> {
    let lease = state.lease().filter(|lease| lease.is_live(now))?;
    Some(LockStatus {
        lease: lease.clone(),
        waiters: state.waiters(),
    })
}
