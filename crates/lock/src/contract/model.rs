//! The model test: random commands and time steps, on a store and on the pure state machine side by side.
//!
//! Whatever the state machine answers, the store has to answer too, and whoever it wakes has to be woken.

use std::sync::Arc;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};

use super::{WAKE_UP_TIME, fresh_name, owner, pass_exactly};
use crate::state::{
    Abandon, Acquire, Acquired, Claim, Command, Extend, ForceRelease, Release, Settle, State, Wait,
    Wake, Woken, step,
};
use crate::store::{Answer, LockStore};
use crate::{
    Attempt, Fence, Lease, LockName, NotHeld, ReleaseMemory, StoreError, Ticket, Timestamp, Ttl,
    Waiter,
};

/// How random histories pass their time.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// How many histories to try.
    pub histories: u32,
    /// What one step of time is. Ttls and patience are a few of them.
    pub unit: Duration,
    /// Added to every ttl and patience. A store with its own clock takes half a unit, so that no history depends on
    /// which of two things in the same moment was first; with the paused clock it is nothing, and they are hit exactly.
    pub margin: Duration,
    /// Whether time is tokio's paused clock.
    pub is_paused: bool,
}

impl Pace {
    /// For a store that lives by tokio's clock.
    pub const PAUSED: Self = Self {
        histories: 500,
        unit: Duration::from_millis(100),
        margin: Duration::ZERO,
        is_paused: true,
    };
}

/// Something that happens in a history. Numbers choose among a few owners, attempts, calls and fences.
#[derive(Debug, Clone)]
enum Action {
    Acquire {
        owner: u8,
        attempt: Option<u8>,
        ttl: u8,
        wait: Option<(u8, usize)>,
    },
    Abandon {
        call: usize,
    },
    Release {
        owner: u8,
        fence: Option<usize>,
    },
    Extend {
        owner: u8,
        fence: Option<usize>,
        ttl: u8,
    },
    ForceRelease {
        fence: Option<usize>,
    },
    Settle,
    Inspect,
    Pass {
        units: u32,
    },
}

fn actions(pace: Pace, memory: ReleaseMemory) -> impl Strategy<Value = Vec<Action>> {
    // Until all releases are forgotten, where that takes no time.
    let long = if pace.is_paused {
        u32::try_from(memory.as_duration().as_millis() / pace.unit.as_millis()).unwrap_or(1)
    } else {
        1
    };
    let owner = 0..3_u8;
    let fence = || proptest::option::weighted(0.4, 0..8_usize);
    let acquire = (
        owner.clone(),
        proptest::option::weighted(0.3, 0..2_u8),
        1..6_u8,
        proptest::option::weighted(0.7, (1..8_u8, 0..4_usize)),
    );
    let action = prop_oneof![
        8 => acquire.prop_map(|(owner, attempt, ttl, wait)| Action::Acquire { owner, attempt, ttl, wait }),
        2 => (0..8_usize).prop_map(|call| Action::Abandon { call }),
        4 => (owner.clone(), fence()).prop_map(|(owner, fence)| Action::Release { owner, fence }),
        3 => (owner, fence(), 1..6_u8).prop_map(|(owner, fence, ttl)| Action::Extend { owner, fence, ttl }),
        2 => fence().prop_map(|fence| Action::ForceRelease { fence }),
        2 => Just(Action::Settle),
        2 => Just(Action::Inspect),
        4 => (1..4_u32).prop_map(|units| Action::Pass { units }),
        1 => Just(Action::Pass { units: long }),
    ];
    vec(action, 1..30)
}

/// Runs random histories; a failing one is shrunk and printed. A plain test calls it, outside of any runtime.
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
        ..Config::default()
    };
    let result = TestRunner::new(config).run(&actions(pace, memory), |history| {
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
            Ok(())
        })
    });
    if let Err(failure) = result {
        panic!("{failure}");
    }
}

/// The store and the model of one key.
struct Pair {
    store: Arc<dyn LockStore>,
    pace: Pace,
    name: LockName,
    model: State<usize>,
    /// The model's time passes only where the history says so.
    now: Timestamp,
    started: Instant,
    /// How much time should have passed since.
    passed: Duration,
    last_fence: u64,
    /// The fences of all grants: the model's and the store's. They differ, but grow alike.
    fences: Vec<(Fence, Fence)>,
    calls: Vec<(Ticket, oneshot::Receiver<Wake>)>,
}

type Difference = String;

