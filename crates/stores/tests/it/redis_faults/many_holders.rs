//! Locks with very many holders or waiters: leases are kept in the sorted set of their key, and grants take several calls.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use forrst_lock::model::{Acquire, Acquired, Claim, Transition, Wait, Wake};
use forrst_lock::{
    Attempt, Kind, Lease, LockStore, LockStoreExt, Locks, Node, Reading, Share, Ticket, Timestamp,
    Ttl,
};
use forrst_stores::{RedisOptions, RedisStore};
use forrst_testkit::RedisServer;
use futures_util::future::join_all;

use crate::redis_faults::fixture::{
    PATIENCE, acquire, call, held, inspect, key_of, lasting_keys, name, until,
};

async fn open_patiently(redis: &RedisServer) -> RedisStore {
    let options = RedisOptions {
        timeout: PATIENCE,
        ..RedisOptions::default()
    };
    RedisStore::open(&redis.url(), &options).await.unwrap()
}

fn shared(owner: &str, share: Share, ttl: Duration) -> Acquire {
    let call = call("k", owner);
    Acquire {
        claim: Claim {
            locks: Locks::one(name("k"), share),
            ttl: Ttl::new(ttl).unwrap(),
            ..call.claim
        },
        ..call
    }
}

/// A semaphore, and the leases on it.
struct Semaphore {
    limit: u32,
    stores: [RedisStore; 2],
    leases: Vec<Lease>,
}

impl Semaphore {
    fn store(&self) -> &RedisStore {
        &self.stores[fastrand::usize(..2)]
    }

    /// Acquires as many more, all at once. Every other one has an attempt.
    async fn acquire(&mut self, count: usize, ttl: Duration) {
        let calls = (0..count).map(|number| {
            let number = self.leases.len() + number;
            let share = Share::limit(self.limit).unwrap();
            let mut call = shared(&format!("owner {}", number % 300), share, ttl);
            if number.is_multiple_of(2) {
                let attempt = fastrand::u64(..).to_string();
                call.claim.attempt = Some(Attempt::parse(&attempt).unwrap());
            }
            acquire(self.store(), call)
        });
        for acquired in join_all(calls).await {
            match acquired.unwrap() {
                Acquired::Granted(lease) => self.leases.push(lease),
                other => panic!("has room: {other:?}"),
            }
        }
        fastrand::shuffle(&mut self.leases);
    }

    /// Removes random leases from the list.
    fn take(&mut self, count: usize) -> Vec<Lease> {
        fastrand::shuffle(&mut self.leases);
        self.leases.split_off(self.leases.len() - count)
    }

    async fn extend(&mut self, count: usize, ttl: Duration) {
        let leases = self.take(count);
        let ttl = Ttl::new(ttl).unwrap();
        let extended = leases
            .iter()
            .map(|lease| self.store().extend(held(lease), ttl));
        for (before, extended) in leases.iter().zip(join_all(extended).await) {
            let lease = extended.unwrap().outcome.unwrap();
            assert_eq!((&lease.owner, lease.fence), (&before.owner, before.fence));
            self.leases.push(lease);
        }
    }

    async fn release(&mut self, count: usize) {
        let leases = self.take(count);
        let released = leases.iter().map(|lease| self.store().release(held(lease)));
        for (lease, released) in leases.iter().zip(join_all(released).await) {
            assert_eq!(released.unwrap().outcome.as_ref(), Ok(lease));
        }
    }

    async fn force_release(&mut self, count: usize) {
        let leases = self.take(count);
        let fences: Vec<_> = leases.iter().map(|lease| lease.fence).collect();
        let forced = self.store().force_release(&name("k"), fences).await;
        let mut forced = forced.unwrap().outcome.unwrap();
        let mut leases = leases;
        leases.sort_by_key(|lease| lease.fence);
        forced.sort_by_key(|lease| lease.fence);
        assert_eq!(forced, leases);
    }

    /// Waits until the short leases have expired.
    async fn expire(&mut self, count: usize) {
        let store = &self.stores[0];
        until("they run out", async || {
            inspect(store, "k").await.holder_count + count == self.leases.len()
        })
        .await;
        let hour = Duration::from_secs(1800);
        self.leases
            .retain(|lease| lease.expires_at > lease.acquired_at + hour);
        until("they are swept away", async || {
            store.sweep(100).await.unwrap();
            store.counts().await.unwrap().leases == self.leases.len()
        })
        .await;
    }

    /// Both nodes show exactly these leases.
    async fn check(&self) {
        let expected = self.leases.len();
        for store in &self.stores {
            let status = inspect(store, "k").await;
            assert_eq!(status.holder_count, expected);
            assert_eq!(status.waiters, 0);
            let mut sorted = self.leases.clone();
            sorted.sort_by_key(|lease| lease.fence);
            sorted.truncate(status.holders.len());
            assert_eq!(status.holders, sorted);
            let counts = store.counts().await.unwrap();
            let kind = (expected > 0).then_some(Kind::Limit(self.limit));
            assert_eq!(status.kind, kind);
            assert_eq!(
                (counts.keys, counts.leases),
                (usize::from(expected > 0), expected)
            );
        }
    }
}

const HOUR: Duration = Duration::from_secs(3600);

