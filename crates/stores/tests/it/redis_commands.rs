//! Commands of the Redis store: each change is reported once, by the node that ran the command, and unsupported commands are refused.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use forrst_lock::model::{Acquire, Acquired, Command, Outcome, Position, Transition, Wait, Wake};
use forrst_lock::{
    Attempt, Kind, LockStore, LockStoreExt, Locks, Node, Note, Reading, Share, StoreError, Ticket,
    Timestamp, Ttl,
};
use forrst_stores::{RedisOptions, RedisStore};
use forrst_testkit::{RedisCluster, RedisReplicas, RedisServer};
use tokio::time::sleep;

use crate::redis_faults::fixture::{
    PATIENCE, acquire, call, granted, held, inspect, name, open, release, take, until, wait,
    waiting, woken,
};

/// A node that records the transitions it is notified of.
#[derive(Debug, Default)]
struct Record(Mutex<Vec<Transition>>);

impl Record {
    fn subscribe(store: &RedisStore) -> Arc<Self> {
        let record = Arc::new(Self::default());
        let weak: Weak<Self> = Arc::downgrade(&record);
        store.subscribe(weak);
        record
    }

    /// The transitions since the last call, as text.
    fn take(&self) -> Vec<String> {
        let transitions = std::mem::take(&mut *self.0.lock().unwrap());
        transitions.iter().map(in_words).collect()
    }

    /// The same, once there are this many.
    async fn take_when(&self, count: usize) -> Vec<String> {
        until("it is reported", async || {
            self.0.lock().unwrap().len() >= count
        })
        .await;
        self.take()
    }
}

fn in_words(transition: &Transition) -> String {
    let owner = transition.lease().unwrap().owner.as_str();
    match transition {
        Transition::Granted {
            waited_since,
            confirm_by,
            ..
        } => {
            let waited = waited_since.map_or("", |_| " after a wait");
            let confirm = confirm_by.map_or("", |_| ", unconfirmed");
            format!("{owner}: granted{waited}{confirm}")
        }
        Transition::Confirmed { .. } => format!("{owner}: confirmed"),
        Transition::Extended { .. } => format!("{owner}: extended"),
        Transition::Ended { cause, .. } => format!("{owner}: {cause:?}"),
        Transition::Woken { .. } => unreachable!("is not reported"),
    }
}

impl Node for Record {
    fn wake(&self, _: Ticket, _: Wake, _: Reading) -> bool {
        false
    }

    fn changed(&self, transition: &Transition, _: Timestamp) {
        self.0.lock().unwrap().push(transition.clone());
    }
}

fn ttl(millis: u64) -> Ttl {
    Ttl::new(Duration::from_millis(millis)).unwrap()
}

#[tokio::test]
async fn every_transition_is_reported_once() {
    let redis = RedisServer::start();
    let store = open(&redis).await;
    let record = Record::subscribe(&store);
    let lease = take(&store, "k").await;
    assert_eq!(record.take(), ["a: granted"]);
    let refused = acquire(&store, call("k", "b")).await.unwrap();
    assert!(matches!(refused, Acquired::Held(_)));
    let next = wait(&store, call("k", "b")).await;
    inspect(&store, "k").await;
    store.settle(&name("k")).await.unwrap();
    assert_eq!(record.take(), [""; 0]);
    store.extend(held(&lease), ttl(60_000)).await.unwrap();
    assert_eq!(record.take(), ["a: extended"]);
    store.release(held(&lease)).await.unwrap();
    assert_eq!(record.take(), ["a: Released", "b: granted after a wait"]);
    granted(&next.wake.await.unwrap());
    assert!(store.release(held(&lease)).await.unwrap().outcome.is_err());
    assert_eq!(record.take(), [""; 0]);
    store.force_release(&name("k"), None).await.unwrap();
    assert_eq!(record.take(), ["b: Forced"]);
}

#[tokio::test]
async fn a_repeated_attempt_is_not_reported_as_granted_twice() {
    let redis = RedisServer::start();
    let store = open(&redis).await;
    let record = Record::subscribe(&store);
    let mut first = call("k", "a");
    first.claim.attempt = Some(Attempt::parse("1").unwrap());
    let again = Acquire {
        ticket: Ticket::random(),
        ..first.clone()
    };
    let lease = acquire(&store, first).await.unwrap();
    assert_eq!(acquire(&store, again).await.unwrap(), lease);
    assert_eq!(record.take(), ["a: granted"]);
}

#[tokio::test]
async fn a_grant_to_another_node_is_reported_by_the_node_that_made_it() {
    let redis = RedisServer::start();
    let (one, other) = (open(&redis).await, open(&redis).await);
    let (of_one, of_other) = (Record::subscribe(&one), Record::subscribe(&other));
    let lease = take(&one, "k").await;
    let next = wait(&other, call("k", "b")).await;
    release(&one, &lease).await;
    let wake = woken(&other, "k", next).await;
    assert_eq!(
        of_one.take(),
        [
            "a: granted",
            "a: Released",
            "b: granted after a wait, unconfirmed"
        ]
    );
    assert_eq!(of_other.take(), ["b: confirmed"]);
    release(&other, granted(&wake)).await;
    assert_eq!(of_other.take(), ["b: Released"]);
    assert_eq!(of_one.take(), [""; 0]);
}

