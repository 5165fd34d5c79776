//! The calls that a service makes on a store.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use forrst_lock::model::{Acquire, Acquired, Claim, LeaseRef, Transition, Wait, Wake};
use forrst_lock::{
    Lease, LockKey, LockName, LockStatus, LockStore, LockStoreExt, Locks, Node, Owner, Reading,
    StoreError, Ticket, Timestamp, Ttl,
};
use forrst_stores::{PostgresStore, RedisStore};
use tokio::sync::oneshot::{Receiver, Sender, channel};
use tokio::time::{Instant, sleep, timeout};

pub(crate) use forrst_testkit::PATIENCE;
pub(crate) use forrst_testkit::asynchronous::eventually as until;

/// A store, or a pointer to one.
pub(crate) trait AsStore {
    fn as_store(&self) -> &dyn LockStore;
}

macro_rules! as_store {
    ($($type:ty: $self:ident => $store:expr;)*) => {$(
        impl AsStore for $type {
            fn as_store(&$self) -> &dyn LockStore {
                $store
            }
        }
    )*};
}

as_store! {
    PostgresStore: self => self;
    RedisStore: self => self;
    Arc<PostgresStore>: self => &**self;
    Arc<RedisStore>: self => &**self;
    Arc<dyn LockStore>: self => &**self;
}

pub(crate) fn name(key: &str) -> LockName {
    LockName::global(&LockKey::parse(key).unwrap())
}

/// A call for a lock that does not wait.
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

/// Refers to a lease for a release or an extension.
pub(crate) fn held(lease: &Lease) -> LeaseRef {
    LeaseRef {
        name: lease.name().clone(),
        owner: lease.owner.clone(),
        fence: Some(lease.fence),
    }
}

pub(crate) async fn acquire(store: &impl AsStore, call: Acquire) -> Result<Acquired, StoreError> {
    let answer = store.as_store().acquire(call).await;
    answer.map(|answer| answer.outcome)
}

pub(crate) async fn take(store: &impl AsStore, key: &str) -> Lease {
    match acquire(store, call(key, "a")).await {
        Ok(Acquired::Granted(lease)) => lease,
        other => panic!("{key} should be free: {other:?}"),
    }
}

/// As [`take`], as soon as the server is available and the lock is free.
pub(crate) async fn take_again(store: &impl AsStore, key: &str) -> Lease {
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        if let Ok(Acquired::Granted(lease)) = acquire(store, call(key, "a")).await {
            return lease;
        }
        sleep(Duration::from_millis(20)).await;
    }
    panic!("{key} should become free");
}

/// A call that waits. When dropped, it can no longer be woken.
#[derive(Debug)]
pub(crate) struct WaitingCall {
    pub(crate) wake: Receiver<Wake>,
    _node: Arc<OneCall>,
}

/// The subscriber for one call.
#[derive(Debug)]
struct OneCall {
    ticket: Ticket,
    wake: Mutex<Option<Sender<Wake>>>,
}

impl Node for OneCall {
    fn wake(&self, ticket: Ticket, wake: Wake, _: Reading) -> bool {
        if ticket != self.ticket {
            return false;
        }
        let sender = self.wake.lock().unwrap().take();
        sender.is_some_and(|sender| sender.send(wake).is_ok())
    }

    fn changed(&self, _: &Transition, _: Timestamp) {}
}

/// The same call, with a wait.
pub(crate) fn waiting(call: Acquire) -> Acquire {
    let wait = Wait {
        timeout: Duration::from_secs(60),
        max_queue: 100,
        rejoin: None,
    };
    Acquire {
        wait: Some(wait),
        ..call
    }
}

pub(crate) async fn wait(store: &impl AsStore, call: Acquire) -> WaitingCall {
    let (sender, wake) = channel();
    let node = Arc::new(OneCall {
        ticket: call.ticket,
        wake: Mutex::new(Some(sender)),
    });
    let weak: Weak<OneCall> = Arc::downgrade(&node);
    store.as_store().subscribe(weak);
    let outcome = acquire(store, waiting(call)).await.unwrap();
    assert!(matches!(outcome, Acquired::Queued { .. }), "{outcome:?}");
    WaitingCall { wake, _node: node }
}

pub(crate) async fn release(store: &impl AsStore, lease: &Lease) {
    let answer = store.as_store().release(held(lease)).await.unwrap();
    assert_eq!(answer.outcome.as_ref(), Ok(lease));
}

pub(crate) async fn inspect(store: &impl AsStore, key: &str) -> LockStatus {
    store.as_store().inspect(&name(key)).await.unwrap().outcome
}

/// Settles the key as the service does while a call waits, until it is woken.
pub(crate) async fn woken(store: &impl AsStore, key: &str, call: WaitingCall) -> Wake {
    let settling = async {
        loop {
            let _ = store.as_store().settle(&name(key)).await;
            sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::select! {
        woken = timeout(PATIENCE, call.wake) => woken.expect("a wake-up in time").unwrap(),
        () = settling => unreachable!(),
    }
}

pub(crate) fn granted(wake: &Wake) -> &Lease {
    match wake {
        Wake::Granted(lease) => lease,
        other => panic!("should have been granted the lock: {other:?}"),
    }
}

/// A store that grants nothing new still serves what is held: the holder extends and releases, the waiter gets the lock, and an
/// abandoned call is rolled back.
pub(crate) async fn still_serves_what_is_held(
    store: &impl AsStore,
    lease: &Lease,
    waiting: WaitingCall,
    abandoned: (&str, Ticket),
) {
    let ttl = Ttl::new(Duration::from_secs(7200)).unwrap();
    let extended = store.as_store().extend(held(lease), ttl).await.unwrap();
    release(store, &extended.outcome.unwrap()).await;
    let next = woken(store, "held", waiting).await;
    release(store, granted(&next)).await;
    let (key, ticket) = abandoned;
    store.as_store().abandon(&name(key), ticket);
    until("it is rolled back", async || {
        inspect(store, key).await.holder().is_none()
    })
    .await;
}
