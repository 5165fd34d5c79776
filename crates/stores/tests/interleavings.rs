//! The memory store under many schedules of its threads.
//!
//! Compiled with `RUSTFLAGS="--cfg shuttle"`, the store's mutexes are shuttle's, which tries thousands of schedules, and fails when
//! two clients hold a lock at once or when one waits for ever. Hashes and the clock are the same in every run, so that a
//! schedule that fails can be replayed. `./test` runs this.
#![cfg(shuttle)]

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use forrst_lock::model::{Acquire, Acquired, Claim, LeaseRef, Transition, Wait};
use forrst_lock::{
    Lease, LockKey, LockName, LockStore, LockStoreExt, Locks, Node, Owner, Reading, Share, Ticket,
    Timestamp, Ttl, Wake,
};
use forrst_stores::MemoryStore;
use shuttle::future::block_on;
use shuttle::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use shuttle::thread;
use tokio::sync::oneshot;

const SCHEDULES: usize = 10_000;
const HOUR: Duration = Duration::from_secs(3600);
/// A few readings of the store's clock.
const SHORT: Duration = Duration::from_millis(4);

/// A store with two locks, and what must be true of them.
struct Fixture {
    store: MemoryStore,
    names: [LockName; 2],
    is_held: [AtomicBool; 2],
    last_fence: [AtomicU64; 2],
    waiting: Arc<Waiting>,
    /// How many clients have not finished.
    running: AtomicUsize,
}

/// The calls that wait, as a server keeps them.
#[derive(Debug, Default)]
struct Waiting(Mutex<HashMap<Ticket, oneshot::Sender<Wake>>>);

impl Node for Waiting {
    fn wake(&self, ticket: Ticket, wake: Wake, _: Reading) -> bool {
        let waiter = self.0.lock().unwrap().remove(&ticket);
        waiter.is_some_and(|waiter| waiter.send(wake).is_ok())
    }

    fn changed(&self, _: &Transition, _: Timestamp) {}
}

/// Which of the two locks a client requests.
#[derive(Clone, Copy)]
enum Want {
    First,
    Second,
    Both,
}

impl Fixture {
    fn new(clients: usize) -> Arc<Self> {
        let store = MemoryStore::new();
        let waiting = Arc::new(Waiting::default());
        let node: Weak<Waiting> = Arc::downgrade(&waiting);
        store.subscribe(node);
        Arc::new(Self {
            store,
            names: names(),
            is_held: Default::default(),
            last_fence: Default::default(),
            waiting,
            running: AtomicUsize::new(clients),
        })
    }

    fn locks(&self, want: Want) -> Locks {
        let [first, second] = &self.names;
        match want {
            Want::First => Locks::exclusive(first.clone()),
            Want::Second => Locks::exclusive(second.clone()),
            Want::Both => {
                let both = [first, second].map(|name| (name.clone(), Share::EXCLUSIVE));
                Locks::new(both.into()).unwrap()
            }
        }
    }

    /// Requests a lease, which is granted at once or awaited.
    fn acquire(
        &self,
        want: Want,
        ticket: Ticket,
        ttl: Duration,
    ) -> Result<Lease, oneshot::Receiver<Wake>> {
        let (sender, wake) = oneshot::channel();
        self.waiting.0.lock().unwrap().insert(ticket, sender);
        let acquire = Acquire {
            claim: Claim {
                locks: self.locks(want),
                owner: Owner::parse(&format!("{ticket:?}")).unwrap(),
                caller: None,
                note: None,
                attempt: None,
                ttl: Ttl::new(ttl).unwrap(),
            },
            ticket,
            node: None,
            wait: Some(Wait {
                timeout: HOUR,
                max_queue: 10,
                rejoin: None,
            }),
        };
        match block_on(self.store.acquire(acquire)).unwrap().outcome {
            Acquired::Granted(lease) => Ok(lease),
            Acquired::Queued { .. } => Err(wake),
            other => panic!("{other:?}"),
        }
    }

    /// Waits for as long as it takes: a lost wake-up is a deadlock, which shuttle reports.
    fn wait_for(&self, want: Want, ticket: Ticket, ttl: Duration) -> Lease {
        let lease = match self.acquire(want, ticket, ttl) {
            Ok(lease) => lease,
            Err(wake) => match block_on(wake) {
                Ok(Wake::Granted(lease)) => lease,
                other => panic!("{other:?}"),
            },
        };
        for index in self.indexes(&lease) {
            let fence = lease.fence.number();
            let last = self.last_fence[index].fetch_max(fence, Ordering::SeqCst);
            // If this lease has expired meanwhile, a later one may have been recorded first.
            assert!(last < fence || ttl == SHORT, "fences go back");
        }
        lease
    }

    /// Which of the two locks a lease is about.
    fn indexes(&self, lease: &Lease) -> Vec<usize> {
        let is_held = |index: &usize| lease.locks.share_of(&self.names[*index]).is_some();
        (0..2).filter(is_held).collect()
    }

