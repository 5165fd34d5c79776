//! The model against a specification that is too slow to use, but short enough to check by reading.

use proptest::prelude::*;

use super::*;

/// One list of leases, and one list of claims in order of arrival. A claim is granted when no earlier one has any of its keys,
/// and it is compatible with the leases of each.
#[derive(Default)]
struct Specification {
    leases: Vec<(u128, Locks, u64)>,
    waiting: Vec<(u128, Locks, u64, u64)>,
}

fn touches(one: &Locks, other: &Locks) -> bool {
    one.names().any(|name| other.share_of(name).is_some())
}

impl Specification {
    fn fits(&self, locks: &Locks) -> bool {
        locks.as_slice().iter().all(|(name, share)| {
            let held = self
                .leases
                .iter()
                .filter_map(|(_, held, _)| held.share_of(name));
            let held: Vec<Kind> = held.map(Share::kind).collect();
            match share.kind() {
                Kind::Exclusive => held.is_empty(),
                Kind::Shared => held.iter().all(|kind| *kind == Kind::Shared),
                Kind::Limit(n) => {
                    held.len() < n as usize && held.iter().all(|kind| *kind == Kind::Limit(n))
                }
            }
        })
    }

    /// Ends what has expired, grants what can be granted, and returns the tickets of the grants.
    fn settle(&mut self, now: u64) -> Vec<u128> {
        self.leases.retain(|(_, _, end)| *end > now);
        self.waiting.retain(|(_, _, _, until)| *until > now);
        let mut granted = Vec::new();
        let mut index = 0;
        while index < self.waiting.len() {
            let (ticket, locks, ttl, _) = &self.waiting[index];
            let is_first = !self.waiting[..index]
                .iter()
                .any(|(_, before, ..)| touches(before, locks));
            if is_first && self.fits(locks) {
                granted.push(*ticket);
                self.leases.push((*ticket, locks.clone(), now + ttl));
                self.waiting.remove(index);
                // The removal can only unblock later claims.
            } else {
                index += 1;
            }
        }
        granted
    }

    fn acquire(
        &mut self,
        ticket: u128,
        locks: &Locks,
        ttl: u64,
        wait: Option<u64>,
        now: u64,
    ) -> &'static str {
        let is_first = !self
            .waiting
            .iter()
            .any(|(_, before, ..)| touches(before, locks));
        if is_first && self.fits(locks) {
            self.leases.push((ticket, locks.clone(), now + ttl));
            return "granted";
        }
        match wait {
            Some(wait) => {
                self.waiting.push((ticket, locks.clone(), ttl, now + wait));
                "queued"
            }
            None => "held",
        }
    }
}

#[derive(Debug, Clone)]
enum Act {
    Acquire {
        locks: Vec<(usize, Share)>,
        ttl: u64,
        wait: Option<u64>,
    },
    /// Numbers choose an earlier call, modulo their count.
    Release(usize),
    Abandon(usize),
    Force(usize),
    Pass(u64),
}

