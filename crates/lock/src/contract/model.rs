//! The model test: random commands and time steps, run on a store and on the model side by side.
//!
//! The store has to give the same answers and end the same waits as the model.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
use tokio::time::{Instant, sleep, timeout};

use super::{WAKE_UP_TIME, WaitingCall, fresh_name, owner, pass_exactly, with_one_tag};
use crate::model::{
    Acquire, Acquired, Claim, Command, Env, Key, Keys, LeaseRef, Outcome, Transition, Wait, Wake,
    Withdrawn, step,
};
use crate::store::{Answer, LockStatus, LockStore};
use crate::{
    Attempt, Fence, Lease, LockName, Locks, NotHeld, ReleaseMemory, Share, StoreError, Ticket,
    Timestamp, Ttl,
};

/// The configuration of the random histories, and of their time.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// How many histories to run.
    pub histories: u32,
    /// The unit of time. Ttls and timeouts are a few of them.
    pub unit: Duration,
    /// Added to every ttl and timeout. With a store that has its own clock it is half a unit, so that no history depends on the
    /// order of simultaneous events; with the paused clock it is zero, so that deadlines are hit exactly.
    pub margin: Duration,
    /// Whether time is tokio's paused clock.
    pub is_paused: bool,
    /// Whether all keys are settled before each command, for a store that does so itself.
    pub is_settled: bool,
    /// Whether the histories are the same in every run.
    pub is_seeded: bool,
    /// Whether all names have one hash tag, which sets in a cluster need.
    pub has_one_tag: bool,
}

impl Pace {
    /// For a store that uses tokio's clock.
    pub const PAUSED: Self = Self {
        histories: 500,
        unit: Duration::from_millis(100),
        margin: Duration::ZERO,
        is_paused: true,
        is_settled: false,
        is_seeded: false,
        has_one_tag: false,
    };
}

/// Failing histories that take time are shrunk for so long at most: a test that is ended meanwhile does not say what has failed.
const SHRINK_TIME: Duration = Duration::from_secs(60);
/// On a machine so slow that histories are late again and again, no further ones are begun after this time.
const RUN_TIME: Duration = Duration::from_secs(120);
/// How long a history that is late waits for a wake-up. The lateness may be the reason why there is none.
const LATE_WAKE_UP_TIME: Duration = Duration::from_secs(1);

/// The number of keys in a history.
const KEYS: usize = 3;

/// An action of a history. Numbers choose among a few keys, owners, attempts, fences and the latest calls.
#[derive(Debug, Clone)]
enum Action {
    Acquire {
        locks: Vec<(usize, Share)>,
        owner: u8,
        attempt: Option<u8>,
        ttl: u8,
        wait: Option<(u8, usize)>,
    },
    /// Repeats the attempt of an earlier call.
    Repeat {
        call: usize,
        wait: Option<(u8, usize)>,
    },
    Abandon {
        call: usize,
    },
    Release {
        key: usize,
        owner: u8,
        fence: Option<usize>,
    },
    Extend {
        key: usize,
        owner: u8,
        fence: Option<usize>,
        ttl: u8,
    },
    ForceRelease {
        key: usize,
        fence: Option<usize>,
    },
    Withdraw {
        key: usize,
        owner: u8,
        attempt: u8,
    },
    Settle {
        key: usize,
    },
    Inspect {
        key: usize,
    },
    Pass {
        units: u32,
    },
}

/// Keys, each with its share.
fn locks() -> impl Strategy<Value = Vec<(usize, Share)>> {
    let limit = |limit| Share::limit(limit).expect("a limit");
    let share = prop_oneof![
        4 => Just(Share::EXCLUSIVE),
        3 => Just(Share::SHARED),
        2 => Just(limit(2)),
        1 => Just(limit(1)),
    ];
    let several = proptest::collection::btree_map(0..KEYS, share.clone(), 1..=KEYS);
    prop_oneof![
        3 => share.prop_map(|share| vec![(0, share)]),
        2 => several.prop_map(|locks| locks.into_iter().collect()),
    ]
}

