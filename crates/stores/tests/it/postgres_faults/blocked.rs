//! Rows that other transactions have locked do not stop commands on other rows.

use std::sync::Arc;
use std::time::Duration;

use forrst_lock::model::Acquired;
use forrst_lock::{LockStore, LockStoreExt, StoreError};
use forrst_testkit::PostgresServer;
use forrst_testkit::asynchronous::soon;
use tokio::task::{JoinHandle, spawn_blocking};

use crate::calls::{acquire, call, held, inspect, release, take, until};
use crate::postgres_nodes::fixture::open_at;

/// Another transaction, which runs these statements, sleeps for that many seconds, and runs the last one. Returns when it sleeps.
async fn another_transaction(
    postgres: &Arc<PostgresServer>,
    statements: &str,
    seconds: f32,
    last: &str,
) -> JoinHandle<String> {
    let statements = format!("BEGIN; {statements}; SELECT pg_sleep({seconds}); {last}; COMMIT");
    let server = postgres.clone();
    let running = spawn_blocking(move || server.sql(&statements));
    until("it sleeps", async || {
        running.is_finished()
            || postgres.sql("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'")
                == "1"
    })
    .await;
    running
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_row_delays_only_its_own_key() {
    let postgres = Arc::new(PostgresServer::start());
    let store = open_at(&postgres.url()).await;
    let lease = take(&store, "blocked").await;
    let lock = "SELECT 1 FROM forrst.locks WHERE name = 'lock:blocked' FOR UPDATE";
    let locked = another_transaction(&postgres, lock, 8.0, "SELECT 1").await;
    let mut released = 0;
    let since = tokio::time::Instant::now();
    // All of these are in batches with commands on the row that is locked.
    while since.elapsed() < Duration::from_secs(5) {
        let (blocked, other) = tokio::join!(
            async {
                let extended = store.extend(held(&lease), crate::nodes::ttl(60));
                extended.await
            },
            async {
                let key = format!("other{released}");
                let lease = take(&store, &key).await;
                store.release(held(&lease)).await.unwrap().outcome.unwrap();
            }
        );
        assert!(
            matches!(blocked, Err(StoreError::NotDone(_))),
            "{blocked:?}"
        );
        let () = other;
        released += 1;
    }
    assert!(released > 1);
    locked.await.unwrap();
    until("it can be used again", async || {
        store.release(held(&lease)).await.is_ok()
    })
    .await;
}

/// A row that another transaction is about to insert is not visible, and delays its key in the same way.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_is_being_inserted_delays_only_its_own_key() {
    let postgres = Arc::new(PostgresServer::start());
    let store = open_at(&postgres.url()).await;
    let insert = "INSERT INTO forrst.locks (name) VALUES ('lock:new')";
    let inserting = another_transaction(&postgres, insert, 4.0, "SELECT 1").await;
    let (blocked, other) = soon(async {
        tokio::join!(
            acquire(&store, call("new", "a")),
            acquire(&store, call("other", "a"))
        )
    })
    .await;
    assert!(
        matches!(blocked, Err(StoreError::NotDone(_))),
        "{blocked:?}"
    );
    assert!(matches!(other, Ok(Acquired::Granted(_))), "{other:?}");
    inserting.await.unwrap();
    until("it can be taken", async || {
        matches!(
            acquire(&store, call("new", "a")).await,
            Ok(Acquired::Granted(_))
        )
    })
    .await;
    store.health().await.unwrap();
}

/// The insert finds the row, and then the lock of the row finds that it is gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_grant_on_a_row_that_is_being_deleted_is_not_lost() {
    let postgres = Arc::new(PostgresServer::start());
    let store = open_at(&postgres.url()).await;
    for key in ["one", "other"] {
        postgres.sql(&format!(
            "INSERT INTO forrst.locks (name) VALUES ('lock:{key}')"
        ));
        // As a sweep does it.
        let this = format!("FROM forrst.locks WHERE name = 'lock:{key}'");
        let (lock, delete) = (
            format!("SELECT 1 {this} FOR UPDATE"),
            format!("DELETE {this}"),
        );
        let deleting = another_transaction(&postgres, &lock, 0.3, &delete).await;
        let lease = take(&store, key).await;
        assert_eq!(inspect(&store, key).await.holder(), Some(&lease));
        release(&store, &lease).await;
        deleting.await.unwrap();
    }
}

/// One row cannot be read: the commands that share its batches are not affected, and calls for it are not stuck.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_row_fails_only_its_own_key() {
    let postgres = PostgresServer::start();
    let store = open_at(&postgres.url()).await;
    let lease = take(&store, "damaged").await;
    postgres.sql("UPDATE forrst.locks SET state = '{\"holders\": 7}'");
    // Repeated until it succeeds, which must not stop the others.
    store.abandon(lease.name(), forrst_lock::Ticket::random());
    for number in 0..20 {
        let key = format!("k{number}");
        let (damaged, other) = tokio::join!(
            store.release(held(&lease)),
            acquire(&store, call(&key, "a"))
        );
        assert!(
            matches!(damaged, Err(StoreError::NotDone(_))),
            "{damaged:?}"
        );
        assert!(matches!(other, Ok(Acquired::Granted(_))), "{other:?}");
    }
    postgres.sql("UPDATE forrst.locks SET state = '{}' WHERE name = 'lock:damaged'");
    take(&store, "damaged").await;
    store.close().await;
}
