//! Scenarios of the model, one rule each.

use super::*;

#[test]
fn an_exclusive_lock_has_one_holder_and_a_queue() {
    let mut space = Keyspace::default();
    let first = space.granted(exclusive(1, "k"));
    assert_eq!(space.blocked_by(exclusive(2, "k")), [name("k")]);
    space.queued(exclusive(3, "k").waits(50));
    space.queued(exclusive(4, "k").waits(50));
    assert_eq!(space.release(&first), Ok(first.clone()));
    let (ticket, second) = space.woken().remove(0);
    assert_eq!(ticket, 3);
    assert!(second.fence > first.fence);
    assert_eq!(space.waiters("k"), 1);
    assert_eq!(
        space.release(&first),
        Err(NotHeld::AlreadyReleased { forced: false })
    );
}

#[test]
fn readers_share_and_a_waiting_writer_is_not_overtaken() {
    let mut space = Keyspace::default();
    let readers = [1, 2].map(|ticket| space.granted(request(ticket, &[("k", shared())])));
    space.queued(exclusive(3, "k").waits(50));
    assert_eq!(
        space.blocked_by(request(4, &[("k", shared())])),
        [name("k")]
    );
    space.queued(request(5, &[("k", shared())]).waits(50));
    space.queued(request(6, &[("k", shared())]).waits(50));
    space.release(&readers[0]).unwrap();
    assert_eq!(space.woken_tickets(), []);
    space.release(&readers[1]).unwrap();
    assert_eq!(space.woken_tickets(), [3]);
    let writer = space.woken().remove(0).1;
    space.release(&writer).unwrap();
    assert_eq!(
        space.woken_tickets(),
        [5, 6],
        "compatible neighbours are granted together"
    );
}

#[test]
fn a_limit_admits_exactly_that_many() {
    let mut space = Keyspace::default();
    let leases = [1, 2, 3].map(|ticket| space.granted(request(ticket, &[("k", limit(3))])));
    space.queued(request(4, &[("k", limit(3))]).waits(50));
    assert_eq!(space.holders("k"), 3);
    space.release(&leases[1]).unwrap();
    assert_eq!(space.woken_tickets(), [4]);
    assert_eq!(space.holders("k"), 3);
}

#[test]
fn another_limit_or_another_kind_waits_until_the_key_is_free() {
    let mut space = Keyspace::default();
    let lease = space.granted(request(1, &[("k", limit(3))]));
    for (ticket, share) in [
        (2, limit(4)),
        (3, shared()),
        (4, Share::EXCLUSIVE),
        (5, limit(1)),
    ] {
        assert_eq!(
            space.blocked_by(request(ticket, &[("k", share)])),
            [name("k")]
        );
    }
    space.queued(request(6, &[("k", limit(4))]).waits(50));
    space.release(&lease).unwrap();
    assert_eq!(space.woken_tickets(), [6]);
}

#[test]
fn a_set_is_granted_as_a_whole_or_waits_as_a_whole() {
    let mut space = Keyspace::default();
    let b = space.granted(exclusive(1, "b"));
    assert_eq!(space.blocked_by(set(2, &["a", "b", "c"])), [name("b")]);
    assert_eq!(space.holders("a") + space.holders("c"), 0);
    space.queued(set(3, &["c", "b", "a"]).waits(50));
    for key in ["a", "b", "c"] {
        assert_eq!(space.waiters(key), 1, "{key}");
    }
    // Its free keys are reserved for it.
    assert_eq!(space.blocked_by(exclusive(4, "a")), [name("a")]);
    space.release(&b).unwrap();
    let (ticket, lease) = space.woken().remove(0);
    assert_eq!((ticket, lease.locks.names().len()), (3, 3));
    for key in ["a", "b", "c"] {
        assert_eq!((space.holders(key), space.waiters(key)), (1, 0), "{key}");
    }
    // It can be released by any of its keys, and ends on all of them.
    let held = held("lock:b", &lease.owner, None);
    assert_eq!(space.run(Command::Release(held)), Outcome::Lease(Ok(lease)));
    for key in ["a", "b", "c"] {
        assert_eq!(space.holders(key), 0, "{key}");
    }
}

