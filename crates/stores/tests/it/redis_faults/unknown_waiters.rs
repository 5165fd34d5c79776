//! Redis still has a waiter that has left its queue, because the replica that took over had not received the removal. A grant to it is
//! rolled back at once, instead of when its confirmation times out.

use std::sync::{Arc, Mutex, Weak};

use forrst_lock::model::{End, Transition, Wake};
use forrst_lock::{LockStore, Node, Reading, Ticket, Timestamp};
use forrst_stores::RedisStore;
use forrst_testkit::RedisServer;

use crate::redis_faults::fixture::{call, inspect, key_of, name, open, release, take, until, wait};

/// How leases have ended, as reported by both nodes.
#[derive(Debug, Default)]
struct Ends(Mutex<Vec<(String, End)>>);

impl Node for Ends {
    fn wake(&self, _: Ticket, _: Wake, _: Reading) -> bool {
        false
    }

    fn changed(&self, transition: &Transition, _: Timestamp) {
        if let Transition::Ended { lease, cause, .. } = transition {
            let owner = lease.owner.as_str().to_owned();
            self.0.lock().unwrap().push((owner, *cause));
        }
    }
}

/// Copies the key. The function that this returns restores it.
fn keep<'a>(redis: &'a RedisServer, key: &str) -> impl FnOnce() + use<'a> {
    let keys = [key_of(redis, key), key_of(redis, &format!("queue:{key}"))];
    for key in &keys {
        redis.cli(&["COPY", key, &format!("kept:{key}")]);
    }
    move || {
        for key in &keys {
            redis.cli(&["COPY", &format!("kept:{key}"), key, "REPLACE"]);
        }
    }
}

/// `releases` hands the lock over to a waiter that has left `waits`.
async fn is_rolled_back(redis: &RedisServer, releases: &RedisStore, waits: &RedisStore) {
    let lease = take(releases, "k").await;
    let ends = Arc::new(Ends::default());
    for store in [releases, waits] {
        let weak: Weak<Ends> = Arc::downgrade(&ends);
        store.subscribe(weak);
    }
    let unknown = call("k", "unknown");
    let ticket = unknown.ticket;
    drop(wait(waits, unknown).await);
    let bring_back = keep(redis, "k");
    waits.abandon(&name("k"), ticket);
    until("it has left", async || {
        inspect(releases, "k").await.waiters == 0
    })
    .await;
    bring_back();
    release(releases, &lease).await;
    let count = || {
        ends.0
            .lock()
            .unwrap()
            .iter()
            .filter(|(owner, _)| owner == "unknown")
            .count()
    };
    until("it is rolled back", async || count() > 0).await;
    let ends = std::mem::take(&mut *ends.0.lock().unwrap());
    assert!(
        ends.contains(&("unknown".to_owned(), End::Abandoned)),
        "{ends:?}"
    );
    let lease = take(releases, "k").await;
    release(releases, &lease).await;
}

#[tokio::test]
async fn a_grant_to_an_unknown_waiter_of_this_node_is_rolled_back() {
    let redis = RedisServer::start();
    let store = open(&redis).await;
    is_rolled_back(&redis, &store, &store).await;
}

#[tokio::test]
async fn a_grant_to_an_unknown_waiter_of_another_node_is_rolled_back() {
    let redis = RedisServer::start();
    let (one, other) = (open(&redis).await, open(&redis).await);
    is_rolled_back(&redis, &one, &other).await;
}
