//! Random histories of several nodes that die, come back and rejoin queues: every change is reported by exactly one transition.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone)]
enum Act {
    Acquire {
        locks: Vec<(usize, Share)>,
        owner: usize,
        attempt: Option<usize>,
        ttl: u64,
        wait: Option<u64>,
    },
    /// Lets an earlier call rejoin. Numbers here and below choose an earlier call or lease, modulo their count.
    Rejoin(usize),
    Abandon(usize),
    Release(usize),
    Extend(usize, u64),
    Confirm(usize),
    Force(usize),
    Withdraw {
        key: usize,
        owner: usize,
        attempt: usize,
    },
    Settle(usize),
    Die(usize),
    ComeBack(usize),
    Pass(u64),
}

const KEYS: [&str; 3] = ["a", "b", "c"];
const NODES: [&str; 3] = ["one", "two", "three"];

/// Acts, each with the index of its node.
fn acts() -> impl Strategy<Value = Vec<(usize, Act)>> {
    let share = prop_oneof![
        3 => Just(Share::EXCLUSIVE),
        2 => Just(Share::SHARED),
        2 => Just(Share::limit(2).unwrap()),
    ];
    let locks = prop::collection::btree_map(0..KEYS.len(), share, 1..=2);
    let locks = locks.prop_map(|locks| locks.into_iter().collect());
    let attempt = prop::option::weighted(0.5, 0..2_usize);
    let wait = prop::option::weighted(0.8, 5..9000_u64);
    let acquire = (locks, 0..3_usize, attempt, 5..9000_u64, wait);
    let act = prop_oneof![
        8 => acquire.prop_map(|(locks, owner, attempt, ttl, wait)| Act::Acquire { locks, owner, attempt, ttl, wait }),
        2 => any::<usize>().prop_map(Act::Rejoin),
        2 => any::<usize>().prop_map(Act::Abandon),
        5 => any::<usize>().prop_map(Act::Release),
        1 => (any::<usize>(), 5..9000_u64).prop_map(|(lease, ttl)| Act::Extend(lease, ttl)),
        3 => any::<usize>().prop_map(Act::Confirm),
        1 => (0..KEYS.len()).prop_map(Act::Force),
        1 => (0..KEYS.len(), 0..3_usize, 0..2_usize)
            .prop_map(|(key, owner, attempt)| Act::Withdraw { key, owner, attempt }),
        2 => (0..KEYS.len()).prop_map(Act::Settle),
        1 => (0..NODES.len()).prop_map(Act::Die),
        1 => (0..NODES.len()).prop_map(Act::ComeBack),
        3 => (1..4000_u64).prop_map(Act::Pass),
    ];
    prop::collection::vec((0..NODES.len(), act), 1..60)
}

/// The state of the keys as reconstructed from transitions and answers alone.
#[derive(Default)]
struct Reconstructed {
    leases: BTreeMap<Fence, Lease>,
    unconfirmed: BTreeSet<Fence>,
    waiting: BTreeMap<u128, String>,
    fences: HashMap<LockName, Fence>,
}

impl Reconstructed {
    fn apply(&mut self, space: &Keyspace) -> Result<(), TestCaseError> {
        for transition in &space.transitions {
            match transition {
                Transition::Granted {
                    lease, confirm_by, ..
                } => {
                    let known = self.leases.insert(lease.fence, lease.clone());
                    prop_assert_eq!(known, None, "granted twice");
                    if confirm_by.is_some() {
                        self.unconfirmed.insert(lease.fence);
                    }
                    for name in lease.locks.names() {
                        let before = self.fences.insert(name.clone(), lease.fence);
                        prop_assert!(before < Some(lease.fence), "fences grow");
                    }
                }
                Transition::Confirmed { lease, .. } => {
                    prop_assert!(self.unconfirmed.remove(&lease.fence), "confirmed twice");
                }
                Transition::Extended { lease, .. } => {
                    let known = self.leases.insert(lease.fence, lease.clone());
                    prop_assert!(known.is_some(), "extended after its end");
                    self.unconfirmed.remove(&lease.fence);
                }
                Transition::Ended { lease, .. } => {
                    let known = self.leases.remove(&lease.fence);
                    prop_assert_eq!(known.as_ref(), Some(lease), "ended twice");
                    self.unconfirmed.remove(&lease.fence);
                }
                Transition::Woken { call, .. } => {
                    let known = self.waiting.remove(&call.ticket.0);
                    prop_assert!(known.is_some(), "woken twice");
                }
            }
        }
        Ok(())
    }

