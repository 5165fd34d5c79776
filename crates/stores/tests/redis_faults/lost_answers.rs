//! What was asked for may have been done, and nobody heard of it.

use forrst_lock::LockStore;
use forrst_testkit::RedisServer;

use crate::ground::{acquire, claim, name, open, take, until};

#[tokio::test]
async fn a_call_that_arrives_after_it_was_given_up_comes_to_nothing() {
    let redis = RedisServer::start();
    let store = open(&redis).await;
    let late = claim("late");
    store.abandon(&name("k"), late.ticket);
    let mark = format!("*undone:{:032x}", late.ticket.0);
    until("it is marked", async || {
        !redis.cli(&["KEYS", &mark]).is_empty()
    })
    .await;
    assert!(acquire(&store, "k", late).await.is_err());
    take(&store, "k").await;
}
