//! Redis is unavailable for longer than a node counts as alive, as during most fail-overs: all calls keep their positions.

use std::time::Duration;

use forrst_lock::LockStoreExt;
use forrst_testkit::RedisServer;
use tokio::time::sleep;

use crate::redis_faults::fixture::{held, inspect, name, take, until};
use crate::redis_nodes::fixture::{
    all_wait, are_served_in_turn, commands, open_at, two_nodes, wait_in_turn,
};

const CALLS: usize = 100;

/// A node counts as alive for five seconds.
const OUTAGE: Duration = Duration::from_secs(7);

async fn stand_still(redis: &RedisServer) {
    redis.pause();
    sleep(OUTAGE).await;
    redis.resume();
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_two_nodes_are_served_in_turn_after_an_outage() {
    let redis = RedisServer::start();
    let nodes = two_nodes(&redis.url()).await;
    let lease = take(&nodes[0].store, "k").await;
    let mut waiting = wait_in_turn(&nodes, "k", CALLS).await;
    stand_still(&redis).await;
    until("the holder's node is connected again", async || {
        nodes[0].store.health().await.is_ok()
    })
    .await;
    assert!(all_wait(&mut waiting));
    let queue = nodes[0].store.queue(&name("k"), 2 * CALLS).await.unwrap();
    assert_eq!(queue.outcome.len(), CALLS);
    assert_eq!(inspect(&nodes[0].store, "k").await.waiters, CALLS);
    until("it is released", async || {
        let released = nodes[0].store.release(held(&lease)).await;
        released.is_ok()
    })
    .await;
    are_served_in_turn(&nodes, waiting).await;
}

/// It comes from a node that connects after the outage, before any node has sent a heartbeat.
#[tokio::test(flavor = "multi_thread")]
async fn the_first_command_after_an_outage_passes_over_no_call() {
    let redis = RedisServer::start();
    let nodes = two_nodes(&redis.url()).await;
    let lease = take(&nodes[0].store, "k").await;
    let waiting = wait_in_turn(&nodes, "k", 10).await;
    stand_still(&redis).await;
    let third = open_at(&redis.url()).await;
    let released = third.release(held(&lease)).await.unwrap().outcome;
    assert_eq!(released, Ok(lease));
    are_served_in_turn(&nodes, waiting).await;
}

/// They wait for many keys, so one command for one key is not enough.
#[tokio::test(flavor = "multi_thread")]
async fn calls_rejoin_lost_queues_in_batches() {
    let redis = RedisServer::start();
    let nodes = two_nodes(&redis.url()).await;
    let mut waiting = Vec::new();
    for number in 0..CALLS {
        let key = format!("k{number}");
        take(&nodes[0].store, &key).await;
        waiting.push(wait_in_turn(&nodes, &key, 4).await);
    }
    let before = commands(&redis);
    redis.cli(&["EVAL", FORGET_QUEUES, "0"]);
    for number in 0..CALLS {
        until("all are there again", async || {
            inspect(&nodes[0].store, &format!("k{number}"))
                .await
                .waiters
                == 4
        })
        .await;
    }
    // There are 400 calls and 100 keys. The commands include inspections, at most one every 10 ms.
    let used = commands(&redis) - before;
    assert!(used < 350, "{used} commands");
    for waiting in &mut waiting {
        assert!(all_wait(waiting));
    }
    let queue = nodes[0].store.queue(&name("k7"), 10).await.unwrap().outcome;
    let owners: Vec<&str> = queue.iter().map(|waiting| waiting.owner.as_str()).collect();
    assert_eq!(owners, ["0", "1", "2", "3"]);
}

/// Deletes all queues and nodes, as on a server that has lost its last seconds.
const FORGET_QUEUES: &str = "for _, id in ipairs(redis.call('KEYS', '*}:lock:*')) do
        local state = cmsgpack.unpack(redis.call('GET', id))
        state[4] = false
        redis.call('SET', id, cmsgpack.pack(state))
    end
    for _, id in ipairs(redis.call('KEYS', '*}:queue:lock:*')) do
        redis.call('DEL', id)
    end
    redis.call('DEL', 'forrst:nodes')";
