//! Commands that have timed out have no effect when a slow link delivers them later.

use std::time::Duration;

use forrst_lock::model::{Acquire, Acquired, Command, Wait, Wake};
use forrst_lock::{Attempt, Lease, LockStore, LockStoreExt, StoreError, Ticket, Ttl};
use forrst_stores::{RedisOptions, RedisStore};
use forrst_testkit::{Proxy, RedisServer, Traffic};
use tokio::time::timeout;

use crate::redis_faults::fixture::{
    PATIENCE, acquire, call, forget_queue, held, inspect, name, open, release, take, until, wait,
};

/// Two nodes on one Redis, one of them behind a proxy.
struct Nodes {
    redis: RedisServer,
    proxy: Proxy,
    near: RedisStore,
    far: RedisStore,
    /// The addresses of the far node's connections for commands.
    of_far: Vec<String>,
}

impl Nodes {
    async fn start() -> Self {
        let redis = RedisServer::start();
        let proxy = Proxy::start(redis.port());
        let near = open(&redis).await;
        let far = RedisStore::open(&proxy.url(), &RedisOptions::default()).await;
        let of_far = connections(&redis, &proxy.addresses());
        assert!(!of_far.is_empty());
        Self {
            far: far.unwrap(),
            redis,
            proxy,
            near,
            of_far,
        }
    }

    /// Delivers what was held back, and waits until Redis has run it.
    async fn deliver(&self) {
        assert!(self.proxy.deliver_requests() > 0);
        // Redis closes a connection after it has run everything that was received on it.
        until("it has read everything", async || {
            connections(&self.redis, &self.of_far).is_empty()
        })
        .await;
    }
}

/// Those of these addresses from which a connection for commands is open. A node may replace its connections at any time, so they
/// are told apart by their addresses.
fn connections(redis: &RedisServer, addresses: &[String]) -> Vec<String> {
    let list = redis.cli(&["CLIENT", "LIST"]);
    let carry_commands = list.lines().filter(|line| line.contains(" sub=0 "));
    let carry_commands: Vec<&str> = carry_commands.collect();
    let is_open = |address: &&String| {
        let address = format!(" addr={address} ");
        carry_commands.iter().any(|line| line.contains(&address))
    };
    addresses.iter().filter(is_open).cloned().collect()
}

fn ttl(seconds: u64) -> Ttl {
    Ttl::new(Duration::from_secs(seconds)).unwrap()
}

fn has_timed_out<T>(answer: &Result<T, StoreError>) -> bool {
    matches!(answer, Err(StoreError::MaybeDone(_)))
}

#[tokio::test]
async fn a_late_extension_does_not_shorten_a_lease_that_was_extended_since() {
    let nodes = Nodes::start().await;
    let lease = take(&nodes.near, "k").await;
    nodes.proxy.hold_requests();
    let late = nodes.far.extend(held(&lease), ttl(1)).await;
    assert!(has_timed_out(&late), "{late:?}");
    let extended = nodes.near.extend(held(&lease), ttl(30)).await.unwrap();
    nodes.deliver().await;
    let status = inspect(&nodes.near, "k").await;
    let expected = extended.outcome.unwrap();
    assert_eq!(
        status.holder().map(|it| it.expires_at),
        Some(expected.expires_at)
    );
}

/// A command about a lease times out, and is delivered when the same owner has released that lease and taken the next one.
async fn does_not_end_the_next_lease(command: impl FnOnce(&Lease) -> Command) {
    let nodes = Nodes::start().await;
    let lease = take(&nodes.near, "k").await;
    nodes.proxy.hold_requests();
    let late = nodes.far.submit(command(&lease)).await;
    assert!(has_timed_out(&late), "{late:?}");
    release(&nodes.near, &lease).await;
    let next = take(&nodes.near, "k").await;
    nodes.deliver().await;
    assert_eq!(inspect(&nodes.near, "k").await.holder(), Some(&next));
}

#[tokio::test]
async fn a_late_force_release_does_not_end_the_next_lease() {
    does_not_end_the_next_lease(|lease| Command::ForceRelease {
        name: lease.name().clone(),
        fences: Vec::new(),
    })
    .await;
}