impl Pair {
    fn new(store: Arc<dyn LockStore>, pace: Pace) -> Self {
        let name = fresh_name("model");
        Self {
            store,
            pace,
            model: State::new(name.clone()),
            name,
            now: Timestamp::from_millis(1_000_000),
            started: Instant::now(),
            passed: Duration::ZERO,
            last_fence: 0,
            fences: Vec::new(),
            calls: Vec::new(),
        }
    }

    async fn act(&mut self, action: &Action) -> Result<(), Difference> {
        let (name, store) = (self.name.clone(), self.store.clone());
        match action {
            Action::Pass { units } => {
                let time = self.pace.unit * *units;
                pass_exactly(time).await;
                self.now = self.now + time;
                self.passed += time;
                Ok(())
            }
            Action::Acquire {
                owner: who,
                attempt,
                ttl,
                wait,
            } => {
                let (waiter, wake) = Waiter::channel();
                let call = self.calls.len();
                let claim = Claim {
                    owner: owner(&format!("owner {who}")),
                    caller: None,
                    attempt: attempt.map(|a| Attempt::parse(&format!("try {a}")).expect("short")),
                    ticket: Ticket::random(),
                    ttl: self.ttl(*ttl),
                };
                self.calls.push((claim.ticket, wake));
                let (model_wait, store_wait) = match *wait {
                    None => (None, None),
                    Some((patience, max_ahead)) => {
                        let timeout = self.ttl(patience).as_duration();
                        (
                            Some(waiting(timeout, max_ahead, call)),
                            Some(waiting(timeout, max_ahead, waiter)),
                        )
                    }
                };
                let command = Acquire {
                    claim: claim.clone(),
                    wait: model_wait,
                };
                let (expected, woken) = self.model(command);
                let command = Acquire {
                    claim,
                    wait: store_wait,
                };
                let actual = outcome(store.acquire(&name, command).await);
                match (expected, actual) {
                    (Acquired::Granted(expected), Acquired::Granted(actual)) => {
                        self.same_lease(&expected, &actual)?;
                    }
                    (Acquired::Held { .. }, Acquired::Held { .. })
                    | (Acquired::Queued { .. }, Acquired::Queued { .. })
                    | (Acquired::QueueFull { .. }, Acquired::QueueFull { .. }) => {}
                    (expected, actual) => return differ(&expected, &actual),
                }
                self.all_told(woken).await
            }
            Action::Abandon { call } => {
                let Some((ticket, _)) = self.calls.get(*call) else {
                    return Ok(());
                };
                let ticket = *ticket;
                let (_, woken) = self.model(Abandon { ticket });
                store.abandon(&name, ticket);
                self.settled().await;
                self.all_told(woken).await
            }
            Action::Release { owner: who, fence } => {
                let owner = owner(&format!("owner {who}"));
                let (model_fence, store_fence) = self.fence(*fence).unzip();
                let (expected, woken) = self.model(Release {
                    owner: owner.clone(),
                    fence: model_fence,
                });
                let fence = store_fence;
                let actual = outcome(store.release(&name, Release { owner, fence }).await);
                self.same_result(expected, actual)?;
                self.all_told(woken).await
            }
            Action::Extend {
                owner: who,
                fence,
                ttl,
            } => {
                let (owner, ttl) = (owner(&format!("owner {who}")), self.ttl(*ttl));
                let (model_fence, store_fence) = self.fence(*fence).unzip();
                let (expected, woken) = self.model(Extend {
                    owner: owner.clone(),
                    fence: model_fence,
                    ttl,
                });
                let fence = store_fence;
                let actual = outcome(store.extend(&name, Extend { owner, fence, ttl }).await);
                self.same_result(expected, actual)?;
                self.all_told(woken).await
            }
            Action::ForceRelease { fence } => {
                let (model_fence, fence) = self.fence(*fence).unzip();
                let (expected, woken) = self.model(ForceRelease { fence: model_fence });
                let actual = outcome(store.force_release(&name, ForceRelease { fence }).await);
                self.same_result(expected, actual)?;
                self.all_told(woken).await
            }
            Action::Settle => {
                let ((), woken) = self.model(Settle);
                let actual = outcome(store.settle(&name).await);
                let expected = (self.model.lease().is_some(), self.model.waiters());
                let actual = (actual.expires_at.is_some(), actual.waiters);
                if expected != actual {
                    return differ(&expected, &actual);
                }
                self.all_told(woken).await
            }
            Action::Inspect => {
                let expected = self.model.lease().filter(|lease| lease.is_live(self.now));
                let actual = outcome(store.inspect(&name).await);
                let expected = expected.cloned().ok_or(NotHeld::NotFound);
                let actual = actual.map(|status| status.lease);
                self.same_result(expected, actual.ok_or(NotHeld::NotFound))
            }
        }
    }

