//! Requests that reach Redis after they have timed out or were abandoned.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use forrst_lock::model::{Acquire, Acquired, Wait};
use forrst_lock::{Caller, LockStore, Note};
use forrst_stores::{RedisOptions, RedisStore};
use forrst_testkit::{Proxy, RedisServer, Traffic};

use crate::redis_faults::fixture::{
    PATIENCE, acquire, call, inspect, name, open, release, take, until,
};

/// The longest text that a claim may have, in bytes.
const LONG: usize = 255;

/// The client ids of all connections.
fn connections(redis: &RedisServer) -> HashSet<String> {
    let list = redis.cli(&["CLIENT", "LIST"]);
    let ids = list.lines().filter_map(|line| line.split(' ').next());
    ids.map(str::to_owned).collect()
}

/// Redis closes a connection when it has run everything that was received on it.
async fn until_closed(redis: &RedisServer, old: &HashSet<String>) {
    until("Redis has closed them", async || {
        connections(redis).is_disjoint(old)
    })
    .await;
}

/// Its caller has left by then, and would never release a lease.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_rejoins_too_late_is_granted_nothing() {
    let redis = RedisServer::start();
    let proxy = Proxy::start(redis.port());
    let options = RedisOptions {
        // Redis may run its commands for this long.
        timeout: PATIENCE,
        ..RedisOptions::default()
    };
    let other = open(&redis).await;
    let before = connections(&redis);
    let late = Arc::new(RedisStore::open(&proxy.url(), &options).await.unwrap());
    let old = &connections(&redis) - &before;
    let lease = take(&other, "k").await;
    // So long that it cannot be mistaken for a heartbeat.
    let mut first = call("k", &"o".repeat(LONG));
    first.claim.note = Some(Note::parse(&"n".repeat(LONG)).unwrap());
    first.claim.caller = Some(Caller::parse(&"c".repeat(LONG)).unwrap());
    let ticket = first.ticket;
    let wait = Wait {
        timeout: PATIENCE,
        max_queue: 100,
        rejoin: None,
    };
    let waiting = Acquire {
        wait: Some(wait.clone()),
        ..first.clone()
    };
    let position = match acquire(&late, waiting).await.unwrap() {
        Acquired::Queued { position, .. } => position,
        other => panic!("{other:?}"),
    };
    let again = Acquire {
        wait: Some(Wait {
            rejoin: Some((position, lease.acquired_at + 2 * PATIENCE)),
            ..wait
        }),
        ..first
    };

    proxy.hold_requests();
    let rejoining = tokio::spawn({
        let late = late.clone();
        async move { acquire(&late, again).await }
    });
    until("it is on its way", async || proxy.held() > 4 * LONG).await;
    // Its connection breaks. Commands on the next one arrive first.
    proxy.pass();
    proxy.cut(Traffic::All);
    assert!(rejoining.await.unwrap().is_err());
    late.abandon(&name("k"), ticket);
    late.abandon(&name("k"), ticket);
    until("the call is rolled back", async || {
        inspect(&other, "k").await.waiters == 0
            && redis.cli(&["ZCARD", "forrst:tombstones"]).trim() == "1"
    })
    .await;
    release(&other, &lease).await;

    assert!(proxy.deliver_requests() > 4 * LONG);
    until_closed(&redis, &old).await;
    let status = inspect(&other, "k").await;
    assert_eq!((status.holder(), status.waiters), (None, 0));
    take(&other, "k").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_arrives_after_its_timeout_is_granted_nothing() {
    let redis = RedisServer::start();
    let proxy = Proxy::start(redis.port());
    let options = RedisOptions {
        timeout: Duration::from_millis(500),
        ..RedisOptions::default()
    };
    let other = open(&redis).await;
    let before = connections(&redis);
    let late = RedisStore::open(&proxy.url(), &options).await.unwrap();
    let old = &connections(&redis) - &before;
    proxy.hold_requests();
    assert!(acquire(&late, call("k", "late")).await.is_err());
    // So that it is not rolled back.
    drop(late);
    proxy.pass();
    assert!(proxy.deliver_requests() > 200);
    until_closed(&redis, &old).await;
    assert_eq!(inspect(&other, "k").await.holder(), None);
}