#[tokio::test(flavor = "multi_thread")]
async fn a_semaphore_of_a_thousand_leases_is_counted_correctly() {
    let redis = RedisServer::start();
    let mut semaphore = Semaphore {
        limit: 1000,
        stores: [open_patiently(&redis).await, open_patiently(&redis).await],
        leases: Vec::new(),
    };
    for round in 0..2 {
        semaphore.acquire(1000 - semaphore.leases.len(), HOUR).await;
        semaphore.check().await;
        let share = Share::limit(1000).unwrap();
        let one_more = acquire(&semaphore.stores[0], shared("one more", share, HOUR)).await;
        assert!(matches!(one_more, Ok(Acquired::Held(_))), "{one_more:?}");
        semaphore.extend(300, HOUR).await;
        semaphore.check().await;
        semaphore.release(300).await;
        semaphore.check().await;
        semaphore.force_release(200).await;
        semaphore.check().await;
        semaphore.acquire(100, Duration::from_secs(5)).await;
        semaphore.check().await;
        semaphore.expire(100).await;
        semaphore.check().await;
        // Down to what the state of the key has room for, and up again.
        semaphore.release(semaphore.leases.len() - 5 * round).await;
        semaphore.check().await;
    }
    semaphore.release(semaphore.leases.len()).await;
    semaphore.check().await;
    assert_eq!(key_of(&redis, "queue:k"), "");
    assert_eq!(lasting_keys(&redis), [""; 0]);
}

/// They end in one call, which must not read the ended ones again for each lease.
#[tokio::test(flavor = "multi_thread")]
async fn leases_that_expire_together_are_read_once() {
    const COUNT: usize = 1000;
    let redis = RedisServer::start();
    let store = open_patiently(&redis).await;
    let calls = (0..COUNT).map(|number| {
        let ttl = Duration::from_secs(5);
        acquire(&store, shared(&number.to_string(), Share::SHARED, ttl))
    });
    for acquired in join_all(calls).await {
        assert!(matches!(acquired, Ok(Acquired::Granted(_))), "{acquired:?}");
    }
    until("they run out", async || {
        inspect(&store, "k").await.holder_count == 0
    })
    .await;
    redis.cli(&["CONFIG", "RESETSTAT"]);
    until("they are swept away", async || {
        store.sweep(100).await.unwrap();
        store.counts().await.unwrap().leases == 0
    })
    .await;
    let stats = redis.cli(&["INFO", "commandstats"]);
    let reads = stats.split("cmdstat_zrange:calls=").nth(1);
    let reads = reads.and_then(|reads| reads.split(',').next()?.parse::<usize>().ok());
    assert!(reads.unwrap() < 5 * COUNT, "{stats}");
}

/// A node's calls, and what they were woken with.
#[derive(Debug, Default)]
struct Calls {
    granted: Mutex<Vec<Lease>>,
}

impl Node for Calls {
    fn wake(&self, _: Ticket, wake: Wake, _: Reading) -> bool {
        match wake {
            Wake::Granted(lease) => self.granted.lock().unwrap().push(lease),
            other => panic!("should be granted: {other:?}"),
        }
        true
    }

    fn changed(&self, _: &Transition, _: Timestamp) {}
}

/// Readers behind a writer, of one node or two. No key is settled or swept by the test.
async fn are_all_granted(redis: &RedisServer, nodes: usize, readers: usize) {
    let (mut stores, mut calls) = (Vec::new(), Vec::new());
    for _ in 0..nodes {
        let store = open_patiently(redis).await;
        let of_store: Arc<Calls> = Arc::default();
        let weak: Weak<Calls> = Arc::downgrade(&of_store);
        store.subscribe(weak);
        stores.push(store);
        calls.push(of_store);
    }
    let Acquired::Granted(writer) = acquire(&stores[0], call("k", "writer")).await.unwrap() else {
        panic!("should be free");
    };
    for number in 0..readers {
        let reader = Acquire {
            wait: Some(Wait {
                timeout: HOUR,
                max_queue: readers,
                rejoin: None,
            }),
            ..shared(&number.to_string(), Share::SHARED, HOUR)
        };
        let queued = acquire(&stores[number % nodes], reader).await.unwrap();
        assert!(matches!(queued, Acquired::Queued { .. }), "{queued:?}");
    }
    stores[0]
        .release(held(&writer))
        .await
        .unwrap()
        .outcome
        .unwrap();
    let count = || {
        calls
            .iter()
            .map(|calls| calls.granted.lock().unwrap().len())
            .sum::<usize>()
    };
    until("all are granted it", async || count() >= readers).await;
    let mut granted: Vec<Lease> = Vec::new();
    for calls in calls {
        granted.extend(calls.granted.lock().unwrap().drain(..));
    }
    granted.sort_by_key(|lease| lease.fence);
    let owners: Vec<&str> = granted.iter().map(|lease| lease.owner.as_str()).collect();
    let expected: Vec<String> = (0..readers).map(|number| number.to_string()).collect();
    assert_eq!(owners, expected);
    let status = inspect(&stores[0], "k").await;
    assert_eq!((status.holder_count, status.waiters), (readers, 0));
    assert_eq!(status.kind, Some(Kind::Shared));
}

#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_readers_of_one_node_are_granted_after_one_release() {
    let redis = RedisServer::start();
    are_all_granted(&redis, 1, 2000).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_readers_of_two_nodes_are_granted_after_one_release() {
    let redis = RedisServer::start();
    are_all_granted(&redis, 2, 2000).await;
}