const KEYS: [&str; 4] = ["a", "b", "c", "d"];

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let share = prop_oneof![
        3 => Just(Share::EXCLUSIVE),
        2 => Just(Share::SHARED),
        1 => Just(Share::limit(1).unwrap()),
        2 => Just(Share::limit(2).unwrap()),
    ];
    let locks = prop::collection::btree_map(0..KEYS.len(), share, 1..=3);
    let locks = locks.prop_map(|locks| locks.into_iter().collect());
    let act = prop_oneof![
        5 => (locks, 5..60_u64, prop::option::weighted(0.8, 5..60_u64))
            .prop_map(|(locks, ttl, wait)| Act::Acquire { locks, ttl, wait }),
        4 => any::<usize>().prop_map(Act::Release),
        2 => any::<usize>().prop_map(Act::Abandon),
        1 => (0..KEYS.len()).prop_map(Act::Force),
        3 => (1..20_u64).prop_map(Act::Pass),
    ];
    prop::collection::vec(act, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn the_model_agrees_with_the_specification(acts in acts()) {
        let mut space = Keyspace::default();
        let mut specification = Specification::default();
        let mut calls: Vec<(u128, Locks)> = Vec::new();
        let mut fences: HashMap<LockName, Fence> = HashMap::new();
        for act in acts {
            // Before each command, calls time out and alarms settle keys, as in a service.
            for (ticket, locks, _, until) in &specification.waiting {
                if *until <= space.now {
                    let name = locks.first().clone();
                    space.run(Command::Abandon { name, ticket: Ticket(*ticket) });
                    for (_, lease) in space.woken() {
                        note(&mut fences, &lease)?;
                    }
                }
            }
            for key in KEYS {
                space.run(Command::Settle(name(key)));
                for (ticket, lease) in space.woken() {
                    note(&mut fences, &lease)?;
                    prop_assert!(specification.waiting.iter().any(|(it, ..)| *it == ticket));
                }
            }
            specification.settle(space.now);
            same(&mut space, &specification)?;
            match act {
                Act::Acquire { locks, ttl, wait } => {
                    let ticket = calls.len() as u128;
                    let locks: Vec<_> = locks.iter().map(|(key, share)| (KEYS[*key], *share)).collect();
                    let mut request = request(ticket, &locks).lasts(ttl);
                    if let Some(wait) = wait {
                        request = request.waits(wait);
                    }
                    let locks = request.claim.locks.clone();
                    calls.push((ticket, locks.clone()));
                    let expected = specification.acquire(ticket, &locks, ttl, wait, space.now);
                    let acquired = match space.acquire(request) {
                        Acquired::Granted(lease) => {
                            note(&mut fences, &lease)?;
                            "granted"
                        }
                        Acquired::Queued { obstacle, .. } => {
                            prop_assert!(!obstacle.blocked_by.is_empty());
                            "queued"
                        }
                        Acquired::Held(_) => "held",
                        other => panic!("{other:?}"),
                    };
                    prop_assert_eq!(acquired, expected);
                }
                Act::Release(_) | Act::Abandon(_) if calls.is_empty() => {}
                Act::Release(index) => {
                    let (ticket, locks) = calls[index % calls.len()].clone();
                    let which = index % locks.as_slice().len();
                    let key = locks.as_slice()[which].0.clone();
                    let held = held(key.as_str(), &owner(&format!("o{ticket}")), None);
                    let released = space.run(Command::Release(held));
                    let is_held = specification.leases.iter().any(|(it, ..)| *it == ticket);
                    prop_assert_eq!(matches!(released, Outcome::Lease(Ok(_))), is_held);
                    specification.leases.retain(|(it, ..)| *it != ticket);
                    settled(&mut space, &mut specification, &mut fences)?;
                }
                Act::Abandon(index) => {
                    let (ticket, locks) = calls[index % calls.len()].clone();
                    let abandon = Command::Abandon { name: locks.first().clone(), ticket: Ticket(ticket) };
                    space.run(abandon);
                    specification.leases.retain(|(it, ..)| *it != ticket);
                    specification.waiting.retain(|(it, ..)| *it != ticket);
                    settled(&mut space, &mut specification, &mut fences)?;
                }
                Act::Force(key) => {
                    let key = name(KEYS[key]);
                    space.run(Command::ForceRelease { name: key.clone(), fences: Vec::new() });
                    specification.leases.retain(|(_, locks, _)| locks.share_of(&key).is_none());
                    settled(&mut space, &mut specification, &mut fences)?;
                }
                Act::Pass(time) => space.now += time,
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 5000, ..ProptestConfig::default() })]

    /// Even if leases have expired or calls have timed out since the last step.
    #[test]
    fn no_claim_waits_that_could_be_granted(acts in acts()) {
        let mut space = Keyspace::default();
        let mut calls: Vec<(u128, Locks)> = Vec::new();
        for act in acts {
            match act {
                Act::Acquire { locks, ttl, wait } => {
                    let ticket = calls.len() as u128;
                    let locks: Vec<_> = locks.iter().map(|(key, share)| (KEYS[*key], *share)).collect();
                    let mut request = request(ticket, &locks).lasts(ttl);
                    if let Some(wait) = wait {
                        request = request.waits(wait);
                    }
                    calls.push((ticket, request.claim.locks.clone()));
                    space.acquire(request);
                }
                Act::Release(_) | Act::Abandon(_) if calls.is_empty() => {}
                Act::Release(index) => {
                    let (ticket, locks) = &calls[index % calls.len()];
                    let held = held(locks.first().as_str(), &owner(&format!("o{ticket}")), None);
                    space.run(Command::Release(held));
                }
                Act::Abandon(index) => {
                    let (ticket, locks) = &calls[index % calls.len()];
                    let name = locks.first().clone();
                    space.run(Command::Abandon { name, ticket: Ticket(*ticket) });
                }
                Act::Force(key) => {
                    space.run(Command::ForceRelease { name: name(KEYS[key]), fences: Vec::new() });
                }
                Act::Pass(time) => space.now += time,
            }
            prop_assert_eq!(space.first_that_could_be_granted(&KEYS), None);
        }
    }
}

/// Checks that the last step granted exactly what the specification grants.
fn settled(
    space: &mut Keyspace,
    specification: &mut Specification,
    fences: &mut HashMap<LockName, Fence>,
) -> Result<(), TestCaseError> {
    let mut expected = specification.settle(space.now);
    let mut woken = space.woken_tickets();
    expected.sort_unstable();
    woken.sort_unstable();
    prop_assert_eq!(woken, expected);
    for (_, lease) in space.woken() {
        note(fences, &lease)?;
    }
    Ok(())
}

/// Checks that fences grow for each key of a lease.
fn note(fences: &mut HashMap<LockName, Fence>, lease: &Lease) -> Result<(), TestCaseError> {
    for name in lease.locks.names() {
        let before = fences.insert(name.clone(), lease.fence);
        prop_assert!(before < Some(lease.fence));
    }
    Ok(())
}

/// Checks that leases and queues are the same.
fn same(space: &mut Keyspace, specification: &Specification) -> Result<(), TestCaseError> {
    for key in KEYS {
        let name = name(key);
        let held = specification
            .leases
            .iter()
            .filter(|(_, locks, _)| locks.share_of(&name).is_some());
        let mut held: Vec<String> = held.map(|(ticket, ..)| format!("o{ticket}")).collect();
        let waiting = specification
            .waiting
            .iter()
            .filter(|(_, locks, ..)| locks.share_of(&name).is_some());
        let waiting: Vec<String> = waiting.map(|(ticket, ..)| format!("o{ticket}")).collect();
        let found = space.keys.key(&name);
        let mut holders: Vec<String> = found
            .holders()
            .map(|it| it.lease.owner.to_string())
            .collect();
        let queue: Vec<String> = found
            .queue()
            .iter()
            .map(|it| it.claim.owner.to_string())
            .collect();
        held.sort();
        holders.sort();
        prop_assert_eq!(holders, held, "who holds {}", key);
        prop_assert_eq!(queue, waiting, "who waits for {}", key);
    }
    Ok(())
}
