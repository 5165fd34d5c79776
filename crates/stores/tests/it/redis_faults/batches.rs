//! Commands are batched: one that fails does not affect the others, and they run in their order, even when a call has to be repeated
//! because Redis has lost the functions.

use std::pin::Pin;
use std::task::Poll;

use forrst_lock::model::{Acquired, Command, LeaseRef, Outcome};
use forrst_lock::{Answer, LockStore, Locks, Owner, Share, StoreError};
use forrst_stores::RedisStore;
use forrst_testkit::RedisServer;
use futures_util::future::{MaybeDone, join_all, maybe_done};
use futures_util::poll;

use crate::redis_faults::fixture::{
    call, granted, inspect, key_of, name, open, release, take, wait, waiting,
};

type Outcomes = Vec<Result<Answer<Outcome>, StoreError>>;

/// Submits the commands in their order, without waiting for answers in between.
async fn submit_all(store: &RedisStore, commands: Vec<Command>) -> Outcomes {
    let mut submitted = Vec::new();
    for command in commands {
        let mut answer: Pin<Box<_>> = store.submit(command);
        submitted.push(match poll!(&mut answer) {
            Poll::Ready(answer) => MaybeDone::Done(answer),
            Poll::Pending => maybe_done(answer),
        });
    }
    join_all(submitted.iter_mut()).await;
    let answers = submitted
        .iter_mut()
        .map(|answer| Pin::new(answer).take_output());
    answers.map(Option::unwrap).collect()
}

/// An acquire by an owner of this number.
fn acquire_as(locks: &Locks, number: usize) -> Command {
    let mut call = call("k", &format!("owner {number}"));
    call.claim.locks = locks.clone();
    Command::Acquire(call)
}

fn release_as(locks: &Locks, number: usize) -> Command {
    Command::Release(LeaseRef {
        name: locks.first().clone(),
        owner: Owner::parse(&format!("owner {number}")).unwrap(),
        fence: None,
    })
}

/// Each command succeeds only if all commands before it have run, and none after it.
async fn take_turns(store: &RedisStore, locks: &[Locks], turns: usize) {
    let commands = (0..turns).flat_map(|number| {
        let locks = &locks[number % locks.len()];
        [acquire_as(locks, number), release_as(locks, number)]
    });
    let outcomes = submit_all(store, commands.collect()).await;
    let mut last = 0;
    for (number, answer) in outcomes.into_iter().enumerate() {
        let outcome = answer
            .unwrap_or_else(|error| panic!("command {number}: {error}"))
            .outcome;
        let lease = match outcome {
            Outcome::Acquired(Acquired::Granted(lease)) => {
                assert!(
                    lease.fence.number() > last,
                    "command {number} was overtaken"
                );
                last = lease.fence.number();
                lease
            }
            Outcome::Lease(Ok(lease)) => lease,
            other => panic!("command {number}: {other:?}"),
        };
        assert_eq!(lease.owner.as_str(), format!("owner {}", number / 2));
    }
}

fn single(key: &str) -> Locks {
    Locks::exclusive(name(key))
}

fn set(keys: &[&str]) -> Locks {
    let locks = keys.iter().map(|key| (name(key), Share::EXCLUSIVE));
    Locks::new(locks.collect()).unwrap()
}