#[test]
fn a_set_that_leaves_the_queue_unblocks_claims_at_every_key() {
    let mut space = Keyspace::default();
    let b = space.granted(exclusive(1, "b"));
    space.queued(set(2, &["a", "b"]).waits(50));
    space.queued(exclusive(3, "a").waits(50));
    space.queued(exclusive(4, "b").waits(50));
    let abandon = Command::Abandon {
        name: name("b"),
        ticket: Ticket(2),
    };
    let in_the_way = Obstacle {
        blocked_by: vec![name("b")],
        retry_at: b.expires_at,
    };
    assert_eq!(
        space.run(abandon),
        Outcome::Abandoned(Abandoned::LeftQueue(in_the_way))
    );
    assert_eq!(space.woken_tickets(), [3]);
    space.release(&b).unwrap();
    assert_eq!(space.woken_tickets(), [4]);
}

#[test]
fn sets_in_opposite_order_take_turns() {
    let mut space = Keyspace::default();
    let mut lease = space.granted(set(1, &["a", "b"]));
    space.queued(set(2, &["b", "a"]).waits(5000));
    for ticket in 3..50 {
        let keys: &[&str] = if ticket % 2 == 0 {
            &["a", "b"]
        } else {
            &["b", "a"]
        };
        space.queued(set(ticket, keys).waits(5000));
        space.release(&lease).unwrap();
        let (woken, next) = space.woken().remove(0);
        assert_eq!(woken, ticket - 1);
        lease = next;
    }
}

#[test]
fn an_expired_lease_of_a_set_ends_at_every_key() {
    let mut space = Keyspace::default();
    space.granted(set(1, &["a", "b"]));
    space.queued(exclusive(2, "b").waits(500));
    space.now = 100;
    space.granted(exclusive(3, "a"));
    assert_eq!(space.ended(), [End::Expired]);
    assert_eq!(space.woken_tickets(), [2]);
}

#[test]
fn a_step_ends_expired_leases_on_the_other_keys_of_a_waiting_set() {
    let mut space = Keyspace::default();
    space.granted(exclusive(1, "a").lasts(100));
    let b = space.granted(exclusive(2, "b").lasts(1000));
    space.queued(set(3, &["a", "b"]).waits(5000));
    space.now = 200;
    // The command only names `b`, but the lease of `a` has expired.
    space.release(&b).unwrap();
    assert_eq!(space.woken_tickets(), [3]);
    assert_eq!(space.ended(), [End::Released, End::Expired]);
}

#[test]
fn a_claim_that_has_timed_out_does_not_block_a_set() {
    let mut space = Keyspace::default();
    space.granted(exclusive(1, "b").lasts(1000));
    space.queued(set(2, &["a", "b"]).waits(50));
    space.queued(set(3, &["a", "c"]).waits(5000));
    space.now = 60;
    space.run(Command::Settle(name("c")));
    let in_the_way = Obstacle {
        blocked_by: vec![name("b")],
        retry_at: at(1000),
    };
    assert_eq!(space.dismissed(), [(2, Wake::TimedOut(in_the_way))]);
    assert_eq!(space.woken_tickets(), [3]);
}

#[test]
fn a_waiter_comes_before_a_newcomer_even_if_the_lease_has_just_expired() {
    let mut space = Keyspace::default();
    space.granted(exclusive(1, "k"));
    space.queued(exclusive(2, "k").waits(5000));
    space.now = 100;
    assert_eq!(space.blocked_by(exclusive(3, "k")), [name("k")]);
    assert_eq!(space.woken_tickets(), [2]);
}

#[test]
fn a_command_does_not_act_on_a_lease_granted_in_the_same_step() {
    let mut space = Keyspace::default();
    space.granted(exclusive(1, "k"));
    space.queued(exclusive(2, "k").waits(5000));
    space.now = 100;
    let force = Command::ForceRelease {
        name: name("k"),
        fences: Vec::new(),
    };
    assert_eq!(space.run(force), Outcome::Forced(Err(NotHeld::NotFound)));
    assert_eq!(space.woken_tickets(), [2]);
    assert_eq!(space.holders("k"), 1);
}