#[tokio::test]
async fn a_grant_that_a_dead_node_does_not_confirm_ends() {
    let redis = RedisServer::start();
    let (alive, dying) = (open(&redis).await, open(&redis).await);
    let record = Record::subscribe(&alive);
    let lease = take(&alive, "k").await;
    let _unheard = wait(&dying, call("k", "b")).await;
    drop(dying);
    let behind = wait(&alive, call("k", "c")).await;
    release(&alive, &lease).await;
    woken(&alive, "k", behind).await;
    assert_eq!(
        record.take(),
        [
            "a: granted",
            "a: Released",
            "b: granted after a wait, unconfirmed",
            "b: Unconfirmed",
            "c: granted after a wait",
        ]
    );
}

#[tokio::test]
async fn an_expired_lease_is_reported_by_the_one_node_that_swept_it() {
    let redis = RedisServer::start();
    let (one, other) = (open(&redis).await, open(&redis).await);
    let (of_one, of_other) = (Record::subscribe(&one), Record::subscribe(&other));
    let mut brief = call("k", "a");
    brief.claim.ttl = ttl(1);
    acquire(&one, brief).await.unwrap();
    assert_eq!(of_one.take(), ["a: granted"]);
    sleep(Duration::from_millis(5)).await;
    // A read-only call does not end it.
    assert_eq!(inspect(&one, "k").await.holder_count, 0);
    assert_eq!(of_one.take(), [""; 0]);
    let swept = tokio::join!(one.sweep(10), other.sweep(10));
    assert!(swept.0.unwrap() + swept.1.unwrap() >= 1);
    let both = [of_one.take(), of_other.take()].concat();
    assert_eq!(both, ["a: Expired"]);
    assert_eq!(one.sweep(10).await.unwrap(), 0);
}

#[tokio::test]
async fn a_grant_whose_call_has_ended_is_rolled_back() {
    let redis = RedisServer::start();
    let store = open(&redis).await;
    let record = Record::subscribe(&store);
    let lease = take(&store, "k").await;
    drop(wait(&store, call("k", "gone")).await);
    let next = wait(&store, call("k", "next")).await;
    release(&store, &lease).await;
    granted(&woken(&store, "k", next).await);
    assert_eq!(
        record.take_when(5).await,
        [
            "a: granted",
            "a: Released",
            "gone: granted after a wait",
            "gone: Abandoned",
            "next: granted after a wait",
        ]
    );
}

#[tokio::test]
async fn what_abandoning_a_call_has_ended_is_in_the_answer() {
    let redis = RedisServer::start();
    let store = open(&redis).await;
    let record = Record::subscribe(&store);
    let (holds, waits) = (call("k", "a"), waiting(call("k", "b")));
    let tickets = [holds.ticket, waits.ticket, Ticket::random()];
    acquire(&store, holds).await.unwrap();
    acquire(&store, waits).await.unwrap();
    let [_, waits, unknown] = tickets;
    let mut outcomes = Vec::new();
    for ticket in [waits, tickets[0], unknown] {
        let name = name("k");
        let answer = store.submit(Command::Abandon { name, ticket }).await;
        outcomes.push(format!("{:?}", answer.unwrap().outcome));
    }
    assert!(
        outcomes[0].starts_with("Abandoned(LeftQueue("),
        "{outcomes:?}"
    );
    assert!(
        outcomes[1].starts_with("Abandoned(Returned("),
        "{outcomes:?}"
    );
    assert_eq!(outcomes[2], "Abandoned(Nothing)");
    assert_eq!(record.take(), ["a: granted", "a: Abandoned"]);
}

#[tokio::test]
async fn a_grant_that_waits_for_replicas_is_reported_once() {
    let mut replicas = RedisReplicas::start(1, 1);
    let options = RedisOptions {
        wait: 1,
        // A new replica needs some time for its first answer.
        timeout: PATIENCE,
        ..RedisOptions::default()
    };
    let url = format!("redis://127.0.0.1:{}", replicas.primary().port());
    let store = RedisStore::open(&url, &options).await.unwrap();
    let lease = take(&store, "k").await;
    let record = Record::subscribe(&store);
    let next = wait(&store, call("k", "b")).await;
    release(&store, &lease).await;
    woken(&store, "k", next).await;
    assert_eq!(
        record.take(),
        [
            "a: Released",
            "b: granted after a wait, unconfirmed",
            "b: confirmed",
        ]
    );
}

