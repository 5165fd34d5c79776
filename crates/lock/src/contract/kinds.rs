//! Shared, limited and multi-key locks (contract section 6).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;

use super::{
    acquire, acquire_all, answer, exclusive, extend_as, force_release, force_release_all,
    fresh_name, granted, held_by, is_free, long, notified, pass, release, release_as, request,
    short, still_waits, take, take_all, wait, wait_at_most, wait_for_all,
};
use crate::model::{Acquired, Wake};
use crate::store::{ListRequest, LockStatus, LockStore};
use crate::{
    AcquireOutcome, AcquireRequest, Config, Kind, LockName, LockService, Locks, NotHeld, Owner,
    Share,
};

fn shared(name: &LockName) -> Locks {
    Locks::one(name.clone(), Share::SHARED)
}

fn limit(name: &LockName, limit: u32) -> Locks {
    Locks::one(name.clone(), Share::limit(limit).expect("a limit"))
}

fn set(names: &[&LockName]) -> Locks {
    let exclusive = names.iter().map(|name| ((*name).clone(), Share::EXCLUSIVE));
    Locks::new(exclusive.collect()).expect("a set")
}

/// Three names, in their order.
fn names() -> [LockName; 3] {
    let root = fresh_name("set");
    ["a", "b", "c"].map(|key| LockName::parse(&format!("{root}:{key}")).expect("short"))
}

async fn blocked_by(store: &dyn LockStore, locks: &Locks) -> Vec<LockName> {
    match acquire_all(store, locks, request("refused", long())).await {
        Acquired::Held(obstacle) => obstacle.blocked_by,
        other => panic!("{locks:?} should be held, but: {other:?}"),
    }
}

pub async fn readers_share_and_a_writer_waits_for_all_of_them(store: Arc<dyn LockStore>) {
    let name = fresh_name("readers");
    let mut readers = Vec::new();
    for number in 0..3 {
        readers.push(take_all(&*store, &shared(&name), &format!("reader {number}"), long()).await);
    }
    let mut writer = wait(&*store, &name, request("writer", long())).await;
    let status = answer(store.inspect(&name).await);
    assert_eq!(status.kind, Some(Kind::Shared));
    assert_eq!((status.holder_count, status.waiters), (3, 1));
    assert_eq!(status.holders, readers);
    let last = readers.pop().unwrap();
    for reader in &readers {
        release(&*store, reader).await.unwrap();
        still_waits(&mut writer);
    }
    release(&*store, &last).await.unwrap();
    assert_eq!(granted(writer).await.owner.as_str(), "writer");
}

pub async fn a_reader_does_not_overtake_a_waiting_writer(store: Arc<dyn LockStore>) {
    let name = fresh_name("writer first");
    let reader = take_all(&*store, &shared(&name), "reader", long()).await;
    let writer = wait(&*store, &name, request("writer", long())).await;
    assert_eq!(
        blocked_by(&*store, &shared(&name)).await,
        std::slice::from_ref(&name)
    );
    let mut late = [
        wait_for_all(&*store, &shared(&name), request("late 1", long())).await,
        wait_for_all(&*store, &shared(&name), request("late 2", long())).await,
    ];
    let mut other_writer = wait(&*store, &name, request("other writer", long())).await;
    release(&*store, &reader).await.unwrap();
    let writer = granted(writer).await;
    late.iter_mut().for_each(still_waits);
    release(&*store, &writer).await.unwrap();
    // Compatible neighbours are granted together, and do not overtake the next writer.
    for late in late {
        assert!(granted(late).await.fence > writer.fence);
    }
    still_waits(&mut other_writer);
    assert_eq!(answer(store.inspect(&name).await).holder_count, 2);
}