#[test]
fn an_owner_with_several_leases_has_to_name_one() {
    let mut space = Keyspace::default();
    let leases = [1, 2].map(|ticket| {
        let request = request(ticket, &[("k", shared())]).attempts("me", &ticket.to_string());
        space.granted(request)
    });
    let any = held("lock:k", &owner("me"), None);
    let outcome = space.run(Command::Release(any.clone()));
    assert_eq!(outcome, Outcome::Lease(Err(NotHeld::Ambiguous)));
    assert_eq!(space.release(&leases[0]), Ok(leases[0].clone()));
    let outcome = space.run(Command::Release(any));
    assert_eq!(outcome, Outcome::Lease(Ok(leases[1].clone())));
}

#[test]
fn force_release_ends_every_lease_or_the_named_one() {
    let mut space = Keyspace::default();
    let leases = [1, 2, 3].map(|ticket| space.granted(request(ticket, &[("k", shared())])));
    let force = |fence: Option<Fence>| Command::ForceRelease {
        name: name("k"),
        fences: fence.into_iter().collect(),
    };
    let one = space.run(force(Some(leases[1].fence)));
    assert_eq!(one, Outcome::Forced(Ok(vec![leases[1].clone()])));
    let gone = space.run(force(Some(leases[1].fence)));
    assert_eq!(gone, Outcome::Forced(Err(NotHeld::OwnedByAnother)));
    let all = space.run(force(None));
    assert_eq!(
        all,
        Outcome::Forced(Ok(vec![leases[0].clone(), leases[2].clone()]))
    );
    assert_eq!(
        space.run(force(None)),
        Outcome::Forced(Err(NotHeld::NotFound))
    );
    assert_eq!(
        space.release(&leases[0]),
        Err(NotHeld::AlreadyReleased { forced: true })
    );
}

#[test]
fn a_lease_is_extended_as_a_whole() {
    let mut space = Keyspace::default();
    let lease = space.granted(set(1, &["a", "b"]));
    space.now = 50;
    let ttl = Ttl::new(Duration::from_millis(200)).unwrap();
    let extend = Command::Extend(held("lock:b", &lease.owner, None), ttl);
    let Outcome::Lease(Ok(extended)) = space.run(extend) else {
        panic!("should be extended");
    };
    assert_eq!(extended.expires_at, at(250));
    space.now = 249;
    assert_eq!(space.blocked_by(exclusive(2, "a")), [name("a")]);
    space.now = 250;
    space.granted(exclusive(2, "a"));
}

#[test]
fn a_repeated_attempt_gets_the_same_lease() {
    let mut space = Keyspace::default();
    let lease = space.granted(exclusive(1, "k").attempts("me", "one"));
    assert_eq!(
        space.granted(exclusive(2, "k").attempts("me", "one")),
        lease
    );
    space.blocked_by(exclusive(3, "k").attempts("me", "two"));
    space.blocked_by(exclusive(4, "k").attempts("other", "one"));
    let abandon = |ticket| Command::Abandon {
        name: name("k"),
        ticket: Ticket(ticket),
    };
    // The owner may have received either answer, so the lease ends when both calls are abandoned.
    assert_eq!(
        space.run(abandon(1)),
        Outcome::Abandoned(Abandoned::Nothing)
    );
    assert_eq!(
        space.run(abandon(2)),
        Outcome::Abandoned(Abandoned::Returned(lease))
    );
    assert_eq!(space.ended(), [End::Abandoned]);
}

#[test]
fn calls_of_one_attempt_share_a_position_and_the_lease() {
    let mut space = Keyspace::default();
    let lease = space.granted(exclusive(1, "k"));
    let position = space.queued(exclusive(2, "k").attempts("me", "one").waits(50));
    space.queued(exclusive(3, "k").waits(5000));
    let again = space.queued(exclusive(4, "k").attempts("me", "one").waits(5000));
    assert_eq!(again, position);
    assert_eq!(space.waiters("k"), 2);
    // The first call has timed out, and the second one keeps the position.
    space.now = 60;
    let abandon = Command::Abandon {
        name: name("k"),
        ticket: Ticket(2),
    };
    let outcome = space.run(abandon);
    assert!(matches!(
        outcome,
        Outcome::Abandoned(Abandoned::LeftQueue(_))
    ));
    space.release(&lease).unwrap();
    assert_eq!(space.woken_tickets(), [4]);
}

