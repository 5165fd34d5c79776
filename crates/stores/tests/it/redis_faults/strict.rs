//! A Redis that is set up otherwise than when it was found safe.

use forrst_lock::StoreError;
use forrst_stores::{RedisOptions, RedisStore};
use forrst_testkit::RedisServer;

use crate::redis_faults::ground::{
    acquire, call, looks_after_what_is_held, take, take_again, until, wait,
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
        let lease = take(&store, "held").await;
        let waiting = wait(&store, call("held", "b")).await;
        let free = format!("free {round}");
        let given_up = call(&free, "a");
        let ticket = given_up.ticket;
        acquire(&store, given_up).await.unwrap();

        set_up_anew(&redis, "appendonly", "no");
        until("nothing is granted", async || {
            let refused = acquire(&store, call(&format!("new {round}"), "a")).await;
            matches!(refused, Err(StoreError::NotDone(why)) if why.to_string().contains("persistence"))
        })
        .await;
        looks_after_what_is_held(&store, &lease, waiting, (&free, ticket)).await;

        // Nobody connects anew for that.
        redis.cli(&["CONFIG", "SET", "appendonly", "yes"]);
        take_again(&store, &free).await;
    }
}
