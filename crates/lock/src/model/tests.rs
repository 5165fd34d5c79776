//! Tests of the model: scenarios, random histories of several nodes, and a comparison with a naive specification.

mod nodes;
mod scenarios;
mod specification;

use std::collections::HashMap;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::*;
use crate::{Attempt, LockKey, Owner, Ticket, Ttl};

fn name(key: &str) -> LockName {
    LockName::global(&LockKey::parse(key).unwrap())
}

fn at(millis: u64) -> Timestamp {
    Timestamp::from_millis(1_000_000 + millis)
}

fn shared() -> Share {
    Share::SHARED
}

fn limit(limit: u32) -> Share {
    Share::limit(limit).unwrap()
}

/// All keys in one map, a counter for fences, and a clock that tests set.
#[derive(Default)]
struct Keyspace {
    keys: Table,
    last_fence: u64,
    /// How many fences can be minted; no limit if `None`.
    fences: Option<u64>,
    now: u64,
    node: Option<NodeId>,
    dead: Vec<NodeId>,
    transitions: Vec<Transition>,
}

#[derive(Default)]
struct Table(HashMap<LockName, Key>);

impl Keys for Table {
    fn key(&mut self, name: &LockName) -> &mut Key {
        let new = || Key::new(name.clone());
        self.0.entry(name.clone()).or_insert_with(new)
    }
}

impl Keyspace {
    #[expect(clippy::needless_pass_by_value, reason = "as a store is called")]
    fn run(&mut self, command: Command) -> Outcome {
        let command = round_trip(&command);
        let outcome = self.step(&command);
        self.transitions = round_trip(&self.transitions);
        round_trip(&outcome)
    }

    fn step(&mut self, command: &Command) -> Outcome {
        let fences = self.fences.unwrap_or(u64::MAX);
        let last_fence = &mut self.last_fence;
        let mut mint = |_: &Locks| {
            *last_fence += 1;
            Fence::new(*last_fence).filter(|_| *last_fence <= fences)
        };
        let dead = &self.dead;
        let mut env = Env {
            now: at(self.now),
            mint: &mut mint,
            node: self.node.as_ref(),
            is_alive: &|node| !dead.contains(node),
            memory: ReleaseMemory::default(),
        };
        self.transitions.clear();
        let single = command.single().cloned();
        let single = single.filter(|name| !self.keys.key(name).has_sets());
        match single {
            // As stores do: without sets, one key is enough.
            Some(name) => {
                let mut key = OneKey(self.keys.key(&name));
                step(&mut key, command, &mut env, &mut self.transitions)
            }
            None => step(&mut self.keys, command, &mut env, &mut self.transitions),
        }
    }

    fn acquire(&mut self, acquire: Acquire) -> Acquired {
        match self.run(Command::Acquire(acquire)) {
            Outcome::Acquired(acquired) => acquired,
            other => panic!("{other:?}"),
        }
    }

    fn granted(&mut self, acquire: Acquire) -> Lease {
        match self.acquire(acquire) {
            Acquired::Granted(lease) => lease,
            other => panic!("should be granted: {other:?}"),
        }
    }

    fn queued(&mut self, acquire: Acquire) -> Position {
        match self.acquire(acquire) {
            Acquired::Queued { position, .. } => position,
            other => panic!("should wait: {other:?}"),
        }
    }

    /// The keys that block a claim that does not wait.
    fn blocked_by(&mut self, acquire: Acquire) -> Vec<LockName> {
        match self.acquire(acquire) {
            Acquired::Held(obstacle) => obstacle.blocked_by,
            other => panic!("should be refused: {other:?}"),
        }
    }

    fn release(&mut self, lease: &Lease) -> Result<Lease, NotHeld> {
        let held = held(lease.name().as_str(), &lease.owner, Some(lease.fence));
        match self.run(Command::Release(held)) {
            Outcome::Lease(lease) => lease,
            other => panic!("{other:?}"),
        }
    }

