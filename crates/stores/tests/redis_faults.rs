//! What goes wrong around a Redis, and what that may cost: time, never a lock.
#![cfg(not(shuttle))]

use std::time::Duration;

use forrst_lock::state::{Acquire, Acquired, Claim, Release, Wait, Wake};
use forrst_lock::{
    Fence, Lease, LockKey, LockName, LockStore, Owner, Page, StoreError, Ticket, Ttl, Waiter,
};
use forrst_stores::{RedisError, RedisOptions, RedisStore};
use forrst_testkit::{RedisOptions as ServerOptions, RedisReplicas, RedisServer};
use tokio::sync::oneshot::Receiver;
use tokio::time::{Instant, sleep, timeout};

const PATIENCE: Duration = Duration::from_secs(20);

fn name(key: &str) -> LockName {
    LockName::global(&LockKey::parse(key).unwrap())
}

fn claim(owner: &str) -> Claim {
    Claim {
        owner: Owner::parse(owner).unwrap(),
        caller: None,
        attempt: None,
        ticket: Ticket::random(),
        ttl: Ttl::new(Duration::from_secs(3600)).unwrap(),
    }
}

async fn open(redis: &RedisServer) -> RedisStore {
    let store = RedisStore::open(&redis.url(), &RedisOptions::default()).await;
    store.unwrap()
}

async fn acquire(store: &RedisStore, key: &str, claim: Claim) -> Result<Acquired, StoreError> {
    let command = Acquire { claim, wait: None };
    let answer = store.acquire(&name(key), command).await;
    answer.map(|answer| answer.outcome)
}

async fn take(store: &RedisStore, key: &str) -> Lease {
    match acquire(store, key, claim("a")).await {
        Ok(Acquired::Granted(lease)) => lease,
        other => panic!("{key} should be free: {other:?}"),
    }
}

/// As soon as Redis is there again.
async fn take_again(store: &RedisStore, key: &str) -> Lease {
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        if let Ok(Acquired::Granted(lease)) = acquire(store, key, claim("a")).await {
            return lease;
        }
        sleep(Duration::from_millis(20)).await;
    }
    panic!("{key} should become free");
}

async fn wait(store: &RedisStore, key: &str, claim: Claim) -> Receiver<Wake> {
    let (waiter, wake) = Waiter::channel();
    let wait = Some(Wait {
        timeout: Duration::from_secs(60),
        max_ahead: 100,
        waiter,
    });
    let answer = store.acquire(&name(key), Acquire { claim, wait }).await;
    let outcome = answer.unwrap().outcome;
    assert!(matches!(outcome, Acquired::Queued { .. }), "{outcome:?}");
    wake
}

async fn release(store: &RedisStore, lease: &Lease) {
    let command = Release {
        owner: lease.owner.clone(),
        fence: Some(lease.fence),
    };
    let answer = store.release(&lease.name, command).await.unwrap();
    assert_eq!(answer.outcome.as_ref(), Ok(lease));
}

