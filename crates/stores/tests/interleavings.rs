//! The queue under every order of events that a scheduler can think of.
//!
//! Compiled with `RUSTFLAGS="--cfg shuttle"`, the store's mutexes and counters are shuttle's, which tries thousands of
//! schedules, and fails when two hold at once or when somebody waits for ever. `./test` does that.
#![cfg(shuttle)]

use std::sync::Arc;

use forrst_lock::state::{Acquire, Acquired, Claim, Release, Wait, Wake};
use forrst_lock::{Lease, LockKey, LockName, LockStore, Owner, Ticket, Ttl, Waiter};
use forrst_stores::MemoryStore;
use shuttle::future::block_on;
use shuttle::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use shuttle::thread;
use tokio::sync::oneshot;

const SCHEDULES: usize = 20_000;

/// One lock, and what must be true of it.
struct Room {
    store: MemoryStore,
    name: LockName,
    is_inside: AtomicBool,
    last_fence: AtomicU64,
}

impl Room {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            store: MemoryStore::new(),
            name: LockName::global(&LockKey::parse("room").unwrap()),
            is_inside: AtomicBool::new(false),
            last_fence: AtomicU64::new(0),
        })
    }

    /// Asks to be let in; a lease at once, or where to hear of it.
    fn knock(&self, ticket: Ticket) -> Result<Lease, oneshot::Receiver<Wake>> {
        let (waiter, wake) = Waiter::channel();
        let hour = std::time::Duration::from_secs(3600);
        let command = Acquire {
            claim: Claim {
                owner: Owner::parse(&format!("{ticket:?}")).unwrap(),
                caller: None,
                attempt: None,
                ticket,
                ttl: Ttl::new(hour).unwrap(),
            },
            wait: Some(Wait {
                timeout: hour,
                max_ahead: 10,
                waiter,
            }),
        };
        match block_on(self.store.acquire(&self.name, command)) {
            Ok(answer) => match answer.outcome {
                Acquired::Granted(lease) => Ok(lease),
                Acquired::Queued { .. } => Err(wake),
                other => panic!("{other:?}"),
            },
            Err(error) => panic!("{error}"),
        }
    }

    fn be_inside(&self, lease: &Lease) {
        assert!(
            !self.is_inside.swap(true, Ordering::SeqCst),
            "two are inside"
        );
        let fence = lease.fence.number();
        assert!(self.last_fence.swap(fence, Ordering::SeqCst) < fence);
        thread::yield_now();
        self.is_inside.store(false, Ordering::SeqCst);
    }

    fn leave(&self, lease: &Lease) {
        let command = Release {
            owner: lease.owner.clone(),
            fence: Some(lease.fence),
        };
        let answer = block_on(self.store.release(&self.name, command)).unwrap();
        assert!(answer.outcome.is_ok());
    }

    /// Waits for as long as it takes: a lost wake-up is a deadlock, which shuttle reports.
    fn visit(&self, ticket: Ticket) {
        let lease = match self.knock(ticket) {
            Ok(lease) => lease,
            Err(wake) => match block_on(wake) {
                Ok(Wake::Granted(lease)) => lease,
                other => panic!("{other:?}"),
            },
        };
        self.be_inside(&lease);
        self.leave(&lease);
    }

    /// Knocks and loses patience, as a dropped call does: before, during or after the grant.
    fn lose_patience(&self, ticket: Ticket) {
        let knocked = self.knock(ticket);
        thread::yield_now();
        drop(knocked);
        thread::yield_now();
        self.store.abandon(&self.name, ticket);
    }

    fn is_empty(&self) -> bool {
        let status = block_on(self.store.inspect(&self.name)).unwrap();
        status.outcome.is_none()
    }
}

fn in_every_order(people: &'static [fn(&Room, Ticket)]) {
    let scene = move || {
        let room = Room::new();
        let threads: Vec<_> = people
            .iter()
            .enumerate()
            .map(|(index, person)| {
                let room = room.clone();
                thread::spawn(move || person(&room, Ticket(index as u128)))
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert!(room.is_empty(), "somebody was left behind");
    };
    shuttle::check_random(scene, SCHEDULES);
    shuttle::check_pct(scene, SCHEDULES, 3);
}

#[test]
fn visitors_are_alone_inside_and_all_get_in() {
    in_every_order(&[Room::visit, Room::visit, Room::visit]);
}

#[test]
fn nobody_is_stranded_by_one_who_gives_up() {
    in_every_order(&[Room::visit, Room::lose_patience, Room::visit]);
}

#[test]
fn nothing_is_left_behind_when_several_give_up() {
    in_every_order(&[
        Room::lose_patience,
        Room::visit,
        Room::lose_patience,
        Room::visit,
    ]);
}
