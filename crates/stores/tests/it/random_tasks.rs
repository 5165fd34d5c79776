//! Tasks of two nodes use a few locks at random under random faults, and the recorded history has to be valid.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use forrst_lock::model::LeaseRef;
use forrst_lock::{
    AcquireOutcome, AcquireRequest, LeaseGuard, LockError, LockService, Locks, Owner,
    ReleaseOutcome, Share, Ttl,
};
use forrst_testkit::history::{History, RecordedLease, Sharing};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::calls::{PATIENCE, held, name, until};
use crate::nodes::{guard, request};

const TASKS: u64 = 16;
const FAULTS_FOR: Duration = Duration::from_secs(10);
/// How many rounds each task runs after the last fault. All of them have to succeed.
const HEALED_ROUNDS: usize = 20;

/// What a task acquires: some keys, all shared in the same way.
const REQUESTS: [(&[&str], Sharing); 8] = [
    (&["x"], Sharing::Exclusive),
    (&["y"], Sharing::Exclusive),
    (&["x", "y"], Sharing::Exclusive),
    (&["y", "s"], Sharing::Exclusive),
    (&["s"], Sharing::Shared),
    (&["s"], Sharing::Shared),
    (&["s", "l"], Sharing::Limit(2)),
    (&["l"], Sharing::Limit(2)),
];

struct Task {
    rng: fastrand::Rng,
    own: LockService,
    other: LockService,
    history: History,
    owner: String,
    is_healed: Arc<AtomicBool>,
    done_abandoning: Arc<AtomicU64>,
}

impl Task {
    /// Runs until the rounds after the last fault are done.
    async fn run(mut self) {
        let mut rounds_left = HEALED_ROUNDS;
        for round in 0.. {
            let is_healed = self.is_healed.load(Ordering::SeqCst);
            if is_healed {
                if rounds_left == 0 {
                    return;
                }
                if rounds_left == HEALED_ROUNDS {
                    self.done_abandoning.fetch_add(1, Ordering::SeqCst);
                }
                rounds_left -= 1;
            }
            self.round(round, is_healed).await;
        }
    }

    fn millis(&mut self, range: std::ops::Range<u64>) -> Duration {
        Duration::from_millis(self.rng.u64(range))
    }

    async fn round(&mut self, round: usize, is_healed: bool) {
        let (keys, sharing) = self.rng.choice(REQUESTS).unwrap();
        let share = match sharing {
            Sharing::Exclusive => Share::EXCLUSIVE,
            Sharing::Shared => Share::SHARED,
            Sharing::Limit(limit) => Share::limit(limit).unwrap(),
        };
        let owner = format!("{}-{round}", self.owner);
        let locks = keys.iter().map(|key| (name(key), share)).collect();
        let wait = self.millis(0..1500);
        let request = AcquireRequest {
            locks: Locks::new(locks).unwrap(),
            owner: Owner::parse(&owner).unwrap(),
            ttl: Ttl::new(self.millis(200..2000)).unwrap(),
            wait: self.rng.bool().then_some(wait),
            caller: None,
            note: None,
            attempt: None,
        };
        let acquiring = self.history.acquires(&owner, keys.iter().copied(), sharing);
        let is_dropped = !is_healed && self.rng.u8(0..8) == 0;
        let patience = match is_dropped {
            true => self.millis(0..30),
            false => PATIENCE,
        };
        match timeout(patience, self.own.acquire(request)).await {
            Err(_) if is_dropped => acquiring.unknown(),
            Err(_) => panic!("an acquire never ended"),
            Ok(Ok(AcquireOutcome::Granted(guard))) => {
                let fence = guard.lease().fence.number();
                let lease = acquiring.granted(fence, certain_until(&guard));
                self.use_lease(guard, &lease, is_healed).await;
            }
            Ok(Ok(_)) => {
                acquiring.refused();
                let pause = self.millis(1..20);
                sleep(pause).await;
            }
            Ok(Err(LockError::Store(_))) => {
                acquiring.unknown();
                let pause = self.millis(1..50);
                sleep(pause).await;
            }
            Ok(Err(error)) => panic!("{error}"),
        }
    }