/// Looks at the key as the service does while somebody waits, until there is news.
async fn hears(store: &RedisStore, key: &str, wake: Receiver<Wake>) -> Wake {
    let looks = async {
        loop {
            let _ = store.settle(&name(key)).await;
            sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::select! {
        heard = timeout(PATIENCE, wake) => heard.expect("news in time").unwrap(),
        () = looks => unreachable!(),
    }
}

fn granted(wake: &Wake) -> &Lease {
    match wake {
        Wake::Granted(lease) => lease,
        other => panic!("should have been granted the lock: {other:?}"),
    }
}

#[tokio::test]
async fn a_call_that_arrives_after_it_was_given_up_comes_to_nothing() {
    let redis = RedisServer::start();
    let store = open(&redis).await;
    let late = claim("late");
    store.abandon(&name("k"), late.ticket);
    let mark = format!("*undone:{:032x}", late.ticket.0);
    let end = Instant::now() + PATIENCE;
    while redis.cli(&["KEYS", &mark]).is_empty() && Instant::now() < end {
        sleep(Duration::from_millis(10)).await;
    }
    assert!(acquire(&store, "k", late).await.is_err());
    take(&store, "k").await;
}

#[tokio::test]
async fn fences_grow_across_restart_loss_and_fail_over() {
    let mut kept = RedisServer::start();
    let mut forgotten = ServerOptions::default().forgetful().start();
    for (redis, at_least) in [(&mut kept, 1_000_000), (&mut forgotten, 1)] {
        let store = open(redis).await;
        let first = take(&store, "k").await;
        release(&store, &first).await;
        redis.kill();
        redis.restart();
        let second = take_again(&store, "k").await;
        // What was kept may be without what was given out last, so one more would not be enough.
        assert!(second.fence.number() >= first.fence.number() + at_least);
        release(&store, &second).await;
        let third = take(&store, "k").await;
        assert_eq!(third.fence.number(), second.fence.number() + 1);
    }
    forgotten.cli(&["FLUSHALL"]);
    let store = open(&forgotten).await;
    let last = take(&store, "other").await;
    assert!(last.fence.number() > 1_000_000_000);

    let mut replicas = RedisReplicas::start(1, 3);
    let store = RedisStore::open(&replicas.url(), &RedisOptions::default()).await;
    let store = store.unwrap();
    let before = take(&store, "k").await;
    release(&store, &before).await;
    replicas.primary().kill();
    replicas.until_failed_over();
    let after = take_again(&store, "k").await;
    assert!(after.fence.number() > before.fence.number() + 1_000_000);
}

#[tokio::test]
async fn past_the_last_fence_nothing_is_granted() {
    let redis = RedisServer::start();
    let store = open(&redis).await;
    let first = take(&store, "k").await;
    release(&store, &first).await;
    let counters = redis.cli(&["KEYS", "{forrst:*}:fence"]);
    let counter = counters.trim();
    redis.cli(&["HSET", counter, "fence", "899999999999999"]);
    let last = take(&store, "k").await;
    assert_eq!(last.fence, Fence::MAX);
    let waiting = wait(&store, "k", claim("b")).await;
    release(&store, &last).await;
    assert_eq!(waiting.await.unwrap(), Wake::FencesExhausted);
    let refused = acquire(&store, "k", claim("c")).await.unwrap();
    assert_eq!(refused, Acquired::FencesExhausted);
}

#[tokio::test]
async fn a_grant_to_a_node_that_has_just_died_goes_on_within_seconds() {
    let redis = RedisServer::start();
    let (alive, dying) = (open(&redis).await, open(&redis).await);
    let lease = take(&alive, "k").await;
    let _unheard = wait(&dying, "k", claim("b")).await;
    let behind = wait(&alive, "k", claim("c")).await;
    // Its name stays in the queue, and as far as Redis knows it is well.
    drop(dying);
    release(&alive, &lease).await;
    let held = alive.inspect(&name("k")).await.unwrap().outcome.unwrap();
    assert_eq!(held.lease.owner.as_str(), "b");
    let wake = hears(&alive, "k", behind).await;
    assert_eq!(granted(&wake).owner.as_str(), "c");
}

#[tokio::test]
async fn a_waiter_that_redis_has_forgotten_gets_its_place_back() {
    let redis = RedisServer::start();
    let (one, other) = (open(&redis).await, open(&redis).await);
    let lease = take(&one, "k").await;
    let first = wait(&one, "k", claim("first")).await;
    let queue = redis.cli(&["KEYS", "*queue:lock:k"]);
    let waiters = redis.cli(&["KEYS", "*waiters:lock:k"]);
    redis.cli(&["DEL", queue.trim(), waiters.trim()]);
    let mut second = wait(&other, "k", claim("second")).await;
    one.settle(&name("k")).await.unwrap();
    release(&one, &lease).await;
    let wake = hears(&one, "k", first).await;
    assert_eq!(granted(&wake).owner.as_str(), "first");
    assert!(second.try_recv().is_err());
    release(&other, granted(&wake)).await;
    let wake = hears(&other, "k", second).await;
    assert_eq!(granted(&wake).owner.as_str(), "second");
}

#[tokio::test]
async fn a_grant_counts_only_when_enough_replicas_have_it() {
    let mut replicas = RedisReplicas::start(1, 1);
    let options = RedisOptions {
        wait: 1,
        timeout: Duration::from_millis(800),
        ..RedisOptions::default()
    };
    let url = format!("redis://127.0.0.1:{}", replicas.primary().port());
    let store = RedisStore::open(&url, &options).await.unwrap();
    let lease = take(&store, "k").await;
    let waiting = wait(&store, "k", claim("b")).await;
    release(&store, &lease).await;
    let wake = hears(&store, "k", waiting).await;
    release(&store, granted(&wake)).await;

    replicas.replicas()[0].pause();
    let refused = acquire(&store, "k", claim("c")).await;
    assert!(
        matches!(refused, Err(StoreError::MaybeDone(_))),
        "{refused:?}"
    );
    replicas.replicas()[0].resume();
}

#[tokio::test]
async fn prefixes_do_not_see_each_other() {
    let redis = RedisServer::start();
    redis.cli(&["SET", "somebody", "else's"]);
    let with = async |prefix: &str| {
        let options = RedisOptions {
            prefix: prefix.to_owned(),
            ..RedisOptions::default()
        };
        RedisStore::open(&redis.url(), &options).await
    };
    let (one, other) = (with("one").await.unwrap(), with("other").await.unwrap());
    take(&one, "k").await;
    take(&other, "k").await;
    take(&other, "l").await;
    let names = |page: Page| page.locks.len();
    let all = forrst_lock::ListRequest {
        limit: 10,
        ..Default::default()
    };
    assert_eq!(names(one.list(&all).await.unwrap()), 1);
    assert_eq!(names(other.list(&all).await.unwrap()), 2);
    assert_eq!(redis.cli(&["GET", "somebody"]).trim(), "else's");
    for prefix in ["", "a{b}", "a b", "ä", &"x".repeat(65)] {
        let refused = with(prefix).await;
        assert!(matches!(refused, Err(RedisError::BadPrefix(_))), "{prefix}");
    }
}

#[tokio::test]
async fn a_newer_format_is_refused() {
    let redis = RedisServer::start();
    redis.cli(&["SET", "forrst:format", "2"]);
    let refused = RedisStore::open(&redis.url(), &RedisOptions::default()).await;
    assert!(matches!(refused, Err(RedisError::OtherFormat { .. })));
}

#[tokio::test]
async fn locks_leave_nothing_behind() {
    let redis = RedisServer::start();
    let store = open(&redis).await;
    for key in ["a", "b", "c"] {
        let lease = take(&store, key).await;
        let waiting = wait(&store, key, claim("b")).await;
        release(&store, &lease).await;
        release(&store, granted(&waiting.await.unwrap())).await;
    }
    let keys = redis.cli(&["KEYS", "*"]);
    let lasting: Vec<&str> = keys
        .split_whitespace()
        .filter(|key| redis.cli(&["PTTL", key]).trim() == "-1")
        .collect();
    // The format, and for each partition its fence and the nodes that have waited there.
    let is_known =
        |key: &&str| key.ends_with(":format") || key.ends_with(":fence") || key.ends_with(":nodes");
    assert!(lasting.iter().all(is_known), "{lasting:?}");
}