pub async fn the_largest_fence_is_known_beyond_the_leases_that_are_shown(
    store: Arc<dyn LockStore>,
) {
    let name = fresh_name("crowded");
    let mut last = None;
    for index in 0..LockStatus::MAX_HOLDERS + 2 {
        let owner = format!("reader {index}");
        last = Some(take_all(&*store, &shared(&name), &owner, long()).await);
    }
    let last = last.expect("at least one lease");
    let status = answer(store.inspect(&name).await);
    assert_eq!(status.holders.len(), LockStatus::MAX_HOLDERS);
    assert_eq!(status.last_fence, Some(last.fence));
    release(&*store, &last).await.unwrap();
    let before = answer(store.inspect(&name).await);
    assert!(before.last_fence < Some(last.fence));
    let few = fresh_name("few");
    assert_eq!(answer(store.inspect(&few).await).last_fence, None);
    let only = take_all(&*store, &shared(&few), "reader", long()).await;
    assert_eq!(
        answer(store.inspect(&few).await).last_fence,
        Some(only.fence)
    );
}

pub async fn there_is_no_upgrade(store: Arc<dyn LockStore>) {
    let name = fresh_name("upgrade");
    let reader = take_all(&*store, &shared(&name), "a", long()).await;
    assert_eq!(
        blocked_by(&*store, &exclusive(&name)).await,
        std::slice::from_ref(&name)
    );
    let writer = wait(&*store, &name, request("a", long())).await;
    release(&*store, &reader).await.unwrap();
    assert_eq!(granted(writer).await.owner.as_str(), "a");
}

pub async fn a_limit_admits_exactly_that_many(store: Arc<dyn LockStore>) {
    let name = fresh_name("limit");
    let mut leases = Vec::new();
    for number in 0..3 {
        leases.push(take_all(&*store, &limit(&name, 3), &format!("{number}"), long()).await);
    }
    let status = answer(store.inspect(&name).await);
    assert_eq!(status.kind, Some(Kind::Limit(3)));
    assert_eq!(status.available(), Some(0));
    assert_eq!(
        blocked_by(&*store, &limit(&name, 3)).await,
        std::slice::from_ref(&name)
    );
    let mut queue = [
        wait_for_all(&*store, &limit(&name, 3), request("next", long())).await,
        wait_for_all(&*store, &limit(&name, 3), request("last", long())).await,
    ];
    release(&*store, &leases[1]).await.unwrap();
    still_waits(&mut queue[1]);
    let [next, last] = queue;
    assert_eq!(granted(next).await.owner.as_str(), "next");
    release(&*store, &leases[0]).await.unwrap();
    granted(last).await;
    assert_eq!(answer(store.inspect(&name).await).holder_count, 3);
}

pub async fn the_expiry_of_one_lease_of_a_limit_admits_one_waiter(store: Arc<dyn LockStore>) {
    let name = fresh_name("limit expiry");
    take_all(&*store, &limit(&name, 2), "short", short()).await;
    take_all(&*store, &limit(&name, 2), "long", long()).await;
    let next = wait_for_all(&*store, &limit(&name, 2), request("next", long())).await;
    let mut last = wait_for_all(&*store, &limit(&name, 2), request("last", long())).await;
    pass(short()).await;
    store.sweep(100).await.unwrap();
    assert!(!is_free(&*store, &name).await);
    assert_eq!(granted(next).await.owner.as_str(), "next");
    still_waits(&mut last);
}

pub async fn kinds_do_not_mix(store: Arc<dyn LockStore>) {
    let name = fresh_name("kinds");
    let all = [
        exclusive(&name),
        shared(&name),
        limit(&name, 1),
        limit(&name, 2),
        limit(&name, 3),
    ];
    for held in &all {
        let lease = take_all(&*store, held, "holder", long()).await;
        for other in all.iter().filter(|other| *other != held) {
            assert_eq!(
                blocked_by(&*store, other).await,
                std::slice::from_ref(&name)
            );
        }
        release(&*store, &lease).await.unwrap();
    }
}

