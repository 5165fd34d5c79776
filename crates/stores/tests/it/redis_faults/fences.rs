//! Fences grow, whatever Redis loses.

use std::time::{Duration, SystemTime};

use forrst_lock::Fence;
use forrst_lock::model::{Acquired, Wake};
use forrst_stores::{RedisOptions, RedisStore};
use forrst_testkit::{RedisOptions as ServerOptions, RedisReplicas, RedisServer};

use crate::redis_faults::fixture::{acquire, call, open, release, take, take_again, wait};

/// The fences of one lock, each of which has to be larger than all before it.
struct Fences {
    store: RedisStore,
    last: u64,
}

impl Fences {
    fn new(store: RedisStore) -> Self {
        Self { store, last: 0 }
    }

    /// Takes a few more, as soon as Redis is available.
    async fn grow(&mut self) {
        for _ in 0..3 {
            let lease = take_again(&self.store, "k").await;
            let fence = lease.fence.number();
            assert!(fence > self.last, "{fence} after {}", self.last);
            self.last = fence;
            release(&self.store, &lease).await;
        }
    }
}

#[tokio::test]
async fn fences_grow_across_restarts() {
    let kept = ServerOptions::default();
    let forgotten = ServerOptions::default().forgetful();
    for options in [kept, forgotten] {
        let mut redis = options.start();
        let mut fences = Fences::new(open(&redis).await);
        fences.grow().await;
        for _ in 0..3 {
            redis.restart();
            fences.grow().await;
        }
    }
}

#[tokio::test]
async fn fences_grow_across_a_fail_over() {
    let mut replicas = RedisReplicas::start(1, 3);
    let store = RedisStore::open(&replicas.url(), &RedisOptions::default()).await;
    let mut fences = Fences::new(store.unwrap());
    fences.grow().await;
    replicas.primary().kill();
    replicas.until_failed_over();
    fences.grow().await;
}

/// Redis restarts with the same old snapshot each time.
#[tokio::test]
async fn fences_grow_across_repeated_losses_to_the_same_snapshot() {
    let snapshots = ["--save", "3600 1"];
    let options = ServerOptions::default().forgetful();
    let mut redis = options.arguments(&snapshots).start();
    let mut fences = Fences::new(open(&redis).await);
    fences.grow().await;
    redis.cli(&["SAVE"]);
    for _ in 0..3 {
        redis.restart();
        fences.grow().await;
    }
}

/// The upper bound of a server that was restarted often must not be further ahead of the time than that of a new one.
#[tokio::test]
async fn fences_grow_after_restarts_and_then_a_flushall() {
    let mut redis = RedisServer::start();
    let mut fences = Fences::new(open(&redis).await);
    for _ in 0..3 {
        fences.grow().await;
        redis.restart();
    }
    for _ in 0..2 {
        fences.grow().await;
        redis.cli(&["FLUSHALL"]);
    }
    fences.grow().await;
}

#[tokio::test]
async fn the_clock_of_a_new_server_may_be_seconds_behind() {
    let redis = RedisServer::start();
    let lease = take(&open(&redis).await, "k").await;
    // 2026-01-01 UTC, and a hundred fences for each millisecond since.
    let epoch = SystemTime::UNIX_EPOCH + Duration::from_millis(1_767_225_600_000);
    let clock_ahead = SystemTime::now() + Duration::from_secs(50);
    let given_out = clock_ahead.duration_since(epoch).unwrap().as_millis() * 100;
    assert!(u128::from(lease.fence.number()) > given_out);
}

#[tokio::test]
async fn past_the_last_fence_nothing_is_granted() {
    let redis = RedisServer::start();
    let store = open(&redis).await;
    let first = take(&store, "k").await;
    release(&store, &first).await;
    let set = "local meta = cmsgpack.unpack(redis.call('GET', KEYS[1]))
        meta[2] = 900000000000000
        redis.call('SET', KEYS[1], cmsgpack.pack(meta))";
    redis.cli(&["EVAL", set, "1", "forrst:meta"]);
    let last = take(&store, "k").await;
    assert_eq!(last.fence, Fence::MAX);
    let waiting = wait(&store, call("k", "b")).await;
    release(&store, &last).await;
    assert_eq!(waiting.wake.await.unwrap(), Wake::FencesExhausted);
    let refused = acquire(&store, call("k", "c")).await.unwrap();
    assert_eq!(refused, Acquired::FencesExhausted);
}