#[test]
fn all_calls_of_an_attempt_get_the_same_lease() {
    let mut space = Keyspace::default();
    let lease = space.granted(exclusive(1, "k"));
    space.queued(exclusive(2, "k").attempts("me", "one").waits(50));
    space.queued(exclusive(3, "k").attempts("me", "one").waits(50));
    // A call that does not wait is refused, and changes nothing.
    space.blocked_by(exclusive(4, "k").attempts("me", "one"));
    space.release(&lease).unwrap();
    let woken = space.woken();
    assert_eq!(space.woken_tickets(), [2, 3]);
    assert_eq!(woken[0].1, woken[1].1);
    assert_eq!(space.holders("k"), 1);
}

#[test]
fn a_repeated_attempt_must_have_the_same_keys_and_kinds() {
    let mut space = Keyspace::default();
    space.granted(exclusive(1, "k").attempts("me", "one"));
    for other in [
        request(2, &[("k", shared())]),
        request(2, &[("k", limit(1))]),
        set(2, &["k", "l"]),
    ] {
        let other = other.attempts("me", "one").waits(50);
        assert_eq!(space.acquire(other), Acquired::AttemptMismatch);
    }
    assert_eq!(space.waiters("k") + space.waiters("l"), 0);
}

#[test]
fn an_attempt_is_withdrawn_with_its_lease_or_position() {
    let mut space = Keyspace::default();
    let withdraw = |attempt: &str| Command::Withdraw {
        name: name("k"),
        owner: owner("me"),
        attempt: Attempt::parse(attempt).unwrap(),
    };
    let lease = space.granted(set(1, &["k", "l"]).attempts("me", "one"));
    space.queued(set(2, &["k", "m"]).attempts("me", "two").waits(5000));
    let waiting = space.run(withdraw("two"));
    assert_eq!(waiting, Outcome::Withdrawn(Withdrawn::Waiting));
    assert_eq!(space.dismissed(), [(2, Wake::Withdrawn)]);
    assert_eq!(space.waiters("m"), 0);
    let had = space.run(withdraw("one"));
    assert_eq!(had, Outcome::Withdrawn(Withdrawn::Held(lease)));
    assert_eq!(space.holders("l"), 0);
    // A call that arrives later is refused, for a minute.
    let unknown = space.run(withdraw("three"));
    assert_eq!(unknown, Outcome::Withdrawn(Withdrawn::Unknown));
    for attempt in ["one", "two", "three"] {
        let late = exclusive(9, "k").attempts("me", attempt);
        assert_eq!(space.acquire(late), Acquired::Withdrawn, "{attempt}");
    }
    space.now = 60_000;
    space.granted(exclusive(9, "k").attempts("me", "three"));
}

#[test]
fn a_grant_to_another_node_has_to_be_confirmed() {
    let mut space = Keyspace {
        node: Some(NodeId::new("a")),
        ..Keyspace::default()
    };
    let lease = space.granted(set(1, &["k", "l"]).lasts(60_000).from("a"));
    space.queued(set(2, &["k", "l"]).lasts(60_000).waits(60_000).from("b"));
    space.queued(exclusive(3, "l").lasts(60_000).waits(60_000).from("a"));
    space.release(&lease).unwrap();
    let unconfirmed = space.woken().remove(0).1;
    space.now = 4999;
    space.run(Command::Settle(name("l")));
    assert_eq!(space.woken_tickets(), []);
    space.now = 5000;
    space.run(Command::Settle(name("l")));
    assert_eq!(space.ended(), [End::Unconfirmed]);
    assert_eq!(space.woken_tickets(), [3]);
    let late = Command::Confirm {
        name: name("k"),
        fence: unconfirmed.fence,
    };
    assert_eq!(space.run(late), Outcome::Lease(Err(NotHeld::NotFound)));
}

