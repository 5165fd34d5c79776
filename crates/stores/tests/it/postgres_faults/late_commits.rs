//! A commit that is delayed, so that its caller gets an error first.

use std::sync::Arc;
use std::time::Duration;

use forrst_lock::model::Acquired;
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

/// How many sessions of nodes are in the middle of a transaction.
const IN_TRANSACTION: &str = "SELECT count(*) FROM pg_stat_activity
    WHERE application_name = 'forrst' AND (state LIKE 'idle in transaction%' OR state = 'active')";

/// Requests are held back from some point of the transaction on, and the connection is cut. Then they are delivered or not.
#[tokio::test(flavor = "multi_thread")]
async fn a_grant_whose_commit_is_late_or_lost_is_rolled_back() {
    let postgres = PostgresServer::start();
    let proxy = Proxy::start(postgres.port());
    let store = Arc::new(open_with(&proxy.postgres_url(), Duration::from_secs(4)).await);
    let other = open_at(&postgres.url()).await;
    let mut errors = 0;
    for number in 0..30 {
        let key = format!("k{number}");
        let call = call(&key, "a");
        let ticket = call.ticket;
        let acquiring = tokio::spawn({
            let store = store.clone();
            async move { acquire(&store, call).await }
        });
        tokio::time::sleep(Duration::from_micros(300 * (number / 2))).await;
        proxy.hold_requests();
        tokio::time::sleep(Duration::from_millis(30)).await;
        proxy.pass();
        proxy.cut(Traffic::All);
        match acquiring.await.unwrap() {
            Ok(Acquired::Granted(lease)) => {
                assert_eq!(inspect(&other, &key).await.holder(), Some(&lease));
            }
            Ok(answer) => panic!("{answer:?}"),
            Err(StoreError::Unsupported(why)) => panic!("{why}"),
            Err(StoreError::MaybeDone(_) | StoreError::NotDone(_)) => {
                errors += 1;
                store.abandon(&name(&key), ticket);
                // The rollback overtakes what is held back, if nothing holds it up.
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
        let is_granted = inspect(&other, &key).await.holder().is_some();
        if number % 2 == 0 {
            proxy.deliver_requests();
        }
        if !is_granted {
            store.close().await;
            until("no transaction is under way", async || {
                postgres.sql(IN_TRANSACTION) == "0"
            })
            .await;
            take(&other, &key).await;
        }
        proxy.heal();
        until("the node works again", async || {
            store.health().await.is_ok()
        })
        .await;
    }
    assert!(errors > 0, "no commit was held back");
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
