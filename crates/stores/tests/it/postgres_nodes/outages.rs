//! Postgres is unavailable for longer than a node counts as alive, as during most fail-overs: all calls keep their positions.

use std::time::Duration;

use forrst_lock::LockStoreExt;
use forrst_testkit::PostgresServer;
use tokio::time::sleep;

use super::fixture::{open_at, two_nodes, until_healthy};
use crate::calls::{held, inspect, name, take, until};
use crate::nodes::{all_wait, are_served_in_turn, wait_in_turn};

const CALLS: usize = 50;

/// A node counts as alive for five seconds.
const OUTAGE: Duration = Duration::from_secs(7);

async fn stand_still(postgres: &PostgresServer) {
    postgres.pause();
    sleep(OUTAGE).await;
    postgres.resume();
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_two_nodes_are_served_in_turn_after_an_outage() {
    let postgres = PostgresServer::start();
    let nodes = two_nodes(&postgres.url()).await;
    let lease = take(&nodes[0].store, "k").await;
    let mut waiting = wait_in_turn(&nodes, "k", CALLS).await;
    stand_still(&postgres).await;
    until_healthy(&nodes[0].store).await;
    assert!(all_wait(&mut waiting));
    let queue = nodes[0].store.queue(&name("k"), 2 * CALLS).await.unwrap();
    assert_eq!(queue.outcome.len(), CALLS);
    assert_eq!(inspect(&nodes[0].store, "k").await.waiters, CALLS);
    until("it is released", async || {
        nodes[0].store.release(held(&lease)).await.is_ok()
    })
    .await;
    are_served_in_turn(&nodes, waiting).await;
}

/// It comes from a node that connects after the outage, before any node has sent a heartbeat.
#[tokio::test(flavor = "multi_thread")]
async fn the_first_command_after_an_outage_passes_over_no_call() {
    let postgres = PostgresServer::start();
    let nodes = two_nodes(&postgres.url()).await;
    let lease = take(&nodes[0].store, "k").await;
    let waiting = wait_in_turn(&nodes, "k", 10).await;
    stand_still(&postgres).await;
    let third = open_at(&postgres.url()).await;
    let released = third.release(held(&lease)).await.unwrap().outcome;
    assert_eq!(released, Ok(lease));
    are_served_in_turn(&nodes, waiting).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_two_nodes_are_served_in_turn_after_a_crash_of_the_server() {
    let mut postgres = PostgresServer::start();
    let nodes = two_nodes(&postgres.url()).await;
    let lease = take(&nodes[0].store, "k").await;
    let mut waiting = wait_in_turn(&nodes, "k", 10).await;
    postgres.restart();
    for node in &nodes {
        until_healthy(&node.store).await;
    }
    assert!(all_wait(&mut waiting));
    until("it is released", async || {
        nodes[0].store.release(held(&lease)).await.is_ok()
    })
    .await;
    are_served_in_turn(&nodes, waiting).await;
}

/// As on a server that was restored from a backup.
#[tokio::test(flavor = "multi_thread")]
async fn calls_rejoin_lost_queues_at_their_old_positions() {
    let postgres = PostgresServer::start();
    let nodes = two_nodes(&postgres.url()).await;
    let lease = take(&nodes[0].store, "k").await;
    let mut waiting = wait_in_turn(&nodes, "k", 10).await;
    postgres.sql(
        "UPDATE forrst.locks SET waiters = 0, state = (state::jsonb - 'queue')::json;
         DELETE FROM forrst.nodes",
    );
    until("all are there again", async || {
        inspect(&nodes[0].store, "k").await.waiters == 10
    })
    .await;
    assert!(all_wait(&mut waiting));
    let released = nodes[0].store.release(held(&lease)).await.unwrap();
    assert_eq!(released.outcome, Ok(lease));
    are_served_in_turn(&nodes, waiting).await;
}
