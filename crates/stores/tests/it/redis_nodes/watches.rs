//! Redis notifies a node that watches a key when another node changes it. These nodes never poll.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use forrst_lock::model::{Transition, Wake};
use forrst_lock::{
    Config, LockName, LockService, LockStore, Node, Observation, Owner, Reading, Revision, Ticket,
    Timestamp,
};
use forrst_testkit::asynchronous::soon;
use forrst_testkit::{RedisCluster, RedisServer};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::redis_faults::fixture::{PATIENCE, name, until};
use crate::redis_nodes::fixture::{
    HOUR, commands, guard, guard_of, join_queue, open_at, request, service,
};

/// A node that does not poll what it watches.
async fn without_polls(url: &str) -> LockService {
    let config = Config {
        watch_poll: Some(Duration::from_secs(HOUR)),
        ..Config::default()
    };
    LockService::new(open_at(url).await, config)
}

async fn revision(service: &LockService, key: &str) -> Revision {
    let now = service.watch(&name(key), None, Duration::ZERO).await;
    now.unwrap().revision
}

/// Waits for the next change of a key.
fn watch(service: &LockService, key: &str, since: Revision) -> JoinHandle<Observation> {
    let (service, name) = (service.clone(), name(key));
    tokio::spawn(async move {
        let wait = Duration::from_secs(HOUR);
        service.watch(&name, Some(since), wait).await.unwrap()
    })
}

async fn next(watch: JoinHandle<Observation>) -> Observation {
    let observation = timeout(PATIENCE, watch).await;
    observation.expect("the change is noticed").unwrap()
}

/// How many keys Redis reports the changes of.
fn tracked(redis: &RedisServer) -> usize {
    let stats = redis.cli(&["INFO", "stats"]);
    let mut lines = stats.lines();
    let count = lines.find_map(|line| line.strip_prefix("tracking_total_keys:"));
    count.unwrap().trim().parse().unwrap()
}