#[test]
fn a_confirmed_grant_lasts_until_its_expiry() {
    let mut space = Keyspace {
        node: Some(NodeId::new("a")),
        ..Keyspace::default()
    };
    let lease = space.granted(exclusive(1, "k").lasts(60_000).from("a"));
    space.queued(exclusive(2, "k").lasts(60_000).waits(60_000).from("b"));
    space.release(&lease).unwrap();
    let lease = space.woken().remove(0).1;
    space.now = 4999;
    let confirm = Command::Confirm {
        name: name("k"),
        fence: lease.fence,
    };
    assert_eq!(space.run(confirm), Outcome::Lease(Ok(lease)));
    space.now = 59_999;
    space.run(Command::Settle(name("k")));
    assert_eq!(space.ended(), []);
}

#[test]
fn waiters_of_a_dead_node_are_skipped_and_can_rejoin() {
    let mut space = Keyspace {
        node: Some(NodeId::new("a")),
        ..Keyspace::default()
    };
    let lease = space.granted(exclusive(1, "k").from("a"));
    let position = space.queued(set(2, &["k", "l"]).waits(5000).from("b"));
    space.queued(exclusive(3, "k").waits(5000).from("a"));
    space.dead = vec![NodeId::new("b")];
    space.release(&lease).unwrap();
    assert_eq!(
        (space.woken_tickets(), space.dismissed()),
        (vec![3], vec![])
    );
    assert_eq!(space.waiters("l"), 0);
    // It rejoins ahead of later arrivals.
    space.dead.clear();
    space.queued(exclusive(4, "k").waits(5000).from("a"));
    let mut again = set(2, &["k", "l"]).waits(5000).from("b");
    again.wait.as_mut().unwrap().rejoin = Some((position, at(5000)));
    assert_eq!(space.queued(again), position);
    space.now = 100;
    space.run(Command::Settle(name("k")));
    assert_eq!(space.woken_tickets(), [2]);
}

#[test]
fn a_call_that_rejoins_is_granted_a_free_lock_unless_it_has_timed_out() {
    let mut space = Keyspace::default();
    let lease = space.granted(exclusive(1, "k"));
    let position = space.queued(exclusive(2, "k").waits(50));
    space.keys.key(&name("k")).dequeue(position);
    space.release(&lease).unwrap();
    let again = |until| {
        let mut again = exclusive(2, "k").waits(50);
        again.wait.as_mut().unwrap().rejoin = Some((position, at(until)));
        again
    };
    space.now = 50;
    assert_eq!(space.acquire(again(50)), Acquired::TimedOut);
    space.granted(again(51));
}

#[test]
fn a_call_that_rejoins_after_its_attempt_was_released_is_refused() {
    for is_forced in [false, true] {
        let mut space = Keyspace::default();
        let lease = space.granted(set(1, &["k", "l"]));
        let call = |ticket, attempt| {
            let call = set(ticket, &["k", "l"]).attempts("me", attempt);
            call.waits(90_000)
        };
        let position = space.queued(call(2, "one"));
        space.queued(call(3, "one"));
        space.release(&lease).unwrap();
        let (_, lease) = space.woken().remove(0);
        let again = |ticket, attempt| {
            let mut again = call(ticket, attempt);
            again.wait.as_mut().unwrap().rejoin = Some((position, at(90_000)));
            again
        };
        // It receives the lease of its attempt.
        assert_eq!(space.granted(again(2, "one")), lease);
        match is_forced {
            true => drop(space.run(Command::ForceRelease {
                name: name("l"),
                fences: Vec::new(),
            })),
            false => drop(space.release(&lease)),
        }
        assert_eq!(space.acquire(again(2, "one")), Acquired::Withdrawn);
        let other = space.granted(again(5, "two"));
        // It does not wait for the next lease either.
        assert_eq!(space.acquire(again(2, "one")), Acquired::Withdrawn);
        space.release(&other).unwrap();
        // A call that does not rejoin is newer than the release. One that rejoins then shares its lease.
        let newer = set(4, &["k", "l"]).attempts("me", "one");
        let newer = space.granted(newer);
        assert_eq!(space.granted(again(2, "one")), newer);
        space.release(&newer).unwrap();
        space.now += 30_000;
        space.granted(again(2, "one"));
    }
}

