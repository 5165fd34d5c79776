//! Rollback of steps, the limit of withdrawals, and the memory of a table.

use std::time::Duration;

use forrst_lock::model::{Acquire, Claim, LeaseRef, Share, Wait};
use forrst_lock::{Attempt, LockKey, Owner, Ticket, Ttl};
use proptest::prelude::*;

use super::*;

const MEMORY: ReleaseMemory = ReleaseMemory::MIN;

fn table(withdrawals: usize) -> Table {
    let max = Remembered {
        // Above the limit, releases of other keys are forgotten, and that is not rolled back.
        releases: 1000,
        withdrawals,
    };
    Table::new(max, MEMORY, Fences::default())
}

fn name(key: usize) -> LockName {
    LockName::global(&LockKey::parse(&key.to_string()).unwrap())
}

fn owner(owner: u128) -> Owner {
    Owner::parse(&owner.to_string()).unwrap()
}

fn run(table: &mut Table, command: &Command, now: Timestamp) -> (Outcome, Vec<Transition>) {
    let mut transitions = Vec::new();
    let mut fences = table.fences;
    let mut mint = |_: &Locks| fences.next(now);
    let outcome = match table.step_single_with(command, now, &mut mint, &mut transitions) {
        Some(outcome) => outcome,
        None => {
            let mut env = Env::single_node(now, &mut mint, MEMORY);
            step_any(
                &mut [&mut *table],
                &|_| 0,
                command,
                &mut env,
                &mut transitions,
            )
        }
    };
    table.fences = fences;
    (outcome, transitions)
}

/// Everything that a table has about its keys.
fn contents(table: &Table) -> String {
    let mut names: Vec<&LockName> = table.slots.keys().collect();
    names.sort();
    let keys = names.into_iter().filter_map(|name| {
        let key = table.get(name)?;
        let holders: Vec<_> = key.holders().collect();
        let is_new = holders.is_empty()
            && key.queue().is_empty()
            && key.releases().is_empty()
            && key.withdrawals().is_empty();
        let parts = (holders, key.queue(), key.releases(), key.withdrawals());
        (!is_new).then(|| format!("{name} {} {parts:?}", key.has_sets()))
    });
    let keys: Vec<String> = keys.collect();
    format!("{keys:#?} {:?} {:?}", table.indexes.due, table.counts())
}

fn command() -> impl Strategy<Value = Command> {
    let share = prop_oneof![
        Just(Share::EXCLUSIVE),
        Just(Share::SHARED),
        Just(Share::limit(2).unwrap()),
    ];
    let locks = proptest::collection::btree_map(0..3_usize, share, 1..=2);
    let attempt = proptest::option::of(0..3_u8);
    let acquire = (locks, 0..4_u128, attempt, any::<bool>(), 1..5_u64).prop_map(
        |(locks, ticket, attempt, waits, ttl)| {
            let locks = locks.into_iter().map(|(key, share)| (name(key), share));
            Command::Acquire(Acquire {
                claim: Claim {
                    locks: Locks::new(locks.collect()).unwrap(),
                    owner: owner(ticket),
                    caller: None,
                    note: None,
                    attempt: attempt.map(attempt_of),
                    ttl: Ttl::new(Duration::from_millis(ttl)).unwrap(),
                },
                ticket: Ticket(ticket),
                node: None,
                wait: waits.then_some(Wait {
                    timeout: Duration::from_millis(3),
                    max_queue: 3,
                    rejoin: None,
                }),
            })
        },
    );
    let held = |(key, ticket)| LeaseRef {
        name: name(key),
        owner: owner(ticket),
        fence: None,
    };
    let on_key = || (0..3_usize, 0..4_u128);
    prop_oneof![
        4 => acquire,
        2 => on_key().prop_map(move |on| Command::Release(held(on))),
        1 => on_key().prop_map(move |on| {
            Command::Extend(held(on), Ttl::new(Duration::from_millis(5)).unwrap())
        }),
        1 => on_key().prop_map(|(key, ticket)| Command::Abandon {
            name: name(key),
            ticket: Ticket(ticket)
        }),
        1 => (on_key(), 0..3_u8).prop_map(|((key, ticket), attempt)| Command::Withdraw {
            name: name(key),
            owner: owner(ticket),
            attempt: attempt_of(attempt)
        }),
        1 => (0..3_usize).prop_map(|key| Command::ForceRelease {
            name: name(key),
            fences: Vec::new()
        }),
        1 => (0..3_usize).prop_map(|key| Command::Settle(name(key))),
    ]
}

