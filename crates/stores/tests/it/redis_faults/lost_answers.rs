//! Commands that may have run, although their callers got no answer.

use std::sync::Arc;
use std::time::Duration;

use forrst_lock::{LockStore, StoreError};
use forrst_stores::{RedisOptions, RedisStore};
use forrst_testkit::{Proxy, RedisServer, Way};
use tokio::time::timeout;

use crate::redis_faults::fixture::{PATIENCE, acquire, call, name, open, take, until};

#[tokio::test]
async fn a_call_that_arrives_after_it_was_abandoned_has_no_effect() {
    let redis = RedisServer::start();
    let store = open(&redis).await;
    let late = call("k", "late");
    store.abandon(&name("k"), late.ticket);
    until("it is marked", async || {
        redis.cli(&["ZCARD", "forrst:tombstones"]).trim() == "1"
    })
    .await;
    assert!(acquire(&store, late).await.is_err());
    take(&store, "k").await;
}

/// Otherwise commands would run out of order. fred fails everything under way with the first such error, and breaks the connection; the
/// first call may itself have been sent behind another one that was refused.
#[tokio::test]
async fn a_call_that_was_sent_behind_a_refused_one_is_not_run() {
    let redis = RedisServer::start();
    let proxy = Proxy::start(redis.port());
    let options = RedisOptions {
        timeout: PATIENCE,
        ..RedisOptions::default()
    };
    let store = Arc::new(RedisStore::open(&proxy.url(), &options).await.unwrap());
    // The functions are loaded by then, so that each call is one command.
    take(&store, "known").await;
    proxy.delay(Way::ToClient, PATIENCE);
    let submit = |key: &'static str| {
        let store = store.clone();
        tokio::spawn(async move { acquire(&store, call(key, "a")).await })
    };
    redis.cli(&["REPLICAOF", "127.0.0.1", "1"]);
    let refused = submit("refused");
    until("it is refused", async || {
        redis.cli(&["INFO", "errorstats"]).contains("READONLY")
    })
    .await;
    redis.cli(&["REPLICAOF", "NO", "ONE"]);
    let calls = || {
        let stats = redis.cli(&["INFO", "commandstats"]);
        let calls = stats.split("cmdstat_fcall:calls=").nth(1);
        let calls = calls.and_then(|calls| calls.split(',').next()?.parse::<u64>().ok());
        calls.unwrap_or(0)
    };
    let before = calls();
    let behind = submit("behind");
    // It may not have been sent if a heartbeat is under way as well: there are at most two calls.
    let arrives = until("it has arrived", async || calls() > before);
    let _ = timeout(Duration::from_secs(2), arrives).await;
    assert_eq!(redis.cli(&["KEYS", "*:lock:behind"]).trim(), "");
    proxy.heal();
    let refused = refused.await.unwrap();
    assert!(
        matches!(refused, Err(StoreError::MaybeDone(_))),
        "{refused:?}"
    );
    // It may be sent once more, unless the connection was broken before.
    if let Err(StoreError::NotDone(_)) = behind.await.unwrap() {
        assert_eq!(redis.cli(&["KEYS", "*:lock:behind"]).trim(), "");
    }
}

#[tokio::test]
async fn abandoned_calls_are_rolled_back_before_the_store_is_closed() {
    let redis = RedisServer::start();
    let (ends, stays) = (open(&redis).await, open(&redis).await);
    let mut calls = Vec::new();
    for number in 0..300 {
        let key = format!("k{number}");
        let call = call(&key, "a");
        calls.push((name(&key), call.ticket));
        acquire(&ends, call).await.unwrap();
    }
    for (name, ticket) in calls {
        ends.abandon(&name, ticket);
    }
    ends.close().await;
    assert_eq!(stays.counts().await.unwrap().keys, 0);
}

#[tokio::test]
async fn a_store_can_be_closed_while_its_redis_is_down() {
    let redis = RedisServer::start();
    let store = open(&redis).await;
    redis.kill();
    store.abandon(&name("k"), call("k", "a").ticket);
    timeout(PATIENCE, store.close()).await.expect("an end");
}