#[test]
fn when_fences_are_exhausted_nothing_is_granted_and_no_claim_waits() {
    let mut space = Keyspace {
        fences: Some(1),
        ..Keyspace::default()
    };
    let lease = space.granted(exclusive(1, "k"));
    space.queued(set(2, &["k", "l"]).waits(5000));
    space.release(&lease).unwrap();
    assert_eq!(space.dismissed(), [(2, Wake::FencesExhausted)]);
    assert_eq!(space.acquire(exclusive(3, "l")), Acquired::FencesExhausted);
    assert_eq!(space.waiters("l"), 0);
}

#[test]
fn a_full_queue_refuses_and_a_set_counts_in_each_queue() {
    let mut space = Keyspace::default();
    space.granted(exclusive(1, "k"));
    space.queued(set(2, &["k", "l"]).waits(5000));
    let mut third = set(3, &["l", "m"]).waits(5000);
    third.wait.as_mut().unwrap().max_queue = 1;
    assert!(matches!(space.acquire(third), Acquired::QueueFull(_)));
    assert_eq!(space.waiters("m"), 0);
}

#[test]
fn a_refusal_names_the_blocking_keys_and_when_to_retry() {
    let mut space = Keyspace::default();
    space.granted(exclusive(1, "a").lasts(300));
    space.granted(request(2, &[("b", shared())]).lasts(200));
    space.granted(request(3, &[("b", shared())]).lasts(500));
    let refused = space.acquire(set(4, &["a", "b", "c"]));
    let Acquired::Held(obstacle) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(obstacle.blocked_by, [name("a"), name("b")]);
    assert_eq!(obstacle.retry_at, at(200));
    // A free key that is reserved is blocked for as long as the claim at its head.
    space.queued(set(5, &["a", "c"]).waits(5000));
    let refused = space.acquire(exclusive(6, "c"));
    let Acquired::Held(obstacle) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(obstacle.blocked_by, [name("c")]);
    assert_eq!(obstacle.retry_at, at(300));
}

#[test]
fn an_older_release_is_found_by_its_fence_and_the_newest_without_one() {
    let mut space = Keyspace::default();
    let me = owner("me");
    let request = |ticket| exclusive(ticket, "k").attempts("me", &ticket.to_string());
    let first = space.granted(request(1));
    space.release(&first).unwrap();
    let second = space.granted(request(2));
    let release = |space: &mut Keyspace, fence| match space
        .run(Command::Release(held("lock:k", &me, fence)))
    {
        Outcome::Lease(lease) => lease,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        release(&mut space, Some(first.fence)),
        Err(NotHeld::OwnedByAnother)
    );
    space.now = 100;
    // The newest lease has expired, and the release of an older one does not count.
    assert_eq!(release(&mut space, None), Err(NotHeld::NotFound));
    let already = Err(NotHeld::AlreadyReleased { forced: false });
    assert_eq!(release(&mut space, Some(first.fence)), already);
    assert_eq!(
        release(&mut space, Some(second.fence)),
        Err(NotHeld::NotFound)
    );
    space.now = 30_000;
    assert_eq!(
        release(&mut space, Some(first.fence)),
        Err(NotHeld::NotFound)
    );
}

#[test]
fn sixteen_releases_are_remembered() {
    let mut space = Keyspace::default();
    let leases: Vec<Lease> = (0..17)
        .map(|ticket| {
            let lease = space.granted(exclusive(ticket, "k"));
            space.release(&lease).unwrap();
            lease
        })
        .collect();
    assert_eq!(space.release(&leases[0]), Err(NotHeld::NotFound));
    for lease in &leases[1..] {
        assert_eq!(
            space.release(lease),
            Err(NotHeld::AlreadyReleased { forced: false })
        );
    }
}

#[test]
fn a_key_is_vacant_when_it_has_no_state_left() {
    let mut space = Keyspace::default();
    let lease = space.granted(set(1, &["a", "b"]));
    space.release(&lease).unwrap();
    let key = space.keys.key(&name("a"));
    assert!(!key.is_vacant(at(29_999)) && key.is_vacant(at(30_000)));
    assert!(!key.has_sets());
    let kept = KeySnapshot {
        releases: key.releases().to_vec(),
        ..KeySnapshot::default()
    };
    let restored = Key::restored(name("a"), kept).unwrap();
    assert_eq!(restored.releases(), key.releases());
}

