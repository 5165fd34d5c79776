//! A commit that is delayed, so that its caller gets an error first.

use std::time::Duration;

use forrst_lock::{LockStore, StoreError};
use forrst_stores::{PostgresOptions, PostgresStore};
use forrst_testkit::{PostgresServer, Proxy, Traffic};

use crate::calls::{acquire, call, inspect, name, take, until};
use crate::postgres_nodes::fixture::open_at;

async fn open_with(url: &str, timeout: Duration) -> PostgresStore {
    let options = PostgresOptions {
        timeout,
        ..PostgresOptions::default()
    };
    PostgresStore::open(url, &options).await.unwrap()
}

/// The rollback waits for the transaction that may still commit.
#[tokio::test(flavor = "multi_thread")]
async fn a_grant_that_is_committed_late_is_rolled_back() {
    let postgres = PostgresServer::start();
    let proxy = Proxy::start(postgres.port());
    let store = open_with(&proxy.postgres_url(), Duration::from_secs(1)).await;
    let other = open_at(&postgres.url()).await;
    for number in 0..20 {
        let key = format!("k{number}");
        let call = call(&key, "a");
        let ticket = call.ticket;
        // At another point of the transaction each time.
        let wait = Duration::from_micros(200 * number);
        let (answer, ()) = tokio::join!(acquire(&store, call), async {
            tokio::time::sleep(wait).await;
            proxy.hold_requests();
        });
        proxy.pass();
        proxy.cut(Traffic::All);
        let is_error = answer.is_err();
        if is_error {
            assert!(matches!(
                answer,
                Err(StoreError::MaybeDone(_) | StoreError::NotDone(_))
            ));
            store.abandon(&name(&key), ticket);
        }
        proxy.deliver_requests();
        if is_error {
            until("it is free", async || {
                inspect(&other, &key).await.holder().is_none()
            })
            .await;
            store.close().await;
            take(&other, &key).await;
        }
        until("the node works again", async || {
            store.health().await.is_ok()
        })
        .await;
    }
}

/// A node that hangs in the middle of a transaction keeps rows locked; the server ends its session.
#[tokio::test(flavor = "multi_thread")]
async fn rows_of_a_node_that_hangs_in_a_transaction_are_freed() {
    let postgres = PostgresServer::start();
    let proxy = Proxy::start(postgres.port());
    let hangs = open_with(&proxy.postgres_url(), Duration::from_secs(2)).await;
    let other = open_with(&postgres.url(), Duration::from_secs(2)).await;
    let lease = take(&other, "k").await;
    // Its answers are lost, while its connections stay open.
    proxy.swallow(forrst_testkit::Way::ToClient, Traffic::All);
    let answer = acquire(&hangs, call("k", "b")).await;
    assert!(answer.is_err(), "{answer:?}");
    until("the row is free", async || {
        forrst_lock::LockStoreExt::release(&other, crate::calls::held(&lease))
            .await
            .is_ok()
    })
    .await;
}