#[tokio::test]
async fn a_call_can_rejoin_the_queue_at_its_position() {
    let redis = RedisServer::start();
    let store = open(&redis).await;
    let lease = take(&store, "k").await;
    let first = waiting(call("k", "first"));
    let Acquired::Queued {
        obstacle,
        position,
        until,
    } = acquire(&store, first.clone()).await.unwrap()
    else {
        panic!("should wait");
    };
    assert_eq!(obstacle.blocked_by, [name("k")]);
    assert_eq!(obstacle.retry_at, lease.expires_at);
    acquire(&store, waiting(call("k", "second"))).await.unwrap();
    let again = |call: Acquire, position, until| Acquire {
        wait: call.wait.clone().map(|wait| Wait {
            rejoin: Some((position, until)),
            ..wait
        }),
        ..call
    };
    let same = acquire(&store, again(first.clone(), position, until))
        .await
        .unwrap();
    let queued = Acquired::Queued {
        obstacle,
        position,
        until,
    };
    assert_eq!(same, queued, "it was there all the time");
    // One that had arrived earlier, and was lost.
    let arrival = position.arrival - 1;
    let lost = waiting(call("k", "lost"));
    let ticket = lost.ticket;
    let lost = again(lost, Position { arrival, ticket }, until);
    acquire(&store, lost).await.unwrap();
    let queue = store.queue(&name("k"), 10).await.unwrap().outcome;
    let owners: Vec<&str> = queue.iter().map(|waiter| waiter.owner.as_str()).collect();
    assert_eq!(owners, ["lost", "first", "second"]);
    let late = waiting(call("k", "late"));
    let over = again(late, position, Timestamp::from_millis(1));
    assert_eq!(
        acquire(&store, over.clone()).await.unwrap(),
        Acquired::TimedOut
    );
    let mut free = over;
    free.claim.locks = Locks::exclusive(name("free"));
    assert_eq!(acquire(&store, free).await.unwrap(), Acquired::TimedOut);
}

#[tokio::test]
async fn a_note_is_shown_with_holders_and_waiters() {
    let redis = RedisServer::start();
    let (store, other) = (open(&redis).await, open(&redis).await);
    let noted = |owner: &str, note: &str| {
        let mut call = call("k", owner);
        call.claim.note = Some(Note::parse(note).unwrap());
        call
    };
    let Acquired::Granted(lease) = acquire(&store, noted("a", "nightly »1«")).await.unwrap()
    else {
        panic!("should be free");
    };
    assert_eq!(lease.note.as_ref().map(Note::as_str), Some("nightly »1«"));
    let status = inspect(&store, "k").await;
    assert_eq!(status.kind, Some(Kind::Exclusive));
    assert_eq!((status.holder(), status.holder_count), (Some(&lease), 1));
    let next = wait(&other, noted("b", "by hand")).await;
    let queue = store.queue(&name("k"), 10).await.unwrap().outcome;
    assert_eq!(queue[0].note.as_ref().map(Note::as_str), Some("by hand"));
    release(&store, &lease).await;
    let wake = woken(&other, "k", next).await;
    assert_eq!(granted(&wake).note, queue[0].note);
}

#[tokio::test]
async fn a_free_lock_has_a_status() {
    let redis = RedisServer::start();
    let status = inspect(&open(&redis).await, "k").await;
    assert_eq!(status.name, name("k"));
    assert_eq!(status.kind, None);
    assert_eq!(
        (status.holders.len(), status.holder_count, status.waiters),
        (0, 0, 0)
    );
}

#[tokio::test]
async fn a_cluster_refuses_sets_whose_keys_may_be_on_different_servers() {
    let cluster = RedisCluster::start();
    let store = RedisStore::open(&cluster.url(), &RedisOptions::default()).await;
    let store = store.unwrap();
    let set = |keys: [&str; 2]| {
        let locks = keys.map(|key| (name(key), Share::EXCLUSIVE));
        let mut call = call("k", "a");
        call.claim.locks = Locks::new(locks.to_vec()).unwrap();
        call
    };
    for keys in [["k", "l"], ["{t}k", "{u}l"], ["{t}k", "l"]] {
        for call in [set(keys), waiting(set(keys))] {
            let refused = acquire(&store, call).await.unwrap_err();
            assert!(matches!(refused, StoreError::Unsupported(_)), "{refused:?}");
            assert!(refused.to_string().contains("hash tag"), "{refused}");
        }
    }
    let granted = acquire(&store, set(["{t}k", "{t}l"])).await.unwrap();
    assert!(matches!(granted, Acquired::Granted(_)), "{granted:?}");
}

#[tokio::test]
async fn a_lease_is_confirmed_by_its_fence() {
    let redis = RedisServer::start();
    let store = open(&redis).await;
    let lease = take(&store, "k").await;
    let confirm = |fence| {
        let name = name("k");
        store.submit(Command::Confirm { name, fence })
    };
    let known = confirm(lease.fence).await.unwrap().outcome;
    assert_eq!(known, Outcome::Lease(Ok(lease.clone())));
    let next = lease.fence.next().unwrap();
    let Outcome::Lease(Err(_)) = confirm(next).await.unwrap().outcome else {
        panic!("no lease has that fence");
    };
}