fn actions(pace: Pace, memory: ReleaseMemory) -> impl Strategy<Value = Vec<Action>> {
    // Until all releases are forgotten, if time is paused.
    let long = if pace.is_paused {
        u32::try_from(memory.as_duration().as_millis() / pace.unit.as_millis()).unwrap_or(1)
    } else {
        1
    };
    let (owner, key) = (0..3_u8, 0..KEYS);
    let fence = || proptest::option::weighted(0.4, 0..8_usize);
    let wait = || proptest::option::weighted(0.7, (1..8_u8, 0..4_usize));
    let acquire = (
        locks(),
        owner.clone(),
        proptest::option::weighted(0.3, 0..2_u8),
        1..6_u8,
        wait(),
    );
    let held = || (key.clone(), owner.clone(), fence());
    let action = prop_oneof![
        8 => acquire.prop_map(|(locks, owner, attempt, ttl, wait)| {
            Action::Acquire { locks, owner, attempt, ttl, wait }
        }),
        3 => (0..4_usize, wait()).prop_map(|(call, wait)| Action::Repeat { call, wait }),
        3 => (0..6_usize).prop_map(|call| Action::Abandon { call }),
        4 => held().prop_map(|(key, owner, fence)| Action::Release { key, owner, fence }),
        3 => (held(), 1..6_u8).prop_map(|((key, owner, fence), ttl)| {
            Action::Extend { key, owner, fence, ttl }
        }),
        2 => (key.clone(), fence()).prop_map(|(key, fence)| Action::ForceRelease { key, fence }),
        1 => (key.clone(), owner.clone(), 0..2_u8).prop_map(|(key, owner, attempt)| {
            Action::Withdraw { key, owner, attempt }
        }),
        2 => key.clone().prop_map(|key| Action::Settle { key }),
        2 => key.clone().prop_map(|key| Action::Inspect { key }),
        4 => (1..4_u32).prop_map(|units| Action::Pass { units }),
        1 => Just(Action::Pass { units: long }),
    ];
    vec(action, 1..30)
}

/// Runs random histories. A failing one is shrunk and printed. Must be called outside of a runtime.
pub fn behaves_like_the_model<K>(
    open: impl AsyncFn(ReleaseMemory) -> (Arc<dyn LockStore>, K),
    pace: Pace,
) {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().start_paused(pace.is_paused).build();
    let runtime = runtime.expect("a runtime");
    let (store, _keep) = runtime.block_on(open(ReleaseMemory::default()));
    let memory = store.capabilities().release_memory;
    let config = Config {
        cases: pace.histories,
        failure_persistence: None,
        max_shrink_iters: if pace.is_seeded { 0 } else { u32::MAX },
        max_shrink_time: match pace.is_paused {
            true => 0,
            false => u32::try_from(SHRINK_TIME.as_millis()).unwrap_or(u32::MAX),
        },
        ..Config::default()
    };
    let mut runner = match pace.is_seeded {
        true => {
            let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
            TestRunner::new_with_rng(config, rng)
        }
        false => TestRunner::new(config),
    };
    let begun = std::time::Instant::now();
    let compared = Cell::new(0);
    let result = runner.run(&actions(pace, memory), |history| {
        if !pace.is_paused && compared.get() > 0 && begun.elapsed() > RUN_TIME {
            return Ok(());
        }
        runtime.block_on(async {
            let mut pair = Pair::new(store.clone(), pace);
            for (index, action) in history.iter().enumerate() {
                pair.act(action).await.map_err(|difference| {
                    let difference = format!("at {index}, {action:?}: {difference}");
                    if pair.is_late() {
                        TestCaseError::reject(difference)
                    } else {
                        TestCaseError::fail(difference)
                    }
                })?;
            }
            compared.set(compared.get() + 1);
            Ok(())
        })
    });
    if let Err(failure) = result {
        panic!("{failure}");
    }
    if compared.get() < pace.histories {
        let (compared, histories) = (compared.get(), pace.histories);
        eprintln!(
            "the machine is too slow: only {compared} of {histories} histories were compared"
        );
    }
}

/// The store and the model, with the state of one history.
struct Pair {
    store: Arc<dyn LockStore>,
    pace: Pace,
    names: [LockName; KEYS],
    model: Model,
    /// The model's time, which only passes by actions.
    now: Timestamp,
    started: Instant,
    /// How much time should have passed since `started`.
    passed: Duration,
    last_fence: u64,
    /// The grants: their keys, and their fences in the model and in the store, which differ but have the same order.
    grants: Vec<(Locks, Fence, Fence)>,
    calls: Vec<(Claim, Ticket, WaitingCall)>,
}

#[derive(Default)]
struct Model(HashMap<LockName, Key>);

impl Keys for Model {
    fn key(&mut self, name: &LockName) -> &mut Key {
        let new = || Key::new(name.clone());
        self.0.entry(name.clone()).or_insert_with(new)
    }
}