/// How often watched keys were read so that their next changes are reported.
fn reads(redis: &RedisServer) -> u64 {
    let stats = redis.cli(&["INFO", "commandstats"]);
    let mut lines = stats.lines();
    let line = lines.find_map(|line| line.strip_prefix("cmdstat_exists:calls="));
    line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_through_another_node_wake_watchers() {
    let redis = RedisServer::start();
    let changing = service(&open_at(&redis.url()).await);
    let watching = without_polls(&redis.url()).await;
    for round in 0..10 {
        let free = revision(&watching, "k").await;
        let watched = watch(&watching, "k", free);
        // Without this, the change may be seen when the watch begins.
        until("it is reported", async || tracked(&redis) >= 1).await;
        let guard = guard(&changing, request("k", "a", HOUR)).await;
        let held = next(watched).await;
        assert_eq!(held.status.holder_count, 1, "{round}");
        let watched = watch(&watching, "k", held.revision);
        guard.release().await;
        assert_eq!(next(watched).await.revision, free, "{round}");
    }
}

/// Forced releases, and changes of a lock with waiters and several holders, change other keys in Redis.
#[tokio::test(flavor = "multi_thread")]
async fn a_forced_release_and_a_hand_over_wake_watchers() {
    let redis = RedisServer::start();
    let changing = service(&open_at(&redis.url()).await);
    let watching = without_polls(&redis.url()).await;
    let first = guard(&changing, request("k", "a", HOUR)).await;
    let waiting = join_queue(&changing, request("k", "b", HOUR)).await;
    let watched = watch(&watching, "k", revision(&watching, "k").await);
    until("it is reported", async || tracked(&redis) >= 1).await;
    first.release().await;
    let second = guard_of(waiting).await;
    let seen = next(watched).await;
    assert_eq!(seen.status.holder().unwrap().fence, second.lease().fence);
    let watched = watch(&watching, "k", seen.revision);
    until("it is reported", async || tracked(&redis) >= 1).await;
    let ended = changing.force_release(&name("k"), []).await.unwrap();
    assert_eq!(ended.unwrap().len(), 1);
    assert_eq!(next(watched).await.status.holder_count, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_after_a_restart_of_redis_wake_watchers() {
    let mut redis = RedisServer::start();
    let changing = service(&open_at(&redis.url()).await);
    let watching = without_polls(&redis.url()).await;
    let watched = watch(&watching, "k", revision(&watching, "k").await);
    until("it is reported", async || tracked(&redis) >= 1).await;
    redis.kill();
    redis.restart();
    until("it is reported again", async || tracked(&redis) >= 1).await;
    let granted = soon(async {
        loop {
            match changing.acquire(request("k", "a", HOUR)).await {
                Ok(granted) => return granted,
                Err(_) => sleep(Duration::from_millis(10)).await,
            }
        }
    });
    let _granted = granted.await;
    assert_eq!(next(watched).await.status.holder_count, 1);
}

/// Redis forgets whom to notify, and the client library does not say so.
#[tokio::test(flavor = "multi_thread")]
async fn a_poll_that_finds_the_data_deleted_makes_redis_report_changes_again() {
    let redis = RedisServer::start();
    let changing = service(&open_at(&redis.url()).await);
    let config = Config {
        watch_poll: Some(Duration::from_millis(100)),
        ..Config::default()
    };
    let watching = LockService::new(open_at(&redis.url()).await, config);
    guard(&changing, request("k", "a", HOUR)).await.keep();
    // It goes on, whatever others hold.
    let watched = tokio::spawn(async move {
        let nobody = Owner::parse("nobody").unwrap();
        let (since, wait) = (Some(Revision::FREE), Duration::from_secs(HOUR));
        watching.watch_own(&name("k"), &nobody, since, wait).await
    });
    until("it is reported", async || tracked(&redis) >= 1).await;
    redis.cli(&["FLUSHALL"]);
    until("it is reported again", async || tracked(&redis) >= 1).await;
    watched.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_in_a_cluster_wake_watchers() {
    let cluster = RedisCluster::start();
    let changing = service(&open_at(&cluster.url()).await);
    let watching = without_polls(&cluster.url()).await;
    // On all servers.
    let keys = (0..12).map(|number| format!("k{number}"));
    let mut watched = Vec::new();
    for key in keys {
        let free = revision(&watching, &key).await;
        watched.push((watch(&watching, &key, free), key));
    }
    for (watched, key) in watched {
        let _guard = guard(&changing, request(&key, "a", HOUR)).await;
        assert_eq!(next(watched).await.status.holder_count, 1, "{key}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn watched_keys_cost_nothing_while_they_do_not_change() {
    const KEYS: usize = 500;
    /// Heartbeats.
    const PER_SECOND: u64 = 20;
    let redis = RedisServer::start();
    let watching = without_polls(&redis.url()).await;
    let mut watched = Vec::new();
    for number in 0..KEYS {
        let key = format!("k{number}");
        let free = revision(&watching, &key).await;
        // Two watchers of a key share everything.
        watched.extend([free; 2].map(|free| watch(&watching, &key, free)));
    }
    until("all are reported", async || reads(&redis) >= KEYS as u64).await;
    soon(async {
        loop {
            let (before, since) = (commands(&redis) + reads(&redis), Instant::now());
            sleep(Duration::from_secs(1)).await;
            let used = commands(&redis) + reads(&redis) - before;
            if used < PER_SECOND * since.elapsed().as_secs() {
                return;
            }
        }
    })
    .await;
    drop(watched);
}

/// Counts the reports about watched keys.
#[derive(Debug, Default)]
struct Reports(AtomicU64);

impl Node for Reports {
    fn wake(&self, _: Ticket, _: Wake, _: Reading) -> bool {
        false
    }

    fn changed(&self, _: &Transition, _: Timestamp) {}

    fn may_have_changed(&self, _: &LockName) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_changes_all_the_time_is_reported_at_intervals() {
    let redis = RedisServer::start();
    let changing = service(&open_at(&redis.url()).await);
    let store = open_at(&redis.url()).await;
    let reports = Arc::<Reports>::default();
    let weak: Weak<Reports> = Arc::downgrade(&reports);
    store.subscribe(weak);
    let since = Instant::now();
    let watch = store.watch(&name("k")).unwrap();
    until("it is live", async || watch.is_live()).await;
    for _ in 0..300 {
        guard(&changing, request("k", "a", HOUR))
            .await
            .release()
            .await;
    }
    // The last change is reported, too.
    let last = guard(&changing, request("k", "a", HOUR)).await;
    until("it is reported", async || tracked(&redis) >= 1).await;
    let reported = reports.0.load(Ordering::Relaxed);
    let most = since.elapsed().as_millis() / 20 + 1;
    assert!(
        u128::from(reported) <= most,
        "{reported} reports, {most} are allowed"
    );
    last.release().await;
    until("the release is reported", async || {
        reports.0.load(Ordering::Relaxed) > reported
    })
    .await;
    drop(watch);
    let before = reads(&redis);
    for _ in 0..20 {
        guard(&changing, request("k", "a", HOUR))
            .await
            .release()
            .await;
    }
    // One may have been under way.
    assert!(reads(&redis) <= before + 1, "it is not watched any more");
}