pub async fn an_owner_with_several_leases_has_to_name_the_fence(store: Arc<dyn LockStore>) {
    let name = fresh_name("several");
    let first = take_all(&*store, &shared(&name), "a", long()).await;
    let second = take_all(&*store, &shared(&name), "a", long()).await;
    let ambiguous = Err(NotHeld::Ambiguous);
    assert_eq!(release_as(&*store, &name, "a", None).await, ambiguous);
    let extended = extend_as(&*store, &name, "a", None, long()).await;
    assert_eq!(extended, ambiguous);
    assert_eq!(release(&*store, &first).await, Ok(first.clone()));
    assert_eq!(release(&*store, &first).await, Err(NotHeld::OwnedByAnother));
    assert_eq!(release_as(&*store, &name, "a", None).await, Ok(second));
}

pub async fn force_release_ends_every_lease_or_the_named_one(store: Arc<dyn LockStore>) {
    let name = fresh_name("force");
    let mut leases = Vec::new();
    for number in 0..3 {
        leases.push(take_all(&*store, &limit(&name, 3), &format!("{number}"), long()).await);
    }
    let one = force_release(&*store, &name, Some(leases[1].fence)).await;
    assert_eq!(one, Ok(leases.remove(1)));
    assert_eq!(force_release_all(&*store, &name, None).await, Ok(leases));
    assert_eq!(held_by(&*store, &name).await, None);
}

pub async fn a_set_is_all_or_nothing(store: Arc<dyn LockStore>) {
    let [a, b, c] = names();
    let held = take(&*store, &b, "holder", long()).await;
    assert_eq!(
        blocked_by(&*store, &set(&[&a, &b, &c])).await,
        std::slice::from_ref(&b)
    );
    for name in [&a, &c] {
        assert_eq!(held_by(&*store, name).await, None);
    }
    release(&*store, &held).await.unwrap();
    let lease = take_all(&*store, &set(&[&c, &b, &a]), "set", long()).await;
    assert_eq!(lease.locks, set(&[&a, &b, &c]));
    for name in [&a, &b, &c] {
        assert_eq!(held_by(&*store, name).await, Some(lease.clone()));
        assert_eq!(
            blocked_by(&*store, &exclusive(name)).await,
            std::slice::from_ref(name)
        );
    }
    // Any one of its keys names it, and it ends on all of them.
    assert_eq!(
        release_as(&*store, &b, "set", None).await,
        Ok(lease.clone())
    );
    for name in [&a, &b, &c] {
        assert_eq!(held_by(&*store, name).await, None);
        let again = release_as(&*store, name, "set", Some(lease.fence)).await;
        assert_eq!(again, Err(NotHeld::AlreadyReleased { forced: false }));
    }
}

pub async fn a_waiting_set_reserves_its_free_keys(store: Arc<dyn LockStore>) {
    let [a, b, _] = names();
    let held = take(&*store, &b, "holder", long()).await;
    let waiting = wait_for_all(&*store, &set(&[&a, &b]), request("set", long())).await;
    let status = answer(store.inspect(&a).await);
    assert_eq!((status.holder_count, status.waiters), (0, 1));
    match acquire(&*store, &a, request("newcomer", long())).await {
        Acquired::Held(obstacle) => {
            assert_eq!(obstacle.blocked_by, std::slice::from_ref(&a));
            assert_eq!(obstacle.retry_at, held.expires_at);
        }
        other => panic!("should be reserved, but: {other:?}"),
    }
    let mut newcomer = wait(&*store, &a, request("newcomer", long())).await;
    release(&*store, &held).await.unwrap();
    let lease = granted(waiting).await;
    still_waits(&mut newcomer);
    release(&*store, &lease).await.unwrap();
    granted(newcomer).await;
}

pub async fn an_abandoned_set_leaves_all_its_queues(store: Arc<dyn LockStore>) {
    let [a, b, _] = names();
    let held = take(&*store, &b, "holder", long()).await;
    let quitter = request("set", long());
    let _waiting = wait_for_all(&*store, &set(&[&a, &b]), quitter.clone()).await;
    let first = wait(&*store, &a, request("behind a", long())).await;
    let second = wait(&*store, &b, request("behind b", long())).await;
    // Any one of its keys.
    store.abandon(&b, quitter.ticket);
    granted(first).await;
    release(&*store, &held).await.unwrap();
    granted(second).await;
}

