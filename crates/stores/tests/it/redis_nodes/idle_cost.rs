//! Waiting calls cost Redis nothing while nothing happens to their keys. Commands are counted, not time.

use std::time::Duration;

use forrst_stores::{RedisOptions, RedisStore};
use forrst_testkit::RedisServer;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::redis_faults::fixture::until;
use crate::redis_nodes::fixture::{HOUR, commands, guard, request, two_services};

const KEYS: usize = 2000;
/// The limit for all nodes together.
const PER_SECOND: f64 = 20.0;

#[tokio::test(flavor = "multi_thread")]
async fn keys_with_waiters_cost_nothing_while_nothing_happens_to_them() {
    let redis = RedisServer::start();
    let [one, other] = two_services(&redis).await;
    // Another fleet on the same server must not matter.
    let options = RedisOptions {
        prefix: "other".to_owned(),
        ..RedisOptions::default()
    };
    let _other_fleet = RedisStore::open(&redis.url(), &options).await.unwrap();
    let mut guards = Vec::new();
    let mut waiting = JoinSet::new();
    for number in 0..KEYS {
        let key = format!("k{number}");
        guards.push(guard(&one, request(&key, "a", HOUR)).await);
        // Half of them on the node of the holder.
        let node = [&one, &other][number % 2].clone();
        let mut request = request(&key, "b", HOUR);
        request.wait = Some(Duration::from_secs(HOUR));
        waiting.spawn(async move { node.acquire(request).await.is_ok() });
    }
    until("all wait", async || {
        one.waiting() == KEYS / 2 && other.waiting() == KEYS / 2
    })
    .await;
    // Until the last commands have been answered.
    sleep(Duration::from_secs(2)).await;

    let (since, before) = (Instant::now(), commands(&redis));
    sleep(Duration::from_secs(5)).await;
    let used = commands(&redis) - before;
    #[allow(clippy::cast_precision_loss, reason = "it is small")]
    let per_second = used as f64 / since.elapsed().as_secs_f64();
    assert!(per_second < PER_SECOND, "{per_second} commands a second");
    // Both nodes send heartbeats.
    assert!(used >= 6, "{used} commands in all");

    // All of them still get the lock.
    drop(guards);
    while let Some(granted) = waiting.join_next().await {
        assert!(granted.unwrap());
    }
}

/// Otherwise all waiting calls would have to rejoin their queues.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_keeps_its_instance_id_when_its_functions_are_flushed() {
    let redis = RedisServer::start();
    let nodes = two_services(&redis).await;
    let instance = || {
        let name = "return cmsgpack.unpack(redis.call('GET', KEYS[1]))[1]";
        redis.cli(&["EVAL", name, "1", "forrst:meta"])
    };
    guard(&nodes[0], request("k", "a", HOUR)).await;
    let before = instance();
    for number in 0..3 {
        redis.cli(&["FUNCTION", "FLUSH"]);
        guard(
            &nodes[number % 2],
            request(&format!("k{number}"), "a", HOUR),
        )
        .await;
    }
    assert_eq!(instance(), before);
}