fn attempt_of(attempt: u8) -> Attempt {
    Attempt::parse(&attempt.to_string()).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn steps_that_are_rolled_back_leave_nothing_behind(
        rounds in proptest::collection::vec((any::<bool>(), proptest::collection::vec(command(), 1..6)), 1..12)
    ) {
        let mut table = table(100);
        table.enable_rollback();
        let mut now = Timestamp::from_millis(1_000_000);
        for (is_rolled_back, commands) in rounds {
            let before = contents(&table);
            let mut transitions = Vec::new();
            for command in commands {
                now = now + Duration::from_millis(1);
                transitions.append(&mut run(&mut table, &command, now).1);
            }
            if is_rolled_back {
                table.roll_back(transitions.iter(), now);
                prop_assert_eq!(contents(&table), before);
            } else {
                let after = contents(&table);
                table.accept(now);
                prop_assert_eq!(contents(&table), after);
            }
            prop_assert!(table.slots.values().all(|slot| !slot.key.is_vacant(now) || slot.is_recent || slot.has_tombstones));
        }
    }
}

#[test]
fn at_the_limit_no_withdrawal_is_forgotten_and_none_is_added() {
    let mut table = table(3);
    let start = Timestamp::from_millis(1_000_000);
    let withdraw = |key, attempt| Command::Withdraw {
        name: name(key),
        owner: owner(1),
        attempt: attempt_of(attempt),
    };
    for (key, attempt) in [(0, 0), (0, 1), (1, 0)] {
        let (outcome, _) = run(&mut table, &withdraw(key, attempt), start);
        assert_eq!(outcome, Outcome::Withdrawn(Withdrawn::Unknown));
    }
    let too_many = Outcome::Withdrawn(Withdrawn::TooMany);
    for key in [0, 1, 2] {
        assert_eq!(run(&mut table, &withdraw(key, 7), start).0, too_many);
    }
    // A repetition is not counted again.
    let (again, _) = run(&mut table, &withdraw(0, 1), start);
    assert_eq!(again, Outcome::Withdrawn(Withdrawn::Unknown));
    let known = |table: &Table, key| table.get(&name(key)).map(|key| key.withdrawals().len());
    assert_eq!(known(&table, 0), Some(2));
    assert_eq!(known(&table, 1), Some(1));
    let later = start + forrst_lock::model::WITHDRAWAL_TTL;
    let (outcome, _) = run(&mut table, &withdraw(2, 7), later);
    assert_eq!(outcome, Outcome::Withdrawn(Withdrawn::Unknown));
}

#[test]
fn a_table_that_was_full_frees_its_memory() {
    let mut table = table(0);
    let now = Timestamp::from_millis(1_000_000);
    for key in 0..10_000 {
        let acquire = Acquire {
            claim: Claim {
                locks: Locks::exclusive(name(key)),
                owner: owner(1),
                caller: None,
                note: None,
                attempt: None,
                ttl: Ttl::new(Duration::from_secs(1)).unwrap(),
            },
            ticket: Ticket(1),
            node: None,
            wait: None,
        };
        run(&mut table, &Command::Acquire(acquire), now);
    }
    let later = now + Duration::from_secs(1);
    while let Some(name) = table.first_due(later) {
        run(&mut table, &Command::Settle(name), later);
    }
    table.tidy(later);
    assert_eq!(table.len(), 0);
    assert!(table.slots.capacity() < 100, "{}", table.slots.capacity());
}