pub async fn a_set_that_has_timed_out_is_skipped_at_every_key(store: Arc<dyn LockStore>) {
    let [a, b, c] = names();
    take(&*store, &b, "holder", long()).await;
    let (_, late) = wait_at_most(
        &*store,
        &set(&[&a, &b]),
        request("late", long()),
        short(),
        100,
    )
    .await;
    let next = wait_for_all(&*store, &set(&[&a, &c]), request("next", long())).await;
    pass(short()).await;
    assert!(!is_free(&*store, &c).await);
    assert_eq!(granted(next).await.owner.as_str(), "next");
    assert!(!matches!(notified(late).await, Some(Wake::Granted(_))));
}

pub async fn a_set_abandoned_after_its_grant_frees_every_key(store: Arc<dyn LockStore>) {
    let [a, b, _] = names();
    let held = take(&*store, &a, "holder", long()).await;
    let quitter = request("set", long());
    let waiting = wait_for_all(&*store, &set(&[&a, &b]), quitter.clone()).await;
    let next = wait_for_all(&*store, &set(&[&b, &a]), request("next", long())).await;
    release(&*store, &held).await.unwrap();
    granted(waiting).await;
    store.abandon(&b, quitter.ticket);
    assert_eq!(granted(next).await.owner.as_str(), "next");
}

pub async fn a_set_whose_waiter_is_gone_is_skipped(store: Arc<dyn LockStore>) {
    let [a, b, _] = names();
    let held = take(&*store, &a, "holder", long()).await;
    drop(wait_for_all(&*store, &set(&[&a, &b]), request("gone", long())).await);
    let next = wait(&*store, &b, request("next", long())).await;
    release(&*store, &held).await.unwrap();
    assert_eq!(granted(next).await.owner.as_str(), "next");
}

pub async fn a_set_ends_as_a_whole(store: Arc<dyn LockStore>) {
    let [a, b, _] = names();
    let both = set(&[&a, &b]);
    // By expiry.
    take_all(&*store, &both, "set", short()).await;
    let waiting = wait(&*store, &b, request("next", long())).await;
    pass(short()).await;
    let on_a = take(&*store, &a, "newcomer", long()).await;
    let on_b = granted(waiting).await;
    release(&*store, &on_a).await.unwrap();
    release(&*store, &on_b).await.unwrap();
    // By force.
    let lease = take_all(&*store, &both, "set", long()).await;
    assert_eq!(force_release(&*store, &b, None).await, Ok(lease.clone()));
    let forced = Err(NotHeld::AlreadyReleased { forced: true });
    assert_eq!(release_as(&*store, &a, "set", None).await, forced);
    // Extended by one key, it is longer on the other.
    take_all(&*store, &both, "set", short()).await;
    extend_as(&*store, &b, "set", None, long()).await.unwrap();
    pass(short()).await;
    assert!(!is_free(&*store, &a).await);
}

pub async fn a_set_may_have_a_different_kind_for_each_key(store: Arc<dyn LockStore>) {
    let [a, b, c] = names();
    let mixed = |owner: &str| {
        let locks = vec![
            (a.clone(), Share::SHARED),
            (b.clone(), Share::limit(2).expect("a limit")),
        ];
        (Locks::new(locks).expect("a set"), owner.to_owned())
    };
    let (locks, owner) = mixed("first");
    let first = take_all(&*store, &locks, &owner, long()).await;
    let (locks, owner) = mixed("second");
    take_all(&*store, &locks, &owner, long()).await;
    assert_eq!(blocked_by(&*store, &locks).await, std::slice::from_ref(&b));
    take_all(&*store, &shared(&a), "reader", long()).await;
    let third = wait_for_all(&*store, &locks, request("third", long())).await;
    take(&*store, &c, "alone", long()).await;
    release(&*store, &first).await.unwrap();
    assert_eq!(granted(third).await.owner.as_str(), "third");
    assert_eq!(answer(store.inspect(&a).await).holder_count, 3);
    assert_eq!(answer(store.inspect(&b).await).holder_count, 2);
}

