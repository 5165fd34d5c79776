//! A fail-over to a server whose clock differs by minutes: calls keep waiting, and leases last for their ttl.

use std::time::Duration;

use forrst_lock::{Config, LeaseGuard, LockService, LockStore, LockStoreExt};
use forrst_testkit::{RedisOptions, RedisReplicas};

use crate::redis_faults::fixture::{held, name, take, until};
use crate::redis_nodes::fixture::{
    HOUR, all_wait, are_served_in_turn, guard, guard_of, join_queue, open_at, request, ttl,
    two_nodes, wait_in_turn,
};

const CALLS: usize = 20;
const DIFFERENCE: Duration = Duration::from_secs(300);

/// The ttl of leases here, and what must be left of it, even on a busy machine.
const TTL: Duration = Duration::from_secs(60);
const LEFT: Duration = Duration::from_secs(50);

/// Kills the primary when the replica has all that was written.
fn fail_over(replicas: &mut RedisReplicas) {
    replicas.primary().cli(&["SET", "written", "last"]);
    let replica = &replicas.replicas()[0];
    forrst_testkit::until("the replica has all", || {
        replica.cli(&["GET", "written"]).trim() == "last"
    });
    replicas.primary().kill();
    replicas.until_failed_over();
}

#[track_caller]
fn lasts_its_ttl(guard: &LeaseGuard) {
    let (remaining, certain) = (guard.remaining(), guard.loss().remaining());
    assert!((LEFT..=TTL).contains(&remaining), "{remaining:?}");
    assert!((LEFT..=TTL).contains(&certain), "{certain:?}");
}

/// Sentinels may still close connections after the promotion.
async fn force_release(store: &dyn LockStore) {
    until("it is forced", async || {
        store.force_release(&name("k"), None).await.is_ok()
    })
    .await;
}

async fn survive_a_fail_over_to(options: RedisOptions) {
    let mut replicas = RedisReplicas::start_with(RedisOptions::default(), vec![options], 3);
    let nodes = two_nodes(&replicas.url()).await;
    let services =
        [0, 1].map(|node| LockService::new(nodes[node].store.clone(), Config::default()));
    take(&nodes[0].store, "k").await;
    let first = guard(&services[0], request("s", "a", HOUR)).await;
    let mut waiting = wait_in_turn(&nodes, "k", CALLS).await;
    let task = join_queue(&services[1], request("s", "b", TTL.as_secs())).await;

    fail_over(&mut replicas);
    for (key, calls) in [("k", CALLS), ("s", 1)] {
        until("all wait by the clock of the new server", async || {
            let Ok(answer) = nodes[0].store.queue(&name(key), 2 * CALLS).await else {
                return false;
            };
            let is_to_come = |until: forrst_lock::Timestamp| until > answer.now;
            answer.outcome.len() == calls && answer.outcome.iter().all(|it| is_to_come(it.until))
        })
        .await;
    }
    until("both nodes are connected to it", async || {
        nodes[0].store.health().await.is_ok() && nodes[1].store.health().await.is_ok()
    })
    .await;
    assert!(all_wait(&mut waiting));
    assert!(!task.is_finished());

    force_release(&*nodes[1].store).await;
    for (lease, reading) in are_served_in_turn(&nodes, waiting).await {
        let left = lease.expires_at.remaining(reading.now);
        assert!((LEFT..=TTL).contains(&left), "{left:?}");
    }
    // Handed over by another node.
    first.release().await;
    let handed_over = guard_of(task).await;
    lasts_its_ttl(&handed_over);
    // Newly granted.
    lasts_its_ttl(&guard(&services[0], request("t", "a", TTL.as_secs())).await);
    // Extended by another node than its own.
    let own = guard(&services[0], request("u", "a", 20)).await;
    let extended = services[1].extend(held(&own.lease()), ttl(TTL.as_secs()));
    extended.await.unwrap().unwrap();
    until("its node knows", async || own.remaining() > LEFT).await;
    lasts_its_ttl(&own);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_whose_clock_is_ahead_takes_over() {
    survive_a_fail_over_to(RedisOptions::default().clock_ahead(DIFFERENCE)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_whose_clock_is_behind_takes_over() {
    survive_a_fail_over_to(RedisOptions::default().clock_behind(DIFFERENCE)).await;
}

/// It comes from a node that connects after the fail-over. The other nodes have not rejoined their queues yet, and by the new clock all
/// their calls have timed out.
#[tokio::test(flavor = "multi_thread")]
async fn the_first_command_at_a_server_whose_clock_is_ahead_passes_over_no_call() {
    let ahead = RedisOptions::default().clock_ahead(DIFFERENCE);
    let mut replicas = RedisReplicas::start_with(RedisOptions::default(), vec![ahead], 3);
    let nodes = two_nodes(&replicas.url()).await;
    take(&nodes[0].store, "k").await;
    let waiting = wait_in_turn(&nodes, "k", CALLS).await;
    fail_over(&mut replicas);
    let new = open_at(&replicas.replicas()[0].url()).await;
    force_release(&*new).await;
    are_served_in_turn(&nodes, waiting).await;
}