type Difference = String;

/// The calls that have to be notified, and how.
type Wakes = Vec<(Ticket, Wake)>;

impl Pair {
    fn new(store: Arc<dyn LockStore>, pace: Pace) -> Self {
        let names = || ["one", "two", "three"].map(fresh_name);
        let names = match pace.has_one_tag {
            true => with_one_tag(names),
            false => names(),
        };
        Self {
            store,
            pace,
            names,
            model: Model::default(),
            now: Timestamp::from_millis(1_000_000),
            started: Instant::now(),
            passed: Duration::ZERO,
            last_fence: 0,
            grants: Vec::new(),
            calls: Vec::new(),
        }
    }

    async fn act(&mut self, action: &Action) -> Result<(), Difference> {
        if self.pace.is_settled {
            let mut wakes = Wakes::new();
            for name in self.names.clone() {
                wakes.append(&mut self.model(&Command::Settle(name.clone())).1);
                outcome(self.store.submit(Command::Settle(name)).await);
            }
            self.same_wakes(wakes).await?;
        }
        match action {
            Action::Pass { units } => {
                let time = self.pace.unit * *units;
                pass_exactly(time).await;
                self.now = self.now + time;
                self.passed += time;
                Ok(())
            }
            Action::Acquire {
                locks,
                owner: who,
                attempt,
                ttl,
                wait,
            } => {
                let locks = locks
                    .iter()
                    .map(|(key, share)| (self.names[*key].clone(), *share));
                let claim = Claim {
                    locks: Locks::new(locks.collect()).expect("a set"),
                    owner: owner(&format!("owner {who}")),
                    caller: None,
                    note: None,
                    attempt: attempt.map(self::attempt),
                    ttl: self.ttl(*ttl),
                };
                self.acquire(claim, *wait).await
            }
            Action::Repeat { call, wait } => match self.calls.iter().nth_back(*call) {
                Some((claim, ..)) => self.acquire(claim.clone(), *wait).await,
                None => Ok(()),
            },
            Action::Abandon { call } => {
                let Some((claim, ticket, _)) = self.calls.iter().nth_back(*call) else {
                    return Ok(());
                };
                let (name, ticket) = (claim.locks.first().clone(), *ticket);
                self.store.abandon(&name, ticket);
                let (_, wakes) = self.model(&Command::Abandon { name, ticket });
                self.abandoned().await;
                self.same_wakes(wakes).await
            }
            Action::Release {
                key,
                owner: who,
                fence,
            } => {
                let [model, store] = self.lease_refs(*key, *who, *fence);
                self.both(Command::Release(model), Command::Release(store))
                    .await
            }
            Action::Extend {
                key,
                owner: who,
                fence,
                ttl,
            } => {
                let ttl = self.ttl(*ttl);
                let [model, store] = self.lease_refs(*key, *who, *fence);
                self.both(Command::Extend(model, ttl), Command::Extend(store, ttl))
                    .await
            }
            Action::ForceRelease { key, fence } => {
                let command = |fence: Option<Fence>| Command::ForceRelease {
                    name: self.names[*key].clone(),
                    fences: fence.into_iter().collect(),
                };
                let (model, store) = self.fence(*key, *fence).unzip();
                let (model, store) = (command(model), command(store));
                self.both(model, store).await
            }
            Action::Withdraw {
                key,
                owner: who,
                attempt,
            } => {
                let command = Command::Withdraw {
                    name: self.names[*key].clone(),
                    owner: owner(&format!("owner {who}")),
                    attempt: self::attempt(*attempt),
                };
                self.both(command.clone(), command).await
            }
            Action::Settle { key } => {
                let command = Command::Settle(self.names[*key].clone());
                self.both(command.clone(), command).await
            }
            Action::Inspect { key } => {
                let name = self.names[*key].clone();
                let expected = LockStatus::new(self.model.key(&name), self.now);
                let actual = outcome(self.store.inspect(&name).await);
                self.same_status(&expected, &actual)
            }
        }
    }

    async fn acquire(&mut self, claim: Claim, wait: Option<(u8, usize)>) -> Result<(), Difference> {
        let ticket = Ticket::random();
        let call = WaitingCall::subscribe(&*self.store, ticket);
        self.calls.push((claim.clone(), ticket, call));
        let command = Command::Acquire(Acquire {
            claim,
            ticket,
            node: None,
            wait: wait.map(|(patience, max_queue)| Wait {
                timeout: self.ttl(patience).as_duration(),
                max_queue,
                rejoin: None,
            }),
        });
        self.both(command.clone(), command).await
    }

