//! Rows that other transactions have locked do not stop commands on other rows.

use std::time::Duration;

use forrst_lock::model::Acquired;
use forrst_lock::{LockStore, LockStoreExt, StoreError};
use forrst_testkit::PostgresServer;
use forrst_testkit::asynchronous::soon;

use crate::calls::{acquire, call, held, take, until};
use crate::postgres_nodes::fixture::open_at;

/// Keeps the row of a key locked, for that many seconds.
fn lock_row(postgres: &PostgresServer, key: &str, seconds: u32) -> std::thread::JoinHandle<()> {
    let statement = format!(
        "BEGIN; SELECT 1 FROM forrst.locks WHERE name = 'lock:{key}' FOR UPDATE;
         SELECT pg_sleep({seconds}); COMMIT"
    );
    let url = postgres.url();
    std::thread::spawn(move || {
        let mut psql = std::process::Command::new("psql");
        let _ = psql.args([&url, "-c", &statement]).output();
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_row_delays_only_its_own_key() {
    let postgres = PostgresServer::start();
    let store = open_at(&postgres.url()).await;
    let lease = take(&store, "blocked").await;
    let locked = lock_row(&postgres, "blocked", 8);
    until("it is locked", async || {
        postgres.sql("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'") == "1"
    })
    .await;
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
    locked.join().unwrap();
    until("it can be used again", async || {
        store.release(held(&lease)).await.is_ok()
    })
    .await;
}

/// A row that another transaction is about to insert is not visible, and delays its key in the same way.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_is_being_inserted_delays_only_its_own_key() {
    let postgres = PostgresServer::start();
    let store = open_at(&postgres.url()).await;
    let url = postgres.url();
    let inserting = std::thread::spawn(move || {
        let statement = "BEGIN; INSERT INTO forrst.locks (name) VALUES ('lock:new');
             SELECT pg_sleep(4); ROLLBACK";
        let mut psql = std::process::Command::new("psql");
        let _ = psql.args([&url, "-c", statement]).output();
    });
    until("it is being inserted", async || {
        postgres.sql("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'") == "1"
    })
    .await;
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
    inserting.join().unwrap();
    until("it can be taken", async || {
        matches!(
            acquire(&store, call("new", "a")).await,
            Ok(Acquired::Granted(_))
        )
    })
    .await;
    store.health().await.unwrap();
}
