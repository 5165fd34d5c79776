//! Steps on rows, without a database.

use std::time::Duration;

use forrst_lock::model::{Acquire, Claim, LeaseRef, Share, Wait};
use forrst_lock::{LockKey, Owner, Ticket, Ttl};

use super::*;
use crate::postgres::row::Write;

fn name(key: &str) -> LockName {
    LockName::global(&LockKey::parse(key).unwrap())
}

fn runner() -> Runner {
    Runner {
        node: NodeId::new("own"),
        memory: ReleaseMemory::default(),
    }
}

fn moment() -> Moment {
    Moment {
        now: Timestamp::from_millis(Fences::EPOCH_MILLIS + 10),
        alive: None,
        fence_floor: 0,
    }
}

fn rows(keys: &[&str]) -> Rows {
    let mut rows = Rows::default();
    let names: Vec<LockName> = keys.iter().map(|key| name(key)).collect();
    rows.add_missing(&names);
    rows
}

fn acquire(keys: &[&str], node: &str, waits: bool) -> Command {
    let locks = keys.iter().map(|key| (name(key), Share::EXCLUSIVE));
    Command::Acquire(Acquire {
        claim: Claim {
            locks: Locks::new(locks.collect()).unwrap(),
            owner: Owner::parse("a").unwrap(),
            caller: None,
            note: None,
            attempt: None,
            ttl: Ttl::new(Duration::from_secs(60)).unwrap(),
        },
        ticket: Ticket::random(),
        node: Some(NodeId::new(node)),
        wait: waits.then_some(Wait {
            timeout: Duration::from_secs(60),
            max_queue: 10,
            rejoin: None,
        }),
    })
}

fn granted(step: Step) -> Lease {
    match step.outcome {
        Outcome::Acquired(Acquired::Granted(lease)) => lease,
        other => panic!("{other:?}"),
    }
}

fn release(lease: &Lease) -> Command {
    Command::Release(LeaseRef {
        name: lease.name().clone(),
        owner: lease.owner.clone(),
        fence: Some(lease.fence),
    })
}

#[test]
fn fences_of_a_key_grow_within_a_millisecond_and_above_the_floor() {
    let mut rows = rows(&["k", "other"]);
    let take = |rows: &mut Rows, keys: &[&str], moment: &Moment| {
        let lease = granted(
            rows.step(&acquire(keys, "own", false), moment, &runner())
                .unwrap(),
        );
        rows.step(&release(&lease), moment, &runner()).unwrap();
        lease.fence.number()
    };
    let first = take(&mut rows, &["k"], &moment());
    assert_eq!(take(&mut rows, &["k"], &moment()), first + 1);
    // Larger than those of all its keys.
    assert_eq!(take(&mut rows, &["k", "other"], &moment()), first + 2);
    assert_eq!(take(&mut rows, &["other"], &moment()), first + 3);
    let deleted = Moment {
        fence_floor: 1_000_000,
        ..moment()
    };
    assert_eq!(take(&mut rows, &["k"], &deleted), 1_000_001);
}

#[test]
fn a_step_that_needs_another_key_changes_nothing_and_names_it() {
    let mut all = rows(&["a", "b"]);
    let set = acquire(&["a", "b"], "own", false);
    let lease = granted(all.step(&set, &moment(), &runner()).unwrap());
    let mut some = Rows::default();
    some.by_name.extend(all.by_name.remove_entry(&name("a")));
    let before = format!("{:?}", some.by_name);
    let missing = some
        .step(&release(&lease), &moment(), &runner())
        .unwrap_err();
    assert_eq!(missing, [name("b")]);
    assert_eq!(format!("{:?}", some.by_name), before);
    some.by_name.extend(all.by_name.remove_entry(&name("b")));
    let released = some.step(&release(&lease), &moment(), &runner()).unwrap();
    assert_eq!(released.outcome, Outcome::Lease(Ok(lease)));
}

#[test]
fn only_the_nodes_that_are_concerned_are_notified() {
    let mut rows = rows(&["k"]);
    let mut step = |command: &Command| rows.step(command, &moment(), &runner()).unwrap();
    let lease = granted(step(&acquire(&["k"], "own", false)));
    let waits = acquire(&["k"], "other", true);
    let Command::Acquire(Acquire { ticket, .. }) = waits else {
        unreachable!()
    };
    assert_eq!(step(&waits).news, []);
    let released = step(&release(&lease));
    assert_eq!(released.news, [(NodeId::new("other"), News::Woken(ticket))]);
    assert_eq!(released.transitions.len(), 2, "ended and granted");
    let ended = step(&Command::ForceRelease {
        name: name("k"),
        fences: Vec::new(),
    });
    let [(node, News::Ended(ended_name, _))] = &ended.news[..] else {
        panic!("{:?}", ended.news)
    };
    assert_eq!((node.as_str(), ended_name), ("other", &name("k")));
}

#[test]
fn a_row_that_is_written_and_read_again_is_the_same() {
    let mut rows = rows(&["a", "b"]);
    let now = moment().now;
    for command in [
        acquire(&["a", "b"], "own", false),
        acquire(&["a"], "other", true),
        acquire(&["b", "a"], "own", true),
    ] {
        rows.step(&command, &moment(), &runner()).unwrap();
    }
    let fence = rows.fences[&name("a")];
    let row = rows.by_name.get_mut(&name("a")).unwrap();
    let Write::Row(written) = row.write(now, fence, false) else {
        panic!("it has changed")
    };
    assert_eq!(
        (written.holders, written.leases, written.waiters),
        (1, 1, 2)
    );
    let due = Some(written.due);
    let mut read = Row::read(&name("a"), written.state, due).unwrap();
    assert!(matches!(read.write(now, fence, false), Write::Nothing));
    assert_eq!(format!("{:?}", read.key), format!("{:?}", row.key));
    assert_eq!(read.nodes, row.nodes);
}