#[tokio::test]
async fn commands_run_in_the_order_in_which_they_were_submitted() {
    let redis = RedisServer::start();
    let store = open(&redis).await;
    take_turns(&store, &[single("k")], 500).await;
    take_turns(&store, &[single("k"), single("l"), single("m")], 500).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_run_in_their_order_on_several_threads() {
    let redis = RedisServer::start();
    let store = open(&redis).await;
    for _ in 0..10 {
        take_turns(&store, &[single("k")], 200).await;
    }
}

#[tokio::test]
async fn commands_on_sets_of_keys_run_in_their_order() {
    let redis = RedisServer::start();
    let store = open(&redis).await;
    let sets = [set(&["k", "l", "m"]), set(&["k", "l"]), single("k")];
    take_turns(&store, &sets, 500).await;
}

/// A release names one key of a set: Redis replies which other keys it needs, and it is sent again. The commands behind it have to wait,
/// whether they are in the same call or in the next.
#[tokio::test]
async fn a_command_that_is_sent_again_is_not_overtaken() {
    let redis = RedisServer::start();
    let store = open(&redis).await;
    for before in [0, 10, 63] {
        let set = set(&["k", "l", "m"]);
        submit_all(&store, vec![acquire_as(&set, 0)]).await;
        let others =
            (0..before).map(|number| acquire_as(&single(&format!("{before} {number}")), 0));
        let commands = [release_as(&set, 0), acquire_as(&single("l"), 1)];
        let mut outcomes = submit_all(&store, others.chain(commands).collect()).await;
        let outcomes = outcomes.split_off(before);
        let [Ok(released), Ok(acquired)] = &outcomes[..] else {
            panic!("{outcomes:?}");
        };
        assert!(
            matches!(released.outcome, Outcome::Lease(Ok(_))),
            "{released:?}"
        );
        let is_granted = matches!(acquired.outcome, Outcome::Acquired(Acquired::Granted(_)));
        assert!(is_granted, "after {before} others: {acquired:?}");
        submit_all(&store, vec![release_as(&single("l"), 1)]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_run_in_their_order_where_redis_has_lost_the_functions() {
    let redis = RedisServer::start();
    let store = open(&redis).await;
    for _ in 0..50 {
        redis.cli(&["FUNCTION", "FLUSH"]);
        take_turns(&store, &[single("k")], 200).await;
    }
}

#[tokio::test]
async fn one_command_that_fails_in_a_batch_fails_alone() {
    let redis = RedisServer::start();
    let store = open(&redis).await;
    let broken = unreadable(&redis, &store).await;
    for round in 0..3 {
        let bad = |number| match number % 10 {
            3 => Some("garbage"),
            5 => Some("type"),
            7 => Some("sorted-set"),
            _ => None,
        };
        let commands = (0..200).map(|number| match bad(number) {
            Some(key) => Command::Acquire(waiting(call(key, "b"))),
            None => acquire_as(&single(&format!("{round} {number}")), 0),
        });
        let outcomes = submit_all(&store, commands.collect()).await;
        for (number, answer) in outcomes.into_iter().enumerate() {
            match (bad(number), answer.map(|answer| answer.outcome)) {
                (None, Ok(Outcome::Acquired(Acquired::Granted(_)))) | (Some(_), Err(_)) => {}
                (_, other) => panic!("command {number}: {other:?}"),
            }
        }
    }
    assert_eq!(
        redis.cli(&["LRANGE", &broken[1], "0", "-1"]).trim(),
        "no state"
    );
    for key in broken {
        redis.cli(&["DEL", &key]);
    }
    assert_eq!(inspect(&store, "sorted-set").await.waiters, 0);
    for key in ["garbage", "type"] {
        let lease = take(&store, key).await;
        release(&store, &lease).await;
    }
    let lease = inspect(&store, "sorted-set").await.holder().cloned();
    let next = wait(&store, call("sorted-set", "b")).await;
    release(&store, &lease.unwrap()).await;
    granted(&next.wake.await.unwrap());
}

/// Corrupts the states of two locks, and the sorted set of a third, which is held. Returns their Redis keys.
async fn unreadable(redis: &RedisServer, store: &RedisStore) -> [String; 3] {
    for key in ["garbage", "type", "sorted-set"] {
        take(store, key).await;
    }
    let list = key_of(redis, "type");
    redis.cli(&["DEL", &list]);
    redis.cli(&["RPUSH", &list, "no state"]);
    let garbage = key_of(redis, "garbage");
    redis.cli(&["SET", &garbage, "no state"]);
    let sorted_set = key_of(redis, "sorted-set").replace("}:lock:", "}:queue:lock:");
    redis.cli(&["RPUSH", &sorted_set, "no", "sorted set"]);
    [garbage, list, sorted_set]
}