#[test]
fn releases_are_remembered_for_a_second_to_an_hour() {
    for (millis, is_allowed) in [
        (0, false),
        (999, false),
        (1_000, true),
        (3_600_000, true),
        (3_600_001, false),
    ] {
        let memory = ReleaseMemory::new(Duration::from_millis(millis));
        assert_eq!(memory.is_some(), is_allowed, "{millis}");
    }
}

#[test]
fn a_lease_that_ends_at_another_key_of_a_set_unblocks_claims_there() {
    let mut space = Keyspace::default();
    space.granted(exclusive(1, "b").lasts(15));
    let a = space.granted(exclusive(2, "a").lasts(600));
    let d = space.granted(exclusive(3, "d").lasts(600));
    space.queued(set(4, &["b", "d"]).waits(600));
    space.queued(set(5, &["a", "b"]).waits(600));
    space.release(&d).unwrap();
    space.now = 16;
    // To grant 5, this settles `b`, where the lease has expired, which grants 4.
    space.release(&a).unwrap();
    assert_eq!(space.woken_tickets(), [4]);
}

#[test]
fn a_claim_that_leaves_another_queue_of_a_set_unblocks_claims_there() {
    let mut space = Keyspace::default();
    space.granted(request(1, &[("b", shared())]).lasts(600));
    let a = space.granted(exclusive(2, "a").lasts(600));
    space.queued(exclusive(3, "b").waits(10));
    space.queued(request(4, &[("b", shared())]).waits(600));
    space.queued(set(5, &["a", "b"]).waits(600));
    space.now = 11;
    space.release(&a).unwrap();
    assert_eq!(space.woken_tickets(), [4]);
}

#[test]
fn a_reserved_key_is_retried_when_the_lease_that_blocks_its_claim_ends() {
    let mut space = Keyspace::default();
    space.granted(exclusive(1, "d").lasts(70));
    space.queued(set(2, &["c", "d"]).waits(600));
    space.queued(set(3, &["b", "c"]).waits(600));
    space.queued(set(4, &["a", "b"]).waits(600));
    let Acquired::Held(obstacle) = space.acquire(exclusive(5, "a")) else {
        panic!("`a` is reserved");
    };
    assert_eq!(obstacle.blocked_by, [name("a")]);
    assert_eq!(obstacle.retry_at, at(70));
}

#[test]
fn the_first_end_of_several_blocking_leases_counts() {
    let mut space = Keyspace::default();
    let limit = Share::limit(200).unwrap();
    for ticket in 0..199 {
        space.granted(request(ticket, &[("k", limit)]).lasts(1000));
    }
    space.granted(request(199, &[("k", limit)]).lasts(50));
    let retry_at = |acquired| match acquired {
        Acquired::Held(obstacle) => obstacle.retry_at,
        other => panic!("should be refused: {other:?}"),
    };
    assert_eq!(
        retry_at(space.acquire(request(200, &[("k", limit)]))),
        at(50)
    );
    space.granted(exclusive(201, "other").lasts(20));
    let both = space.acquire(request(202, &[("k", limit), ("other", Share::EXCLUSIVE)]));
    assert_eq!(retry_at(both), at(20));
}

#[test]
fn a_full_queue_drops_claims_without_live_calls() {
    let mut space = Keyspace::default();
    space.granted(exclusive(1, "k").lasts(1000));
    space.queued(exclusive(2, "k").waits(900));
    space.queued(exclusive(3, "k").waits(10));
    space.queued(exclusive(4, "k").waits(900).from("gone"));
    space.dead.push(NodeId::new("gone"));
    space.now = 20;
    let mut request = exclusive(5, "k").waits(900);
    request.wait.as_mut().unwrap().max_queue = 2;
    space.queued(request);
    assert_eq!(space.waiters("k"), 2);
    let mut request = exclusive(6, "k").waits(900);
    request.wait.as_mut().unwrap().max_queue = 2;
    assert!(matches!(space.acquire(request), Acquired::QueueFull(_)));
}