    /// The waiting calls that were granted a lease in the last step.
    fn woken(&self) -> Vec<(u128, Lease)> {
        let woken = self.transitions.iter().filter_map(|it| match it {
            Transition::Woken {
                call,
                wake: Wake::Granted(lease),
            } => Some((call.ticket.0, lease.clone())),
            _ => None,
        });
        woken.collect()
    }

    fn woken_tickets(&self) -> Vec<u128> {
        self.woken().into_iter().map(|(ticket, _)| ticket).collect()
    }

    /// The calls that left the queue without a lease in the last step.
    fn dismissed(&self) -> Vec<(u128, Wake)> {
        let dismissed = self.transitions.iter().filter_map(|it| match it {
            Transition::Woken {
                call,
                wake: wake @ (Wake::TimedOut(_) | Wake::Withdrawn | Wake::FencesExhausted),
            } => Some((call.ticket.0, wake.clone())),
            _ => None,
        });
        dismissed.collect()
    }

    fn ended(&self) -> Vec<End> {
        let ended = self.transitions.iter().filter_map(|it| match it {
            Transition::Ended { cause, .. } => Some(*cause),
            _ => None,
        });
        ended.collect()
    }

    /// A claim that waits although it is first in all its queues and nothing blocks it.
    fn first_that_could_be_granted(&mut self, keys: &[&str]) -> Option<Waiting> {
        keys.iter().find_map(|key| {
            let first = self.keys.key(&name(key)).next()?.clone();
            let mut locks = first.claim.locks.as_slice().iter();
            let is_free = locks.all(|(name, share)| {
                let key = self.keys.key(name);
                !key.has_before(Some(first.position)) && key.has_room_for(*share)
            });
            is_free.then_some(first)
        })
    }

    fn waiters(&mut self, key: &str) -> usize {
        self.keys.key(&name(key)).queue().len()
    }

    fn holders(&mut self, key: &str) -> usize {
        self.keys.key(&name(key)).holder_count()
    }
}

/// Serialises and deserialises a value, as a store that passes it on does.
fn round_trip<T: Serialize + DeserializeOwned>(sent: &T) -> T {
    let written = serde_json::to_string(sent).unwrap();
    serde_json::from_str(&written).unwrap()
}

fn owner(text: &str) -> Owner {
    Owner::parse(text).unwrap()
}

fn held(full_key: &str, owner: &Owner, fence: Option<Fence>) -> LeaseRef {
    LeaseRef {
        name: LockName::parse(full_key).unwrap(),
        owner: owner.clone(),
        fence,
    }
}

/// A call whose owner is `o` and the number of its ticket.
fn request(ticket: u128, locks: &[(&str, Share)]) -> Acquire {
    let locks = locks.iter().map(|(key, share)| (name(key), *share));
    Acquire {
        claim: Claim {
            locks: Locks::new(locks.collect()).unwrap(),
            owner: owner(&format!("o{ticket}")),
            caller: None,
            note: None,
            attempt: None,
            ttl: Ttl::new(Duration::from_millis(100)).unwrap(),
        },
        ticket: Ticket(ticket),
        node: None,
        wait: None,
    }
}

fn exclusive(ticket: u128, key: &str) -> Acquire {
    request(ticket, &[(key, Share::EXCLUSIVE)])
}

fn set(ticket: u128, keys: &[&str]) -> Acquire {
    let locks: Vec<_> = keys.iter().map(|key| (*key, Share::EXCLUSIVE)).collect();
    request(ticket, &locks)
}

impl Acquire {
    fn waits(mut self, millis: u64) -> Self {
        self.wait = Some(Wait {
            timeout: Duration::from_millis(millis),
            max_queue: 100,
            rejoin: None,
        });
        self
    }

    fn lasts(mut self, millis: u64) -> Self {
        self.claim.ttl = Ttl::new(Duration::from_millis(millis)).unwrap();
        self
    }

    fn attempts(mut self, owner_: &str, attempt: &str) -> Self {
        self.claim.owner = owner(owner_);
        self.claim.attempt = Some(Attempt::parse(attempt).unwrap());
        self
    }

    fn from(mut self, node: &str) -> Self {
        self.node = Some(NodeId::new(node));
        self
    }
}