    async fn use_lease(&mut self, guard: LeaseGuard, lease: &RecordedLease, is_healed: bool) {
        let pause = self.millis(0..15);
        sleep(pause).await;
        let held = held(&guard.lease());
        if self.rng.u8(0..3) == 0 {
            self.extend(&guard, held.clone(), lease).await;
        }
        let pause = self.millis(0..15);
        sleep(pause).await;
        let how = self.rng.u8(0..10);
        let releasing = lease.releases();
        match how {
            0 if !is_healed => {
                drop(guard);
                releasing.unknown();
            }
            // It expires.
            1 if !is_healed => {
                guard.keep();
                releasing.unknown();
            }
            // Through another node, which notifies the guard.
            2 | 3 => match self.other.release(held).await {
                Ok(Ok(_)) => releasing.released(),
                Ok(Err(_)) => releasing.refused(),
                Err(_) => releasing.unknown(),
            },
            4 => match self.other.force_release(&held.name, held.fence).await {
                Ok(Ok(_)) => releasing.released(),
                Ok(Err(_)) => releasing.refused(),
                Err(_) => releasing.unknown(),
            },
            _ => match guard.release().await {
                ReleaseOutcome::Released => releasing.released(),
                ReleaseOutcome::Lost(_) => releasing.refused(),
                ReleaseOutcome::Pending(_) => releasing.unknown(),
            },
        }
    }

    /// Extends the lease through its own node or the other one.
    async fn extend(&mut self, guard: &LeaseGuard, held: LeaseRef, lease: &RecordedLease) {
        let ttl = Ttl::new(self.millis(100..2000)).unwrap();
        let extending = lease.extends(ttl.as_duration());
        let is_own = self.rng.bool();
        let sent = Instant::now();
        let node = match is_own {
            true => &self.own,
            false => &self.other,
        };
        match node.extend(held, ttl).await {
            // After an extension through its own node, the guard has the exact deadline.
            Ok(Ok(_)) if is_own => extending.extended(certain_until(guard)),
            Ok(Ok(_)) => extending.extended(sent + ttl.as_duration() * 9 / 10),
            Ok(Err(_)) => extending.refused(),
            Err(_) => extending.unknown(),
        }
    }
}

fn certain_until(guard: &LeaseGuard) -> Instant {
    let now = Instant::now();
    now + guard.loss().remaining()
}

/// A generator that is printed, so that a run can be repeated.
pub(crate) fn seeded() -> fastrand::Rng {
    let seed = std::env::var("FORRST_TEST_SEED").ok();
    let seed = seed.map_or_else(|| fastrand::u64(..), |seed| seed.parse().unwrap());
    eprintln!("FORRST_TEST_SEED={seed}");
    fastrand::Rng::with_seed(seed)
}

/// What goes wrong.
pub(crate) trait Faults {
    /// One fault and its end.
    async fn inject_one(&mut self, rng: &mut fastrand::Rng);

    /// The end of everything that still goes wrong.
    async fn heal(&mut self);
}

/// Runs tasks on both services during faults and after them.
pub(crate) async fn exclude_each_other(
    services: [LockService; 2],
    mut faults: impl Faults,
    mut rng: fastrand::Rng,
) {
    let history = History::default();
    let is_healed: Arc<AtomicBool> = Arc::default();
    let done_abandoning: Arc<AtomicU64> = Arc::default();
    let mut tasks = JoinSet::new();
    for number in 0..TASKS {
        let own = usize::from(number % 2 == 1);
        let task = Task {
            rng: rng.fork(),
            own: services[own].clone(),
            other: services[1 - own].clone(),
            history: history.clone(),
            owner: format!("task {number}"),
            is_healed: is_healed.clone(),
            done_abandoning: done_abandoning.clone(),
        };
        tasks.spawn(task.run());
    }

    let since = Instant::now();
    while since.elapsed() < FAULTS_FOR {
        faults.inject_one(&mut rng).await;
    }
    faults.heal().await;
    for (number, service) in services.iter().enumerate() {
        until("the node works again", async || {
            let key = format!("works {number}");
            let acquired = service.acquire(request(&key, "a", 1)).await;
            matches!(acquired, Ok(AcquireOutcome::Granted(_)))
        })
        .await;
    }
    is_healed.store(true, Ordering::SeqCst);
    until("no task abandons leases any more", async || {
        done_abandoning.load(Ordering::SeqCst) == TASKS
    })
    .await;
    history.heals();
    timeout(PATIENCE, async {
        while let Some(ended) = tasks.join_next().await {
            ended.unwrap();
        }
    })
    .await
    .expect("all tasks end");

    let summary = history.check().unwrap();
    eprintln!("{summary:?}");
    history.nothing_stuck().unwrap();
    assert!(summary.granted > 100, "{summary:?}");
    // Neither a lease nor a claim is left.
    for key in ["x", "y", "s", "l"] {
        until("it is free", async || {
            let (status, _) = services[0].inspect(&name(key)).await.unwrap();
            status.holder().is_none() && status.waiters == 0
        })
        .await;
        guard(&services[1], request(key, "last", 1)).await;
    }
}