    /// Whether the machine has stood still for so long that a lease may have run out which the model takes for live.
    fn is_late(&self) -> bool {
        self.started.elapsed() > self.passed + self.pace.margin
    }

    fn model<C: Command<usize>>(&mut self, command: C) -> (C::Outcome, Vec<Woken<usize>>) {
        let last_fence = &mut self.last_fence;
        let mut mint = || {
            *last_fence += 1;
            Fence::new(*last_fence)
        };
        let memory = self.store.capabilities().release_memory;
        let done = step(&mut self.model, command, self.now, memory, &mut mint);
        (done.outcome, done.woken)
    }

    /// Those whom the model wakes hear the same from the store, and nobody else hears anything.
    async fn all_told(&mut self, woken: Vec<Woken<usize>>) -> Result<(), Difference> {
        for Woken { waiter, wake, .. } in woken {
            let (_, receiver) = &mut self.calls[waiter];
            let heard = timeout(WAKE_UP_TIME, &mut *receiver).await;
            if heard.is_err() {
                self.passed += WAKE_UP_TIME;
            }
            match (wake, heard) {
                (Wake::Granted(expected), Ok(Ok(Wake::Granted(actual)))) => {
                    self.same_lease(&expected, &actual)?;
                }
                (expected, Ok(Ok(actual))) if expected == actual => {}
                (expected, heard) => return differ(&expected, &heard),
            }
        }
        for (call, (_, receiver)) in self.calls.iter_mut().enumerate() {
            if let Ok(heard) = receiver.try_recv() {
                return Err(format!(
                    "call {call} should hear nothing, but heard {heard:?}"
                ));
            }
        }
        Ok(())
    }

    fn same_result(
        &mut self,
        expected: Result<Lease, NotHeld>,
        actual: Result<Lease, NotHeld>,
    ) -> Result<(), Difference> {
        match (expected, actual) {
            (Ok(expected), Ok(actual)) => self.same_lease(&expected, &actual),
            (Err(expected), Err(actual)) if expected == actual => Ok(()),
            (expected, actual) => differ(&expected, &actual),
        }
    }

    fn same_lease(&mut self, expected: &Lease, actual: &Lease) -> Result<(), Difference> {
        let lasts = |lease: &Lease| lease.expires_at.remaining(lease.acquired_at);
        let drift = lasts(expected).abs_diff(lasts(actual));
        if expected.owner != actual.owner || drift > self.pace.margin {
            return differ(expected, actual);
        }
        let known = self
            .fences
            .iter()
            .find(|(model, _)| *model == expected.fence);
        match (known, self.fences.last()) {
            (Some((_, store)), _) if *store == actual.fence => Ok(()),
            (None, None) => self.new_fence(expected, actual),
            (None, Some((_, last))) if *last < actual.fence => self.new_fence(expected, actual),
            _ => differ(expected, actual),
        }
    }

    fn new_fence(&mut self, expected: &Lease, actual: &Lease) -> Result<(), Difference> {
        self.fences.push((expected.fence, actual.fence));
        Ok(())
    }

    /// The fence of the nth grant.
    fn fence(&self, grant: Option<usize>) -> Option<(Fence, Fence)> {
        self.fences.get(grant?).copied()
    }

    fn ttl(&self, units: u8) -> Ttl {
        Ttl::new(self.pace.unit * u32::from(units) + self.pace.margin).expect("positive")
    }

    /// Giving up is done in the background by some stores: waits until it shows, for as long as others have for waking up.
    async fn settled(&self) {
        let end = Instant::now() + WAKE_UP_TIME;
        while !self.pace.is_paused && !self.looks_alike().await {
            // Then it is found out by what comes next.
            if self.is_late() || Instant::now() > end {
                return;
            }
            sleep(Duration::from_millis(1)).await;
        }
    }

    async fn looks_alike(&self) -> bool {
        let lease = self.model.lease().filter(|lease| lease.is_live(self.now));
        let expected = lease.map(|lease| (lease.owner.clone(), self.model.waiters()));
        let actual = outcome(self.store.inspect(&self.name).await);
        expected == actual.map(|status| (status.lease.owner, status.waiters))
    }
}

fn waiting<W>(timeout: Duration, max_ahead: usize, waiter: W) -> Wait<W> {
    Wait {
        timeout,
        max_ahead,
        waiter,
    }
}

fn outcome<T>(answer: Result<Answer<T>, StoreError>) -> T {
    super::answer(answer)
}

fn differ(expected: &dyn std::fmt::Debug, actual: &dyn std::fmt::Debug) -> Result<(), Difference> {
    Err(format!(
        "the model says {expected:?}, but the store {actual:?}"
    ))
}