#[test]
fn a_call_that_rejoins_at_a_position_it_still_has_is_not_duplicated() {
    let mut space = Keyspace::default();
    let lease = space.granted(exclusive(1, "k"));
    let position = space.queued(exclusive(2, "k").waits(500));
    let mut again = exclusive(2, "k").waits(500);
    again.wait.as_mut().unwrap().rejoin = Some((position, at(500)));
    assert_eq!(space.queued(again.clone()), position);
    assert_eq!(space.waiters("k"), 1);
    space.release(&lease).unwrap();
    // The grant was lost, and the call rejoins a second time.
    let [(_, lease)] = <[_; 1]>::try_from(space.woken()).unwrap();
    assert_eq!(space.granted(again), lease);
}

#[test]
fn at_most_64_calls_of_one_attempt_wait() {
    let mut space = Keyspace::default();
    space.granted(exclusive(0, "k").lasts(1000));
    for ticket in 1..=64 {
        space.queued(exclusive(ticket, "k").attempts("me", "1").waits(500));
    }
    let one_more = space.acquire(exclusive(65, "k").attempts("me", "1").waits(500));
    assert!(matches!(one_more, Acquired::QueueFull(_)), "{one_more:?}");
    assert_eq!(space.waiters("k"), 1);
}

#[test]
fn a_withdrawal_is_not_forgotten_early_for_another() {
    let mut space = Keyspace::default();
    let withdraw = |attempt: usize| Command::Withdraw {
        name: name("k"),
        owner: owner("me"),
        attempt: Attempt::parse(&attempt.to_string()).unwrap(),
    };
    for attempt in 0..MAX_WITHDRAWALS {
        let unknown = Outcome::Withdrawn(Withdrawn::Unknown);
        assert_eq!(space.run(withdraw(attempt)), unknown);
    }
    let too_many = Outcome::Withdrawn(Withdrawn::TooMany);
    assert_eq!(space.run(withdraw(MAX_WITHDRAWALS)), too_many);
    let first = space.acquire(exclusive(1, "k").attempts("me", "0"));
    assert_eq!(first, Acquired::Withdrawn);
    space.now = 60_000;
    let unknown = Outcome::Withdrawn(Withdrawn::Unknown);
    assert_eq!(space.run(withdraw(MAX_WITHDRAWALS)), unknown);
}

#[test]
fn a_command_without_a_fence_means_the_newest_lease() {
    let mut space = Keyspace::default();
    let mut shared = |ticket, millis| {
        let request = request(ticket, &[("k", shared())]).attempts("me", &ticket.to_string());
        space.granted(request.lasts(millis))
    };
    let (older, newer) = (shared(1, 100), shared(2, 10));
    let any = Command::Release(held("lock:k", &owner("me"), None));
    space.release(&older).unwrap();
    space.now = 20;
    // The newer one has expired.
    let outcome = space.run(any.clone());
    assert_eq!(outcome, Outcome::Lease(Err(NotHeld::NotFound)));

    let mut shared = |ticket| {
        let request =
            request(ticket, &[("k", super::shared())]).attempts("me", &ticket.to_string());
        space.granted(request)
    };
    let (older, newest) = (shared(3), shared(4));
    assert!(newest.fence > newer.fence);
    space.run(Command::ForceRelease {
        name: name("k"),
        fences: vec![newest.fence],
    });
    space.release(&older).unwrap();
    let forced = NotHeld::AlreadyReleased { forced: true };
    assert_eq!(space.run(any), Outcome::Lease(Err(forced)));
}

#[test]
fn a_set_that_leaves_a_full_queue_unblocks_claims_at_its_other_keys() {
    let mut space = Keyspace::default();
    space.granted(exclusive(1, "a").lasts(10_000));
    space.queued(exclusive(2, "a").waits(9000));
    space.queued(set(3, &["a", "c"]).waits(10));
    space.queued(exclusive(4, "c").waits(9000));
    space.now = 20;
    let mut request = exclusive(5, "a").waits(9000);
    request.wait.as_mut().unwrap().max_queue = 2;
    space.queued(request);
    assert_eq!(space.woken_tickets(), [4]);
}
