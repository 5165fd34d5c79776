//! Abandoned calls and leases are rolled back: each on its own, and before a process ends.

use forrst_lock::model::Acquired;
use forrst_lock::{LockName, LockStore, ReleaseOutcome, Ticket};
use forrst_stores::RedisStore;
use forrst_testkit::{Proxy, RedisCluster, RedisServer};

use crate::redis_faults::fixture::{SlotMove, acquire, call, name, partition_of, take, until};
use crate::redis_nodes::fixture::{HOUR, guard, open_at, request, service};

async fn take_all(store: &RedisStore, prefix: &str) -> Vec<(LockName, Ticket)> {
    let mut taken = Vec::new();
    for number in 0..50 {
        let key = format!("{prefix}{number}");
        let call = call(&key, "a");
        taken.push((name(&key), call.ticket));
        let acquired = acquire(store, call).await.unwrap();
        assert!(matches!(acquired, Acquired::Granted(_)), "{acquired:?}");
    }
    taken
}

async fn all_are_free(store: &RedisStore, taken: &[(LockName, Ticket)]) -> bool {
    for (name, _) in taken {
        match store.inspect(name).await {
            Ok(answer) if answer.outcome.holder().is_none() => {}
            _ => return false,
        }
    }
    true
}

#[tokio::test(flavor = "multi_thread")]
async fn rollbacks_in_a_slot_that_is_moved_do_not_delay_the_others() {
    let cluster = RedisCluster::start();
    let store = open_at(&cluster.url()).await;
    let moved = take_all(&store, "{moving}").await;
    // In all partitions, and so on all servers.
    let others = take_all(&store, "other").await;
    let moving = SlotMove::begin(&cluster, "{moving}");
    let is_refused = async || store.inspect(&moved[0].0).await.is_err();
    assert!(is_refused().await);
    for (name, ticket) in moved.iter().chain(&others) {
        store.abandon(name, *ticket);
    }
    until("the others are free", async || {
        let own = partition_of(&cluster, &moved[0].0);
        let others = others
            .iter()
            .filter(|(name, _)| partition_of(&cluster, name) != own);
        all_are_free(&store, &others.cloned().collect::<Vec<_>>()).await
    })
    .await;
    assert!(is_refused().await);
    moving.move_keys();
    moving.end(&cluster);
    until("all are free", async || {
        all_are_free(&store, &moved).await && all_are_free(&store, &others).await
    })
    .await;
}

/// It is rolled back by its ticket. The next attempt of the release would be up to a second away.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_that_redis_refused_is_rolled_back_before_the_process_ends() {
    let redis = RedisServer::start();
    let ends = service(&open_at(&redis.url()).await);
    let stays = open_at(&redis.url()).await;
    let mut guards = Vec::new();
    for number in 0..10 {
        let key = format!("k{number}");
        guards.push(guard(&ends, request(&key, "a", HOUR)).await);
    }
    redis.cli(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    for guard in guards {
        let outcome = guard.release().await;
        assert!(matches!(outcome, ReleaseOutcome::Pending(_)), "{outcome:?}");
    }
    // Long enough for the pauses between the attempts to have grown.
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    redis.cli(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
    ends.shut_down().await;
    for number in 0..10 {
        take(&stays, &format!("k{number}")).await;
    }
}

/// The release has run, and another owner holds the lock when it is rolled back.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_whose_answer_was_lost_takes_nothing_from_the_next_holder() {
    let redis = RedisServer::start();
    let proxy = Proxy::start(redis.port());
    let ends = service(&open_at(&proxy.url()).await);
    let stays = open_at(&redis.url()).await;
    let held = guard(&ends, request("k", "a", HOUR)).await;
    // The next answer may be to another command.
    let answers = proxy.lost_answers();
    proxy.lose_answers(1);
    let outcome = held.release().await;
    assert_eq!(proxy.lost_answers(), answers + 1);
    assert!(matches!(outcome, ReleaseOutcome::Pending(_)), "{outcome:?}");
    let next = take(&stays, "k").await;
    ends.shut_down().await;
    let status = stays.inspect(&name("k")).await.unwrap().outcome;
    assert_eq!(status.holder(), Some(&next));
}
