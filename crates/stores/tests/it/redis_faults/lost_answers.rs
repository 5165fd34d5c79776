//! What was asked for may have been done, and nobody heard of it.

use std::sync::Arc;

use forrst_lock::{LockStore, StoreError};
use forrst_stores::{RedisOptions, RedisStore};
use forrst_testkit::{Proxy, RedisServer, Way};
use tokio::time::timeout;

use crate::redis_faults::ground::{PATIENCE, acquire, call, name, open, take, until};

#[tokio::test]
async fn a_call_that_arrives_after_it_was_given_up_comes_to_nothing() {
    let redis = RedisServer::start();
    let store = open(&redis).await;
    let late = call("k", "late");
    store.abandon(&name("k"), late.ticket);
    let mark = format!("*undone:{:032x}", late.ticket.0);
    until("it is marked", async || {
        !redis.cli(&["KEYS", &mark]).is_empty()
    })
    .await;
    assert!(acquire(&store, late).await.is_err());
    take(&store, "k").await;
}

/// fred answers everything on its way with the first such error, and breaks the connection.
#[tokio::test]
async fn what_ran_behind_a_call_that_redis_refused_may_have_been_done() {
    let redis = RedisServer::start();
    let proxy = Proxy::start(redis.port());
    let options = RedisOptions {
        timeout: PATIENCE,
        ..RedisOptions::default()
    };
    let store = Arc::new(RedisStore::open(&proxy.url(), &options).await.unwrap());
    // Its scripts are known, so that each call is one command.
    take(&store, "known").await;
    proxy.delay(Way::ToClient, PATIENCE);
    let ask = |key: &'static str| {
        let store = store.clone();
        tokio::spawn(async move { acquire(&store, call(key, "a")).await })
    };
    redis.cli(&["REPLICAOF", "127.0.0.1", "1"]);
    let refused = ask("refused");
    until("it is refused", async || {
        redis.cli(&["INFO", "errorstats"]).contains("READONLY")
    })
    .await;
    redis.cli(&["REPLICAOF", "NO", "ONE"]);
    let granted = ask("granted");
    until("it is granted", async || {
        !redis
            .cli(&["KEYS", "*:lock:lock:granted"])
            .trim()
            .is_empty()
    })
    .await;
    proxy.heal();
    for call in [refused, granted] {
        // The answer of the second may have been read before the connection was broken.
        let answer = call.await.unwrap();
        assert!(!matches!(answer, Err(StoreError::NotDone(_))), "{answer:?}");
    }
}

#[tokio::test]
async fn what_was_given_up_is_undone_before_the_store_is_closed() {
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
async fn a_store_whose_redis_is_gone_is_closed_all_the_same() {
    let redis = RedisServer::start();
    let store = open(&redis).await;
    redis.kill();
    store.abandon(&name("k"), call("k", "a").ticket);
    timeout(PATIENCE, store.close()).await.expect("an end");
}
