//! A Redis that is set up otherwise than when it was found safe.

use std::time::Duration;

use forrst_lock::state::Extend;
use forrst_lock::{LockStore, StoreError, Ttl};
use forrst_stores::{RedisOptions, RedisStore};
use forrst_testkit::RedisServer;

use crate::redis_faults::ground::{
    acquire, claim, granted, hears, name, release, take, take_again, until, wait,
};

/// Changes what is looked at with each new connection, and breaks the one there is.
fn set_up_anew(redis: &RedisServer, setting: &str, value: &str) {
    redis.cli(&["CONFIG", "SET", setting, value]);
    // Who asks for it is spared.
    redis.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
}

#[tokio::test]
async fn what_is_unsafe_grants_nothing_until_it_is_put_right() {
    let redis = RedisServer::start();
    let options = RedisOptions {
        strict: true,
        ..RedisOptions::default()
    };
    let store = RedisStore::open(&redis.url(), &options).await.unwrap();
    // One time may be luck: the look must not come before the connection can be used.
    for round in 0..5 {
        let held = take(&store, "held").await;
        let waiting = wait(&store, "held", claim("b")).await;
        let given_up = claim("a");
        let ticket = given_up.ticket;
        let free = format!("free {round}");
        acquire(&store, &free, given_up).await.unwrap();

        set_up_anew(&redis, "appendonly", "no");
        until("nothing is granted", async || {
            let refused = acquire(&store, &format!("new {round}"), claim("a")).await;
            matches!(refused, Err(StoreError::NotDone(why)) if why.to_string().contains("persistence"))
        })
        .await;
        // What is held is looked after.
        let extend = Extend {
            owner: held.owner.clone(),
            fence: Some(held.fence),
            ttl: Ttl::new(Duration::from_secs(7200)).unwrap(),
        };
        let extended = store.extend(&held.name, extend).await.unwrap();
        release(&store, &extended.outcome.unwrap()).await;
        let next = hears(&store, "held", waiting).await;
        release(&store, granted(&next)).await;
        store.abandon(&name(&free), ticket);
        until("it is undone", async || {
            let status = store.inspect(&name(&free)).await.unwrap();
            status.outcome.is_none()
        })
        .await;

        // Nobody connects anew for that.
        redis.cli(&["CONFIG", "SET", "appendonly", "yes"]);
        take_again(&store, &free).await;
    }
}