#[tokio::test]
async fn a_late_release_without_a_fence_does_not_end_the_owners_next_lease() {
    does_not_end_the_next_lease(|lease| {
        let mut held = held(lease);
        held.fence = None;
        Command::Release(held)
    })
    .await;
}

#[tokio::test]
async fn a_late_withdrawal_does_not_end_an_attempt_that_was_granted_since() {
    let nodes = Nodes::start().await;
    let attempt = Attempt::parse("1").unwrap();
    let mut call = call("k", "a");
    call.claim.attempt = Some(attempt.clone());
    nodes.proxy.hold_requests();
    let owner = call.claim.owner.clone();
    let late = nodes.far.withdraw(&name("k"), owner, attempt).await;
    assert!(has_timed_out(&late), "{late:?}");
    let lease = granted_at_once(&nodes.near, call).await;
    nodes.deliver().await;
    assert_eq!(inspect(&nodes.near, "k").await.holder(), Some(&lease));
}

async fn granted_at_once(store: &RedisStore, call: Acquire) -> Lease {
    match acquire(store, call).await {
        Ok(Acquired::Granted(lease)) => lease,
        other => panic!("should be free: {other:?}"),
    }
}

/// Because its client has repeated the request through another node.
#[tokio::test]
async fn a_call_whose_attempt_was_granted_and_released_elsewhere_gets_no_new_lease() {
    let nodes = Nodes::start().await;
    let lease = take(&nodes.near, "k").await;
    let attempt = |ticket| {
        let mut call = call("k", "b");
        call.claim.attempt = Some(Attempt::parse("1").unwrap());
        Acquire { ticket, ..call }
    };
    let cut_off = wait(&nodes.far, attempt(Ticket::random())).await;
    nodes.proxy.refuse(Traffic::All);
    let repeated = wait(&nodes.near, attempt(Ticket::random())).await;
    release(&nodes.near, &lease).await;
    match timeout(PATIENCE, repeated.wake)
        .await
        .expect("a wake-up in time")
    {
        Ok(Wake::Granted(lease)) => release(&nodes.near, &lease).await,
        other => panic!("should have been granted the lock: {other:?}"),
    }
    nodes.proxy.heal();
    let wake = timeout(PATIENCE, cut_off.wake)
        .await
        .expect("a wake-up in time");
    assert_eq!(wake.unwrap(), Wake::Withdrawn);
    take(&nodes.near, "k").await;
}

/// The first attempt to put it back times out, and arrives last.
#[tokio::test]
async fn a_waiter_that_was_put_back_twice_and_disconnects_is_not_put_back_again() {
    let nodes = Nodes::start().await;
    let lease = take(&nodes.near, "k").await;
    let waiting = |again| Acquire {
        wait: Some(Wait {
            timeout: PATIENCE,
            max_queue: 100,
            rejoin: again,
        }),
        ticket: Ticket(7),
        ..call("k", "b")
    };
    let queued = acquire(&nodes.far, waiting(None)).await.unwrap();
    let Acquired::Queued {
        position,
        until: end,
        ..
    } = queued
    else {
        panic!("should wait: {queued:?}");
    };
    forget_queue(&nodes.redis, "k");
    nodes.proxy.hold_requests();
    let again = waiting(Some((position, end)));
    let late = acquire(&nodes.far, again.clone()).await;
    assert!(has_timed_out(&late), "{late:?}");
    nodes.proxy.heal();
    until("it is put back", async || {
        matches!(
            acquire(&nodes.far, again.clone()).await,
            Ok(Acquired::Queued { .. })
        )
    })
    .await;
    nodes.far.abandon(&name("k"), again.ticket);
    let waiters = async || inspect(&nodes.near, "k").await.waiters;
    until("it has left", async || waiters().await == 0).await;
    nodes.deliver().await;
    assert_eq!(waiters().await, 0);
    release(&nodes.near, &lease).await;
    take(&nodes.near, "k").await;
}
