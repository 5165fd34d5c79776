//! With `strict`, a Redis whose settings become unsafe grants nothing.

use forrst_lock::{LockStore, StoreError};
use forrst_stores::{RedisOptions, RedisStore};
use forrst_testkit::RedisServer;

use crate::redis_faults::fixture::{
    acquire, call, still_serves_what_is_held, take, take_again, until, wait,
};

/// Changes a setting, and breaks the connections, because settings are checked with each new one.
fn reconfigure(redis: &RedisServer, setting: &str, value: &str) {
    redis.cli(&["CONFIG", "SET", setting, value]);
    // This does not close the connection that sends it.
    redis.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
}

#[tokio::test]
async fn an_unsafe_redis_grants_nothing_until_it_is_fixed() {
    let redis = RedisServer::start();
    let options = RedisOptions {
        strict: true,
        ..RedisOptions::default()
    };
    let store = RedisStore::open(&redis.url(), &options).await.unwrap();
    // Several rounds, because the check must not run before the new connection can be used.
    for round in 0..5 {
        let lease = take(&store, "held").await;
        let waiting = wait(&store, call("held", "b")).await;
        let free = format!("free {round}");
        let abandoned = call(&free, "a");
        let ticket = abandoned.ticket;
        acquire(&store, abandoned).await.unwrap();

        reconfigure(&redis, "appendonly", "no");
        until("nothing is granted", async || {
            let refused = acquire(&store, call(&format!("new {round}"), "a")).await;
            matches!(refused, Err(StoreError::NotDone(why)) if why.to_string().contains("persistence"))
        })
        .await;
        assert!(store.health().await.is_err());
        still_serves_what_is_held(&store, &lease, waiting, (&free, ticket)).await;

        // No connection is closed this time.
        redis.cli(&["CONFIG", "SET", "appendonly", "yes"]);
        take_again(&store, &free).await;
    }
}