    /// Takes the locks, asserts that no other client has them, and releases them.
    fn hold_and_release(&self, want: Want, ticket: Ticket) {
        let lease = self.wait_for(want, ticket, HOUR);
        for index in self.indexes(&lease) {
            let was_held = self.is_held[index].swap(true, Ordering::SeqCst);
            assert!(!was_held, "two clients hold it");
        }
        thread::yield_now();
        for index in self.indexes(&lease) {
            self.is_held[index].store(false, Ordering::SeqCst);
        }
        let held = LeaseRef {
            name: lease.name().clone(),
            owner: lease.owner.clone(),
            fence: Some(lease.fence),
        };
        let answer = block_on(self.store.release(held)).unwrap();
        assert!(answer.outcome.is_ok());
    }

    /// Disconnects before, during or after the grant.
    fn disconnect(&self, want: Want, ticket: Ticket) {
        let acquired = self.acquire(want, ticket, HOUR);
        thread::yield_now();
        drop(acquired);
        thread::yield_now();
        self.store.abandon(self.locks(want).first(), ticket);
    }

    fn is_free(&self) -> bool {
        self.names.iter().all(|name| {
            let status = block_on(self.store.inspect(name)).unwrap().outcome;
            status.holder_count == 0 && status.waiters == 0
        })
    }
}

/// Two keys in different shards of the two that the store has here.
fn names() -> [LockName; 2] {
    let shard = |name: &LockName| {
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(name);
        (hash >> 32) % 2
    };
    let name = |number: u32| LockName::global(&LockKey::parse(&number.to_string()).unwrap());
    let first = name(0);
    let second = (1..100).map(name).find(|name| shard(name) != shard(&first));
    [first, second.unwrap()]
}

type Client = fn(&Fixture, Ticket);

fn first(fixture: &Fixture, ticket: Ticket) {
    fixture.hold_and_release(Want::First, ticket);
}

fn second(fixture: &Fixture, ticket: Ticket) {
    fixture.hold_and_release(Want::Second, ticket);
}

fn both(fixture: &Fixture, ticket: Ticket) {
    fixture.hold_and_release(Want::Both, ticket);
}

fn disconnect_from_first(fixture: &Fixture, ticket: Ticket) {
    fixture.disconnect(Want::First, ticket);
}

fn disconnect_from_both(fixture: &Fixture, ticket: Ticket) {
    fixture.disconnect(Want::Both, ticket);
}

/// Takes a lock for a moment, and never releases it.
fn crash_with_first(fixture: &Fixture, ticket: Ticket) {
    fixture.wait_for(Want::First, ticket, SHORT);
}

fn crash_with_both(fixture: &Fixture, ticket: Ticket) {
    fixture.wait_for(Want::Both, ticket, SHORT);
}

/// Ends expired leases, as a server does, until no client waits for it.
fn sweep(fixture: &Fixture, _: Ticket) {
    while fixture.running.load(Ordering::SeqCst) > 1 || !fixture.is_free() {
        block_on(fixture.store.sweep(10)).unwrap();
        thread::yield_now();
    }
}

/// The same by the alarm of one key.
fn settle_second(fixture: &Fixture, _: Ticket) {
    for _ in 0..3 {
        block_on(fixture.store.settle(&fixture.names[1])).unwrap();
        thread::yield_now();
    }
}

fn in_many_schedules(clients: &'static [Client]) {
    let run = move || {
        let fixture = Fixture::new(clients.len());
        let threads = clients.iter().zip(0..).map(|(client, ticket)| {
            let fixture = fixture.clone();
            thread::spawn(move || {
                client(&fixture, Ticket(ticket));
                fixture.running.fetch_sub(1, Ordering::SeqCst);
            })
        });
        let threads: Vec<_> = threads.collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert!(fixture.is_free(), "a lease or a waiter is left");
    };
    shuttle::check_random(run, SCHEDULES);
    shuttle::check_pct(run, SCHEDULES, 3);
}

#[test]
fn one_client_at_a_time_holds_a_lock_and_every_client_gets_it() {
    in_many_schedules(&[first, first, first]);
}

#[test]
fn a_client_that_disconnects_blocks_no_other() {
    in_many_schedules(&[first, disconnect_from_first, first]);
}

#[test]
fn no_lease_or_claim_is_left_when_several_clients_disconnect() {
    in_many_schedules(&[disconnect_from_first, first, disconnect_from_first, first]);
}

#[test]
fn sets_and_single_locks_take_turns() {
    in_many_schedules(&[both, first, second, both]);
}

#[test]
fn a_set_whose_client_disconnects_blocks_no_other() {
    in_many_schedules(&[first, disconnect_from_both, second, both]);
}

#[test]
fn a_lock_whose_lease_expires_is_granted_to_the_next_client() {
    in_many_schedules(&[crash_with_first, first, crash_with_first, sweep]);
}

#[test]
fn a_set_that_expires_frees_all_its_keys_in_every_shard() {
    in_many_schedules(&[crash_with_both, first, second, settle_second, sweep]);
}
