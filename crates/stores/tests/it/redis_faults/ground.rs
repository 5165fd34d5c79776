//! A store on a real Redis, and the calls that a service makes on it.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use forrst_lock::model::{Acquire, Acquired, Claim, Held, Transition, Wait, Wake};
use forrst_lock::{
    Lease, LockKey, LockName, LockStatus, LockStore, LockStoreExt, Locks, Node, Owner, StoreError,
    Ticket, Timestamp, Ttl,
};
use forrst_stores::{RedisOptions, RedisStore};
use forrst_testkit::RedisServer;
use tokio::sync::oneshot::{Receiver, Sender, channel};
use tokio::time::{Instant, sleep, timeout};

pub(crate) use forrst_testkit::PATIENCE;
pub(crate) use forrst_testkit::asynchronous::eventually as until;

pub(crate) fn name(key: &str) -> LockName {
    LockName::global(&LockKey::parse(key).unwrap())
}

/// A call for a lock, which is given up at once if it is held.
pub(crate) fn call(key: &str, owner: &str) -> Acquire {
    Acquire {
        claim: Claim {
            locks: Locks::exclusive(name(key)),
            owner: Owner::parse(owner).unwrap(),
            caller: None,
            note: None,
            attempt: None,
            ttl: Ttl::new(Duration::from_secs(3600)).unwrap(),
        },
        ticket: Ticket::random(),
        node: None,
        wait: None,
    }
}

/// Who the lease is to be released or extended for.
pub(crate) fn held(lease: &Lease) -> Held {
    Held {
        name: lease.name().clone(),
        owner: lease.owner.clone(),
        fence: Some(lease.fence),
    }
}

pub(crate) async fn open(redis: &RedisServer) -> RedisStore {
    let store = RedisStore::open(&redis.url(), &RedisOptions::default()).await;
    store.unwrap()
}

pub(crate) async fn acquire(store: &RedisStore, call: Acquire) -> Result<Acquired, StoreError> {
    let answer = store.acquire(call).await;
    answer.map(|answer| answer.outcome)
}

pub(crate) async fn take(store: &RedisStore, key: &str) -> Lease {
    match acquire(store, call(key, "a")).await {
        Ok(Acquired::Granted(lease)) => lease,
        other => panic!("{key} should be free: {other:?}"),
    }
}

/// As soon as Redis is there again.
pub(crate) async fn take_again(store: &RedisStore, key: &str) -> Lease {
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        if let Ok(Acquired::Granted(lease)) = acquire(store, call(key, "a")).await {
            return lease;
        }
        sleep(Duration::from_millis(20)).await;
    }
    panic!("{key} should become free");
}

/// A call that waits. Dropped, it is not there any more to be woken.
#[derive(Debug)]
pub(crate) struct WaitingCall {
    pub(crate) wake: Receiver<Wake>,
    _node: Arc<OneCall>,
}

/// The process that made the call, as far as the store knows.
#[derive(Debug)]
struct OneCall {
    ticket: Ticket,
    wake: Mutex<Option<Sender<Wake>>>,
}

impl Node for OneCall {
    fn wake(&self, ticket: Ticket, wake: Wake) -> bool {
        if ticket != self.ticket {
            return false;
        }
        let sender = self.wake.lock().unwrap().take();
        sender.is_some_and(|sender| sender.send(wake).is_ok())
    }

    fn changed(&self, _: &Transition, _: Timestamp) {}
}

pub(crate) async fn wait(store: &RedisStore, call: Acquire) -> WaitingCall {
    let (sender, wake) = channel();
    let node = Arc::new(OneCall {
        ticket: call.ticket,
        wake: Mutex::new(Some(sender)),
    });
    let weak: Weak<OneCall> = Arc::downgrade(&node);
    store.subscribe(weak);
    let wait = Some(Wait {
        timeout: Duration::from_secs(60),
        max_queue: 100,
        again: None,
    });
    let outcome = acquire(store, Acquire { wait, ..call }).await.unwrap();
    assert!(matches!(outcome, Acquired::Queued { .. }), "{outcome:?}");
    WaitingCall { wake, _node: node }
}

pub(crate) async fn release(store: &RedisStore, lease: &Lease) {
    let answer = store.release(held(lease)).await.unwrap();
    assert_eq!(answer.outcome.as_ref(), Ok(lease));
}

pub(crate) async fn inspect(store: &RedisStore, key: &str) -> LockStatus {
    store.inspect(&name(key)).await.unwrap().outcome
}

/// Looks at the key as the service does while somebody waits, until there is news.
pub(crate) async fn hears(store: &RedisStore, key: &str, call: WaitingCall) -> Wake {
    let looks = async {
        loop {
            let _ = store.settle(&name(key)).await;
            sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::select! {
        heard = timeout(PATIENCE, call.wake) => heard.expect("news in time").unwrap(),
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
    lease: &Lease,
    waiting: WaitingCall,
    given_up: (&str, Ticket),
) {
    let ttl = Ttl::new(Duration::from_secs(7200)).unwrap();
    let extended = store.extend(held(lease), ttl).await.unwrap();
    release(store, &extended.outcome.unwrap()).await;
    let next = hears(store, "held", waiting).await;
    release(store, granted(&next)).await;
    let (key, ticket) = given_up;
    store.abandon(&name(key), ticket);
    until("it is undone", async || {
        inspect(store, key).await.holder().is_none()
    })
    .await;
}