pub async fn the_fence_of_a_set_is_larger_than_those_of_all_its_keys(store: Arc<dyn LockStore>) {
    let names = names();
    let mut last = None;
    for round in 0..5 {
        for name in &names[..=round % 3] {
            let lease = take(&*store, name, "a", long()).await;
            last = last.max(Some(lease.fence));
            release(&*store, &lease).await.unwrap();
        }
        let [a, b, c] = &names;
        let lease = take_all(&*store, &set(&[a, b, c]), "set", long()).await;
        assert!(Some(lease.fence) > last);
        last = Some(lease.fence);
        release(&*store, &lease).await.unwrap();
        let next = take(&*store, b, "a", long()).await;
        assert!(next.fence > lease.fence);
        release(&*store, &next).await.unwrap();
    }
}

pub async fn a_set_is_listed_under_each_of_its_keys(store: Arc<dyn LockStore>) {
    let root = fresh_name("list").to_string();
    let names = ["b", "a"].map(|key| LockName::parse(&format!("{root}:{key}")).expect("short"));
    let lease = take_all(&*store, &set(&[&names[0], &names[1]]), "set", long()).await;
    let request = ListRequest {
        prefix: root,
        limit: 10,
        cursor: None,
    };
    let mut locks = store.list(&request).await.unwrap().locks;
    locks.sort_by(|one, other| one.name.cmp(&other.name));
    let listed: Vec<_> = locks.iter().map(|lock| lock.name.clone()).collect();
    assert_eq!(listed, [names[1].clone(), names[0].clone()]);
    for lock in locks {
        assert_eq!(lock.holders.first(), Some(&lease));
    }
}

pub async fn a_repeated_attempt_must_have_the_same_keys_and_kinds(store: Arc<dyn LockStore>) {
    let [a, b, c] = names();
    let call = request("me", long()).attempt("try 1");
    let lease = match acquire_all(&*store, &set(&[&a, &b]), call.clone()).await {
        Acquired::Granted(lease) => lease,
        other => panic!("{other:?}"),
    };
    let again = acquire_all(&*store, &set(&[&a, &b]), call.again()).await;
    assert_eq!(again, Acquired::Granted(lease));
    for other in [exclusive(&a), shared(&b), set(&[&b, &c])] {
        let acquired = acquire_all(&*store, &other, call.again()).await;
        assert_eq!(acquired, Acquired::AttemptMismatch, "{other:?}");
    }
    assert_eq!(held_by(&*store, &c).await, None);
}

/// Tasks lock pairs of the same keys in different orders.
pub async fn sets_in_any_order_never_deadlock(store: Arc<dyn LockStore>) {
    let service = LockService::new(store, Config::default());
    let names = names();
    let inside: Arc<[AtomicUsize; 3]> = Arc::default();
    let mut tasks = JoinSet::new();
    for task in 0..6_usize {
        let (service, names, inside) = (service.clone(), names.clone(), inside.clone());
        tasks.spawn(async move {
            for round in 0..20_usize {
                let (one, other) = ((task + round) % 3, (task + round * 2 + 1) % 3);
                let keys = if one == other {
                    vec![one]
                } else {
                    vec![one, other]
                };
                let locks = keys
                    .iter()
                    .map(|key| (names[*key].clone(), Share::EXCLUSIVE));
                let request = AcquireRequest {
                    locks: Locks::new(locks.collect()).expect("a set"),
                    owner: Owner::random(),
                    caller: None,
                    note: None,
                    ttl: long(),
                    wait: Some(Duration::from_secs(60)),
                    attempt: None,
                };
                let guard = match service.acquire(request).await.unwrap() {
                    AcquireOutcome::Granted(guard) => guard,
                    other => panic!("no task holds them for so long: {other:?}"),
                };
                for key in &keys {
                    assert_eq!(inside[*key].fetch_add(1, Ordering::SeqCst), 0);
                }
                tokio::task::yield_now().await;
                for key in &keys {
                    inside[*key].fetch_sub(1, Ordering::SeqCst);
                }
                guard.release().await;
            }
        });
    }
    tasks.join_all().await;
    assert_eq!(service.waiting(), 0);
}