    /// Runs a command on both sides, each with its own fences.
    async fn both(&mut self, on_model: Command, on_store: Command) -> Result<(), Difference> {
        let (expected, wakes) = self.model(&on_model);
        let actual = outcome(self.store.submit(on_store).await);
        self.same_outcome(&expected, &actual)?;
        self.same_wakes(wakes).await
    }

    fn same_outcome(&mut self, expected: &Outcome, actual: &Outcome) -> Result<(), Difference> {
        match (expected, actual) {
            (Outcome::Acquired(expected), Outcome::Acquired(actual)) => match (expected, actual) {
                (Acquired::Granted(expected), Acquired::Granted(actual)) => {
                    self.same_lease(expected, actual)
                }
                (Acquired::Held(expected), Acquired::Held(actual))
                | (Acquired::QueueFull(expected), Acquired::QueueFull(actual))
                | (
                    Acquired::Queued {
                        obstacle: expected, ..
                    },
                    Acquired::Queued {
                        obstacle: actual, ..
                    },
                ) if expected.blocked_by == actual.blocked_by => Ok(()),
                (expected, actual) if expected == actual => Ok(()),
                (expected, actual) => differ(expected, actual),
            },
            (Outcome::Lease(expected), Outcome::Lease(actual)) => {
                self.same_result(expected.as_ref(), actual.as_ref())
            }
            (Outcome::Forced(Ok(expected)), Outcome::Forced(Ok(actual)))
                if expected.len() == actual.len() =>
            {
                let mut pairs = expected.iter().zip(actual);
                pairs.try_for_each(|(expected, actual)| self.same_lease(expected, actual))
            }
            (
                Outcome::Withdrawn(Withdrawn::Held(expected)),
                Outcome::Withdrawn(Withdrawn::Held(actual)),
            ) => self.same_lease(expected, actual),
            (Outcome::Settled(expected), Outcome::Settled(actual))
                if expected.waiters == actual.waiters =>
            {
                Ok(())
            }
            (expected, actual) if expected == actual => Ok(()),
            (expected, actual) => differ(expected, actual),
        }
    }

    /// Whether the machine has stalled for so long that a lease may have expired that is live in the model.
    fn is_late(&self) -> bool {
        !self.pace.is_paused && self.started.elapsed() > self.passed + self.pace.margin
    }

    fn model(&mut self, command: &Command) -> (Outcome, Wakes) {
        let last_fence = &mut self.last_fence;
        let mut mint = |_: &Locks| {
            *last_fence += 1;
            Fence::new(*last_fence)
        };
        let memory = self.store.capabilities().release_memory;
        let mut env = Env::single_node(self.now, &mut mint, memory);
        let mut transitions = Vec::new();
        let outcome = step(&mut self.model, command, &mut env, &mut transitions);
        let wakes = transitions.into_iter().filter_map(|it| match it {
            Transition::Woken { call, wake } => Some((call.ticket, wake)),
            _ => None,
        });
        (outcome, wakes.collect())
    }

    /// The store notifies the same calls as the model, in the same way, and no others.
    async fn same_wakes(&mut self, wakes: Wakes) -> Result<(), Difference> {
        let patience = match self.is_late() {
            true => LATE_WAKE_UP_TIME,
            false => WAKE_UP_TIME,
        };
        for (ticket, wake) in wakes {
            let call = self.calls.iter_mut().find(|(_, it, _)| *it == ticket);
            let (_, _, call) = call.ok_or("the model has woken an unknown call")?;
            let received = timeout(patience, &mut call.wake).await;
            if received.is_err() {
                self.passed += patience;
            }
            let received = received.map(|received| received.map(|(wake, _)| wake));
            match (wake, received) {
                (Wake::Granted(expected), Ok(Ok(Wake::Granted(actual)))) => {
                    self.same_lease(&expected, &actual)?;
                }
                // What blocks it depends on which expired leases have been ended, and that may differ.
                (Wake::TimedOut(_), Ok(Ok(Wake::TimedOut(_)))) => {}
                (expected, Ok(Ok(actual))) if expected == actual => {}
                (expected, received) => return differ(&expected, &received),
            }
        }
        for (number, (_, _, call)) in self.calls.iter_mut().enumerate() {
            if let Some(received) = call.try_recv() {
                return Err(format!(
                    "call {number} should still wait, but received {received:?}"
                ));
            }
        }
        Ok(())
    }

