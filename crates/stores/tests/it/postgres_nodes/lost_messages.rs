//! Nodes whose notifications do not arrive, and those that learn what others did to their leases.

use std::time::Duration;

use forrst_lock::{LockStoreExt, Wake};
use forrst_testkit::{PostgresServer, Proxy, Traffic, Way};
use tokio::time::timeout;

use super::fixture::{two_nodes, two_services};
use crate::calls::{PATIENCE, call, held, name, release, take, until};
use crate::nodes::{HOUR, are_served_in_turn, guard, request, wait_in_turn};

/// How many sessions listen.
const LISTENING: &str = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'";

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_listens_again_finds_what_it_has_missed() {
    let postgres = PostgresServer::start();
    let nodes = two_nodes(&postgres.url()).await;
    until("both listen", async || postgres.sql(LISTENING) == "2").await;
    for _ in 0..5 {
        let lease = take(&nodes[0].store, "k").await;
        let waiting = wait_in_turn(&nodes, "k", 6).await;
        postgres.sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'",
        );
        release(&nodes[0].store, &lease).await;
        are_served_in_turn(&nodes, waiting).await;
    }
}

/// As behind a pooler in transaction mode: `LISTEN` succeeds, and no notification arrives.
#[tokio::test(flavor = "multi_thread")]
async fn nodes_to_which_no_notification_is_delivered_poll() {
    let postgres = PostgresServer::start();
    let proxy = Proxy::start(postgres.port());
    let nodes = two_nodes(&proxy.postgres_url()).await;
    until("both listen", async || postgres.sql(LISTENING) == "2").await;
    proxy.swallow(Way::ToClient, Traffic::Subscriptions);
    for _ in 0..3 {
        let lease = take(&nodes[0].store, "k").await;
        let waiting = wait_in_turn(&nodes, "k", 6).await;
        release(&nodes[0].store, &lease).await;
        are_served_in_turn(&nodes, waiting).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guard_learns_at_once_that_another_node_has_ended_or_changed_its_lease() {
    let postgres = PostgresServer::start();
    let [one, other] = two_services(&postgres.url()).await;
    let guards = [
        guard(&one, request("forced", "a", HOUR)).await,
        guard(&one, request("released", "a", HOUR)).await,
    ];
    other
        .force_release(&name("forced"), None)
        .await
        .unwrap()
        .unwrap();
    let lease = guards[1].lease();
    other.release(held(&lease)).await.unwrap().unwrap();
    for guard in &guards {
        timeout(PATIENCE, guard.loss().lost())
            .await
            .expect("in time");
    }
    let shortened = guard(&one, request("shortened", "a", HOUR)).await;
    let ttl = crate::nodes::ttl(60);
    let lease = shortened.lease();
    other.extend(held(&lease), ttl).await.unwrap().unwrap();
    until("it is shorter", async || {
        shortened.remaining() <= Duration::from_secs(60)
    })
    .await;
}

/// The transaction that grants it commits, and the node that made it does not know.
#[tokio::test(flavor = "multi_thread")]
async fn a_hand_over_whose_commit_was_not_answered_reaches_its_waiter() {
    let postgres = PostgresServer::start();
    let proxy = Proxy::start(postgres.port());
    let [one, other] = two_nodes(&proxy.postgres_url()).await;
    for number in 0..10 {
        let key = format!("k{number}");
        let lease = take(&one.store, &key).await;
        let waiting = [
            one.wait(call(&key, "b")).await,
            other.wait(call(&key, "c")).await,
        ];
        proxy.lose_answers(1 + number % 3);
        until("it is released", async || {
            one.store.release(held(&lease)).await.is_ok()
        })
        .await;
        proxy.heal();
        let [first, second] = waiting;
        let (wake, _) = timeout(PATIENCE, first).await.expect("in time").unwrap();
        let Wake::Granted(lease) = wake else {
            panic!("{wake:?}")
        };
        until("it is released, too", async || {
            one.store.release(held(&lease)).await.is_ok()
        })
        .await;
        let (wake, _) = timeout(PATIENCE, second).await.expect("in time").unwrap();
        assert!(matches!(wake, Wake::Granted(_)), "{wake:?}");
    }
}
