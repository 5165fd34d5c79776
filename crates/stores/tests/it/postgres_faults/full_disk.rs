//! A disk that is full: nothing that was acknowledged is lost, and the store works again when there is room.

use forrst_lock::model::Acquired;
use forrst_lock::{LockStore, LockStoreExt, Note, StoreError};
use forrst_testkit::PostgresServer;

use crate::calls::{acquire, call, held, inspect, until};
use crate::postgres_nodes::fixture::open_at;

#[tokio::test(flavor = "multi_thread")]
async fn locks_that_were_granted_before_the_disk_was_full_are_kept() {
    let postgres = PostgresServer::start();
    let store = open_at(&postgres.url()).await;
    postgres.limit_files(Some(1_200_000));
    let mut leases = Vec::new();
    let (refused, why) = loop {
        let key = format!("k{}", leases.len());
        let mut call = call(&key, &"o".repeat(255));
        call.claim.note = Some(Note::parse(&"n".repeat(255)).unwrap());
        let ticket = call.ticket;
        match acquire(&store, call).await {
            Ok(Acquired::Granted(lease)) => leases.push(lease),
            Ok(other) => panic!("{other:?}"),
            Err(error) => {
                assert!(matches!(error, StoreError::NotDone(_)), "{error}");
                store.abandon(&crate::calls::name(&key), ticket);
                break (key, error.to_string());
            }
        }
        assert!(leases.len() < 20_000, "the disk is never full");
    };
    assert!(leases.len() > 50, "{}: {why}", leases.len());
    for (number, lease) in leases.iter().enumerate() {
        let key = format!("k{number}");
        assert_eq!(inspect(&store, &key).await.holder(), Some(lease));
    }
    postgres.limit_files(None);
    until("it can be taken", async || {
        let answer = acquire(&store, call(&refused, "a")).await;
        matches!(answer, Ok(Acquired::Granted(_)))
    })
    .await;
    for lease in &leases {
        let released = store.release(held(lease)).await.unwrap().outcome;
        assert_eq!(released.as_ref(), Ok(lease));
    }
    store.close().await;
}