    fn same_status(
        &mut self,
        expected: &LockStatus,
        actual: &LockStatus,
    ) -> Result<(), Difference> {
        let shape = |status: &LockStatus| (status.kind, status.holder_count);
        if shape(expected) != shape(actual) {
            return differ(expected, actual);
        }
        let mut pairs = expected.holders.iter().zip(&actual.holders);
        pairs.try_for_each(|(expected, actual)| self.same_lease(expected, actual))
    }

    fn same_result(
        &mut self,
        expected: Result<&Lease, &NotHeld>,
        actual: Result<&Lease, &NotHeld>,
    ) -> Result<(), Difference> {
        match (expected, actual) {
            (Ok(expected), Ok(actual)) => self.same_lease(expected, actual),
            (Err(expected), Err(actual)) if expected == actual => Ok(()),
            (expected, actual) => differ(&expected, &actual),
        }
    }

    fn same_lease(&mut self, expected: &Lease, actual: &Lease) -> Result<(), Difference> {
        let lasts = |lease: &Lease| lease.expires_at.remaining(lease.acquired_at);
        let drift = lasts(expected).abs_diff(lasts(actual));
        let is_alike = expected.owner == actual.owner && expected.locks == actual.locks;
        if !is_alike || drift > self.pace.margin {
            return differ(expected, actual);
        }
        let known = self
            .grants
            .iter()
            .find(|(_, model, _)| *model == expected.fence);
        let is_right = match known {
            Some((_, _, store)) => *store == actual.fence,
            None => self.grants.iter().all(|(locks, model, store)| {
                let mut names = locks.names();
                let is_same_order = (*model < expected.fence) == (*store < actual.fence);
                is_same_order || !names.any(|name| actual.locks.share_of(name).is_some())
            }),
        };
        if !is_right {
            return differ(expected, actual);
        }
        if known.is_none() {
            let grant = (actual.locks.clone(), expected.fence, actual.fence);
            self.grants.push(grant);
        }
        Ok(())
    }

    /// The fences of the nth grant of a key, in the model and in the store. Grants of other keys may have the same fences.
    fn fence(&self, key: usize, grant: Option<usize>) -> Option<(Fence, Fence)> {
        let name = &self.names[key];
        let of_key = |(locks, ..): &&(Locks, Fence, Fence)| locks.share_of(name).is_some();
        let (_, model, store) = self.grants.iter().filter(of_key).nth(grant?)?;
        Some((*model, *store))
    }

    /// A reference to a lease in the model, and one in the store.
    fn lease_refs(&self, key: usize, who: u8, fence: Option<usize>) -> [LeaseRef; 2] {
        let (model, store) = self.fence(key, fence).unzip();
        [model, store].map(|fence| LeaseRef {
            name: self.names[key].clone(),
            owner: owner(&format!("owner {who}")),
            fence,
        })
    }

    fn ttl(&self, units: u8) -> Ttl {
        Ttl::new(self.pace.unit * u32::from(units) + self.pace.margin).expect("positive")
    }

    /// Some stores abandon calls in the background. Waits until that is visible, at most as long as for a wake-up.
    async fn abandoned(&mut self) {
        let end = Instant::now() + WAKE_UP_TIME;
        while !self.pace.is_paused && !self.is_same().await {
            // The next action finds the difference.
            if self.is_late() || Instant::now() > end {
                return;
            }
            sleep(Duration::from_millis(1)).await;
        }
    }

    async fn is_same(&mut self) -> bool {
        let shape = |status: LockStatus| {
            let owners = status.holders.into_iter().map(|lease| lease.owner);
            (owners.collect::<Vec<_>>(), status.waiters)
        };
        for name in self.names.clone() {
            let expected = LockStatus::new(self.model.key(&name), self.now);
            let actual = outcome(self.store.inspect(&name).await);
            if shape(expected) != shape(actual) {
                return false;
            }
        }
        true
    }
}

fn attempt(number: u8) -> Attempt {
    Attempt::parse(&format!("try {number}")).expect("short")
}

fn outcome<T>(answer: Result<Answer<T>, StoreError>) -> T {
    super::answer(answer)
}

fn differ(expected: &dyn std::fmt::Debug, actual: &dyn std::fmt::Debug) -> Result<(), Difference> {
    Err(format!(
        "the model says {expected:?}, but the store {actual:?}"
    ))
}
