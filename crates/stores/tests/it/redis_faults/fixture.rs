//! A store on a real Redis, and the calls that a service makes on it.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use forrst_lock::model::{Acquire, Acquired, Claim, LeaseRef, Transition, Wait, Wake};
use forrst_lock::{
    Lease, LockKey, LockName, LockStatus, LockStore, LockStoreExt, Locks, Node, Owner, Reading,
    StoreError, Ticket, Timestamp, Ttl,
};
use forrst_stores::{RedisOptions, RedisStore};
use forrst_testkit::{RedisCluster, RedisServer};
use tokio::sync::oneshot::{Receiver, Sender, channel};
use tokio::time::{Instant, sleep, timeout};

pub(crate) use forrst_testkit::PATIENCE;
pub(crate) use forrst_testkit::asynchronous::eventually as until;

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

/// As [`take`], as soon as Redis is available and the lock is free.
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

pub(crate) async fn wait(store: &RedisStore, call: Acquire) -> WaitingCall {
    let (sender, wake) = channel();
    let node = Arc::new(OneCall {
        ticket: call.ticket,
        wake: Mutex::new(Some(sender)),
    });
    let weak: Weak<OneCall> = Arc::downgrade(&node);
    store.subscribe(weak);
    let outcome = acquire(store, waiting(call)).await.unwrap();
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

/// Settles the key as the service does while a call waits, until it is woken.
pub(crate) async fn woken(store: &RedisStore, key: &str, call: WaitingCall) -> Wake {
    let settling = async {
        loop {
            let _ = store.settle(&name(key)).await;
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

/// A Redis that grants nothing new still serves what is held: the holder extends and releases, the waiter gets the lock, and an
/// abandoned call is rolled back.
pub(crate) async fn still_serves_what_is_held(
    store: &RedisStore,
    lease: &Lease,
    waiting: WaitingCall,
    abandoned: (&str, Ticket),
) {
    let ttl = Ttl::new(Duration::from_secs(7200)).unwrap();
    let extended = store.extend(held(lease), ttl).await.unwrap();
    release(store, &extended.outcome.unwrap()).await;
    let next = woken(store, "held", waiting).await;
    release(store, granted(&next)).await;
    let (key, ticket) = abandoned;
    store.abandon(&name(key), ticket);
    until("it is rolled back", async || {
        inspect(store, key).await.holder().is_none()
    })
    .await;
}

/// The Redis key of a lock's state, or of its sorted set for a name that begins with `queue:`.
pub(crate) fn key_of(redis: &RedisServer, key: &str) -> String {
    let key = match key.strip_prefix("queue:") {
        Some(key) => format!("queue:lock:{key}"),
        None => format!("lock:{key}"),
    };
    let found = redis.cli(&["KEYS", &format!("*}}:{key}")]);
    found.trim().to_owned()
}

/// Removes the queue of this lock from Redis.
pub(crate) fn forget_queue(redis: &RedisServer, key: &str) {
    let forget = "local state = cmsgpack.unpack(redis.call('GET', KEYS[1]))
        state[4] = false
        redis.call('SET', KEYS[1], cmsgpack.pack(state))
        redis.call('DEL', KEYS[2])";
    let (state, queue) = (key_of(redis, key), key_of(redis, &format!("queue:{key}")));
    redis.cli(&["EVAL", forget, "2", &state, &queue]);
}

/// The keys that do not expire, except those that exist once: the format, the secret, fences, nodes, and counters.
pub(crate) fn lasting_keys(redis: &RedisServer) -> Vec<String> {
    let known = [":format", ":secret", ":meta", ":nodes", ":counters"];
    let keys = redis.cli(&["KEYS", "*"]);
    let keys = keys.split_whitespace();
    let unknown = keys.filter(|key| !known.iter().any(|known| key.ends_with(known)));
    let lasting = unknown.filter(|key| redis.cli(&["PTTL", key]).trim() == "-1");
    lasting.map(str::to_owned).collect()
}

/// A slot of a cluster that is moved from one server to another. While its keys are at the old one, commands on several of them are
/// refused; when they have been moved, the old one redirects all commands with ASK.
pub(crate) struct SlotMove<'a> {
    slot: String,
    from: &'a RedisServer,
    to: &'a RedisServer,
}

impl<'a> SlotMove<'a> {
    /// Moves the slot of the partition that has this lock.
    pub(crate) fn begin(cluster: &'a RedisCluster, lock: &str) -> Self {
        let servers: Vec<&RedisServer> = cluster.servers().collect();
        let tag = format!("{{forrst:{}}}", partition_of(cluster, &name(lock)));
        let at = cluster.index_of(&tag);
        let (from, to) = (servers[at], servers[(at + 1) % servers.len()]);
        let slot = from.cli(&["CLUSTER", "KEYSLOT", &tag]).trim().to_owned();
        to.cli(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &id(from)]);
        from.cli(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &id(to)]);
        Self { slot, from, to }
    }

    pub(crate) fn move_keys(&self) {
        let port = self.to.port().to_string();
        let keys = self
            .from
            .cli(&["CLUSTER", "GETKEYSINSLOT", &self.slot, "1000"]);
        for key in keys.split_whitespace() {
            self.from
                .cli(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]);
        }
    }

    pub(crate) fn end(self, cluster: &RedisCluster) {
        for server in [self.to, self.from].into_iter().chain(cluster.servers()) {
            server.cli(&["CLUSTER", "SETSLOT", &self.slot, "NODE", &id(self.to)]);
        }
    }
}

fn id(server: &RedisServer) -> String {
    server.cli(&["CLUSTER", "MYID"]).trim().to_owned()
}

/// The number of the partition that has this lock.
pub(crate) fn partition_of(cluster: &RedisCluster, name: &LockName) -> u16 {
    let server = cluster.servers().next().unwrap();
    let slot = server.cli(&["CLUSTER", "KEYSLOT", name.as_str()]);
    slot.trim().parse::<u16>().unwrap() % 64
}