    /// Checks that the reconstructed state is the actual one.
    fn agrees_with(&mut self, space: &mut Keyspace) -> Result<(), TestCaseError> {
        let mut waiting = BTreeSet::new();
        for key in KEYS {
            let name = name(key);
            let key = space.keys.key(&name);
            let holders = key.holders().map(|it| (it.lease.fence, it.lease.clone()));
            let holders: BTreeMap<Fence, Lease> = holders.collect();
            let known = self.leases.iter();
            let known = known.filter(|(_, lease)| lease.locks.share_of(&name).is_some());
            let known = known.map(|(fence, lease)| (*fence, lease.clone()));
            prop_assert_eq!(&holders, &known.collect(), "the leases of {}", name);
            for holder in key.holders() {
                let is_unconfirmed = self.unconfirmed.contains(&holder.lease.fence);
                prop_assert_eq!(holder.confirm_by.is_some(), is_unconfirmed);
            }
            for call in key.queue().iter().flat_map(|waiting| &waiting.calls) {
                waiting.insert(call.ticket.0);
            }
        }
        for ticket in &waiting {
            prop_assert!(
                self.waiting.contains_key(ticket),
                "began to wait unreported: {ticket}"
            );
        }
        // Only calls of a dead node leave the queue without a transition.
        let dead: Vec<&str> = space.dead.iter().map(NodeId::as_str).collect();
        for (ticket, node) in std::mem::take(&mut self.waiting) {
            if waiting.contains(&ticket) {
                self.waiting.insert(ticket, node);
            } else {
                prop_assert!(dead.contains(&node.as_str()), "left unreported: {ticket}");
            }
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, ..ProptestConfig::default() })]

    #[test]
    fn every_change_is_a_transition_exactly_once(acts in acts()) {
        let mut space = Keyspace::default();
        let mut known = Reconstructed::default();
        let mut calls: Vec<Acquire> = Vec::new();
        for (node, act) in acts {
            let node = NODES[node];
            space.node = Some(NodeId::new(node));
            let Some(command) = command(&mut space, &known, &mut calls, node, act) else {
                continue;
            };
            // A node that acts is alive.
            space.dead.retain(|dead| dead.as_str() != node);
            let acquire = match &command {
                Command::Acquire(acquire) => Some(acquire.clone()),
                _ => None,
            };
            let abandons = match &command {
                Command::Abandon { ticket, .. } => Some(ticket.0),
                _ => None,
            };
            let outcome = space.run(command);
            known.apply(&space)?;
            match (outcome, acquire, abandons) {
                (Outcome::Acquired(Acquired::Queued { position, until, .. }), Some(mut acquire), _) => {
                    known.waiting.insert(acquire.ticket.0, node.to_owned());
                    let wait = acquire.wait.as_mut().unwrap();
                    wait.rejoin = Some((position, until));
                    calls.push(acquire);
                }
                (Outcome::Acquired(Acquired::Granted(lease)), Some(acquire), _) => {
                    // The answer confirms the grant.
                    prop_assert!(!known.unconfirmed.contains(&lease.fence));
                    known.waiting.remove(&acquire.ticket.0);
                    calls.push(acquire);
                }
                (Outcome::Abandoned(Abandoned::LeftQueue(_)), _, Some(ticket)) => {
                    prop_assert!(known.waiting.remove(&ticket).is_some());
                }
                _ => {}
            }
            known.agrees_with(&mut space)?;
            prop_assert_eq!(space.first_that_could_be_granted(&KEYS), None);
        }
    }
}

/// The command of an act; `None` if it only changes the environment.
fn command(
    space: &mut Keyspace,
    known: &Reconstructed,
    calls: &mut [Acquire],
    node: &str,
    act: Act,
) -> Option<Command> {
    let lease = |index: usize| {
        let leases = known.leases.values();
        leases.cycle().nth(index % known.leases.len().max(1))
    };
    Some(match act {
        Act::Acquire {
            locks,
            owner,
            attempt,
            ttl,
            wait,
        } => {
            let locks = locks.iter().map(|(key, share)| (KEYS[*key], *share));
            let locks: Vec<_> = locks.collect();
            let mut request = request(Ticket::random().0, &locks).lasts(ttl).from(node);
            request.claim.owner = super::owner(&format!("o{owner}"));
            if let Some(attempt) = attempt {
                request = request.attempts(&format!("o{owner}"), &attempt.to_string());
            }
            if let Some(wait) = wait {
                request = request.waits(wait);
            }
            Command::Acquire(request)
        }
        Act::Rejoin(index) => {
            let index = index.checked_rem(calls.len())?;
            let request = &calls[index];
            let is_own = request.node.as_ref().is_some_and(|it| it.as_str() == node);
            let can_rejoin = request
                .wait
                .as_ref()
                .is_some_and(|wait| wait.rejoin.is_some());
            // A node only lets a call rejoin that still waits.
            let waits = known.waiting.contains_key(&request.ticket.0);
            if !is_own || !can_rejoin || !waits {
                return None;
            }
            Command::Acquire(request.clone())
        }
        Act::Abandon(index) => {
            let index = index.checked_rem(calls.len())?;
            Command::Abandon {
                name: calls[index].claim.locks.first().clone(),
                ticket: calls[index].ticket,
            }
        }
        Act::Release(index) => {
            let lease = lease(index)?;
            let name = lease.locks.names().last()?;
            Command::Release(held(name.as_str(), &lease.owner, Some(lease.fence)))
        }
        Act::Extend(index, millis) => {
            let lease = lease(index)?;
            let ttl = Ttl::new(Duration::from_millis(millis)).unwrap();
            let held = held(lease.name().as_str(), &lease.owner, Some(lease.fence));
            Command::Extend(held, ttl)
        }
        Act::Confirm(index) => {
            let lease = lease(index)?;
            Command::Confirm {
                name: lease.name().clone(),
                fence: lease.fence,
            }
        }
        Act::Force(key) => Command::ForceRelease {
            name: name(KEYS[key]),
            fences: Vec::new(),
        },
        Act::Withdraw {
            key,
            owner,
            attempt,
        } => Command::Withdraw {
            name: name(KEYS[key]),
            owner: super::owner(&format!("o{owner}")),
            attempt: Attempt::parse(&attempt.to_string()).unwrap(),
        },
        Act::Settle(key) => Command::Settle(name(KEYS[key])),
        Act::Die(node) => {
            space.dead.push(NodeId::new(NODES[node]));
            return None;
        }
        Act::ComeBack(node) => {
            space.dead.retain(|dead| dead.as_str() != NODES[node]);
            return None;
        }
        Act::Pass(time) => {
            space.now += time;
            return None;
        }
    })
}
