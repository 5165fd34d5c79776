//! A store on a real Redis, and the calls that a service makes on it.

use std::time::Duration;

use forrst_lock::state::{Acquire, Acquired, Claim, Extend, Release, Wait, Wake};
use forrst_lock::{Lease, LockKey, LockName, LockStore, Owner, StoreError, Ticket, Ttl, Waiter};
use forrst_stores::{RedisOptions, RedisStore};
use forrst_testkit::RedisServer;
use tokio::sync::oneshot::Receiver;
use tokio::time::{Instant, sleep, timeout};

pub(crate) use forrst_testkit::PATIENCE;

/// Waits for a condition, and lets everything else go on meanwhile.
pub(crate) async fn until(what: &str, is_so: impl AsyncFn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so().await {
        assert!(Instant::now() < end, "never came true: {what}");
        sleep(Duration::from_millis(10)).await;
    }
}

pub(crate) fn name(key: &str) -> LockName {
    LockName::global(&LockKey::parse(key).unwrap())
}

pub(crate) fn claim(owner: &str) -> Claim {
    Claim {
        owner: Owner::parse(owner).unwrap(),
        caller: None,
        attempt: None,
        ticket: Ticket::random(),
        ttl: Ttl::new(Duration::from_secs(3600)).unwrap(),
    }
}

pub(crate) async fn open(redis: &RedisServer) -> RedisStore {
    let store = RedisStore::open(&redis.url(), &RedisOptions::default()).await;
    store.unwrap()
}

pub(crate) async fn acquire(
    store: &RedisStore,
    key: &str,
    claim: Claim,
) -> Result<Acquired, StoreError> {
    let command = Acquire { claim, wait: None };
    let answer = store.acquire(&name(key), command).await;
    answer.map(|answer| answer.outcome)
}

pub(crate) async fn take(store: &RedisStore, key: &str) -> Lease {
    match acquire(store, key, claim("a")).await {
        Ok(Acquired::Granted(lease)) => lease,
        other => panic!("{key} should be free: {other:?}"),
    }
}

/// As soon as Redis is there again.
pub(crate) async fn take_again(store: &RedisStore, key: &str) -> Lease {
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        if let Ok(Acquired::Granted(lease)) = acquire(store, key, claim("a")).await {
            return lease;
        }
        sleep(Duration::from_millis(20)).await;
    }
    panic!("{key} should become free");
}

pub(crate) async fn wait(store: &RedisStore, key: &str, claim: Claim) -> Receiver<Wake> {
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

pub(crate) async fn release(store: &RedisStore, lease: &Lease) {
    let command = Release {
        owner: lease.owner.clone(),
        fence: Some(lease.fence),
    };
    let answer = store.release(&lease.name, command).await.unwrap();
    assert_eq!(answer.outcome.as_ref(), Ok(lease));
}

/// Looks at the key as the service does while somebody waits, until there is news.
pub(crate) async fn hears(store: &RedisStore, key: &str, wake: Receiver<Wake>) -> Wake {
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

pub(crate) fn granted(wake: &Wake) -> &Lease {
    match wake {
        Wake::Granted(lease) => lease,
        other => panic!("should have been granted the lock: {other:?}"),
    }
}

/// What a Redis does that grants nothing new: the holder extends and gives back, whoever waits gets the lock, and a call that
/// was given up is undone.
pub(crate) async fn looks_after_what_is_held(
    store: &RedisStore,
    held: &Lease,
    waiting: Receiver<Wake>,
    given_up: (&str, Ticket),
) {
    let extend = Extend {
        owner: held.owner.clone(),
        fence: Some(held.fence),
        ttl: Ttl::new(Duration::from_secs(7200)).unwrap(),
    };
    let extended = store.extend(&held.name, extend).await.unwrap();
    release(store, &extended.outcome.unwrap()).await;
    let next = hears(store, "held", waiting).await;
    release(store, granted(&next)).await;
    let (key, ticket) = given_up;
    store.abandon(&name(key), ticket);
    until("it is undone", async || {
        let status = store.inspect(&name(key)).await.unwrap();
        status.outcome.is_none()
    })
    .await;
}
