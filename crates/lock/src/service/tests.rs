//! The service over a scripted store: clocks that differ, notifications in any order, and alarms.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, advance};

use super::scripted::{ScriptedStore, granted, lease, name, queued};
use super::*;
use crate::model::{Command, Outcome, Settled};

const TTL: Duration = Duration::from_secs(30);
/// The time of the store's first answer.
const FIRST: Timestamp = Timestamp::from_millis(1_800_000_000_000);
const MINUTES: Duration = Duration::from_secs(300);

fn request(wait: Option<Duration>) -> AcquireRequest {
    AcquireRequest {
        locks: Locks::exclusive(name("k")),
        owner: Owner::parse("a").unwrap(),
        caller: None,
        note: None,
        ttl: Ttl::new(TTL).unwrap(),
        wait,
        attempt: None,
    }
}

/// A call that has waited in the queue of a store for a minute.
async fn long_wait() -> (
    Arc<ScriptedStore>,
    Ticket,
    JoinHandle<Result<AcquireOutcome, LockError>>,
) {
    let store = ScriptedStore::new(|command| match command {
        Command::Acquire(call) => Ok(queued(call.ticket, FIRST, FIRST + MINUTES * 10)),
        _ => Err(StoreError::NotDone("not scripted".into())),
    });
    let service = LockService::new(store.clone(), Config::default());
    let call = tokio::spawn(async move { service.acquire(request(Some(MINUTES))).await });
    let ticket = store.ticket().await;
    advance(Duration::from_secs(60)).await;
    (store, ticket, call)
}

/// Times of the server that answers after a fail-over.
fn other_clocks() -> [Timestamp; 3] {
    let minute_later = FIRST + Duration::from_secs(60);
    let set_back = Timestamp::from_millis(FIRST.as_millis() - 300_000);
    [minute_later, minute_later + MINUTES, set_back]
}

#[tokio::test(start_paused = true)]
async fn a_grant_after_a_wait_is_timed_by_the_clock_that_made_it() {
    for now in other_clocks() {
        let (store, ticket, call) = long_wait().await;
        let reading = Reading {
            at: Instant::now(),
            now,
        };
        // It was under way for three seconds.
        advance(Duration::from_secs(3)).await;
        let wake = Wake::Granted(lease(7, now, TTL));
        assert!(store.node().wake(ticket, wake, reading));
        let Ok(AcquireOutcome::Granted(guard)) = call.await.unwrap() else {
            panic!("a grant was refused, by the clock that reads {now:?}");
        };
        assert_eq!(guard.remaining(), TTL - Duration::from_secs(3));
        let certain = guard.loss().remaining();
        assert!(certain < guard.remaining() && certain > Duration::from_secs(26));
    }
}

#[tokio::test(start_paused = true)]
async fn a_grant_by_a_clock_that_was_set_back_lasts_no_longer_than_its_ttl() {
    let (store, ticket, call) = long_wait().await;
    let reading = Reading {
        at: Instant::now(),
        now: FIRST,
    };
    let wake = Wake::Granted(lease(7, FIRST + MINUTES, TTL));
    assert!(store.node().wake(ticket, wake, reading));
    let Ok(AcquireOutcome::Granted(guard)) = call.await.unwrap() else {
        panic!("a grant was refused");
    };
    assert_eq!(guard.remaining(), TTL);
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_has_expired_by_its_own_reading_is_refused() {
    let (store, ticket, call) = long_wait().await;
    let reading = Reading {
        at: Instant::now(),
        now: FIRST + TTL,
    };
    let wake = Wake::Granted(lease(7, FIRST, TTL));
    assert!(store.node().wake(ticket, wake, reading));
    let outcome = call.await.unwrap();
    assert!(matches!(
        outcome,
        Err(LockError::Store(StoreError::MaybeDone(_)))
    ));
}

#[tokio::test(start_paused = true)]
async fn the_retry_hint_is_timed_by_the_clock_that_ended_the_wait() {
    for now in other_clocks() {
        let (store, ticket, call) = long_wait().await;
        let reading = Reading {
            at: Instant::now(),
            now,
        };
        let wake = Wake::TimedOut(Obstacle {
            blocked_by: vec![name("k")],
            retry_at: now + Duration::from_millis(100),
        });
        assert!(store.node().wake(ticket, wake, reading));
        let Ok(AcquireOutcome::TimedOut { retry_after, .. }) = call.await.unwrap() else {
            panic!("the wait is over");
        };
        let range = Duration::from_millis(50)..=Duration::from_millis(100);
        assert!(range.contains(&retry_after), "{retry_after:?} by {now:?}");
    }
}

/// A guard of a lease with the fence 7.
async fn held() -> (Arc<ScriptedStore>, LockService, LeaseGuard) {
    let store = ScriptedStore::new(|command| match command {
        Command::Acquire(_) => Ok(granted(&lease(7, FIRST, TTL))),
        _ => Err(StoreError::NotDone("not scripted".into())),
    });
    let service = LockService::new(store.clone(), Config::default());
    match service.acquire(request(None)).await {
        Ok(AcquireOutcome::Granted(guard)) => (store, service, guard),
        other => panic!("should be free: {other:?}"),
    }
}

/// The events besides the grant, with their counts.
fn reported(service: &LockService) -> Vec<(EventKind, u64)> {
    let kinds = EventKind::ALL
        .iter()
        .filter(|kind| **kind != EventKind::Acquired);
    let counted = kinds.map(|kind| (*kind, service.stats().count(*kind)));
    counted.filter(|(_, count)| *count > 0).collect()
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_another_node_has_ended_is_lost_at_once() {
    let (store, service, guard) = held().await;
    let fence = guard.lease().fence;
    store
        .node()
        .ended_elsewhere(&name("k"), Fence::new(8).unwrap());
    store.node().ended_elsewhere(&name("other"), fence);
    assert!(!guard.loss().is_lost());
    store.node().ended_elsewhere(&name("k"), fence);
    store.node().ended_elsewhere(&name("k"), fence);
    guard.loss().lost().await;
    assert_eq!(guard.loss().remaining(), Duration::ZERO);
    // How it ended is reported by the node that ended it.
    assert_eq!(reported(&service), [(EventKind::Lost, 1)]);
}

#[tokio::test(start_paused = true)]
async fn an_end_that_is_notified_before_the_grant_is_not_forgotten() {
    let (store, ticket, call) = long_wait().await;
    let reading = Reading {
        at: Instant::now(),
        now: FIRST,
    };
    let fence = Fence::new(7).unwrap();
    store.node().ended_elsewhere(&name("k"), fence);
    let wake = Wake::Granted(lease(7, FIRST, TTL));
    assert!(store.node().wake(ticket, wake, reading));
    let Ok(AcquireOutcome::Granted(guard)) = call.await.unwrap() else {
        panic!("a grant was refused");
    };
    assert!(guard.loss().is_lost());
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_another_node_has_changed_has_the_new_expiry() {
    let (store, service, guard) = held().await;
    let (start, fence) = (Instant::now(), guard.lease().fence);
    let change = |after: Duration, ttl: Duration| {
        let (at, now) = (start + after, FIRST + after);
        let node = store.node();
        node.changed_elsewhere(&name("k"), fence, now + ttl, Reading { at, now });
        guard.remaining()
    };
    advance(Duration::from_secs(2)).await;
    let [first, second] = [1, 2].map(Duration::from_secs);
    assert_eq!(change(second, TTL * 2), TTL * 2);
    // A notification of an earlier step that arrives later has no effect.
    assert_eq!(change(first, TTL * 10), TTL * 2);
    advance(Duration::from_secs(1)).await;
    let shortened = change(second + first, Duration::from_secs(5));
    assert_eq!(shortened, Duration::from_secs(5));
    assert_eq!(guard.lease().expires_at, FIRST + Duration::from_secs(8));
    let before = Instant::now();
    guard.loss().lost().await;
    let passed = before.elapsed();
    assert!(passed < shortened && passed > Duration::from_secs(4));
    assert_eq!(reported(&service), []);
}

/// The times since `start` at which keys were settled.
fn settled(store: &ScriptedStore, start: Instant) -> Vec<Duration> {
    let commands = store.commands().into_iter();
    let settled = commands.filter(|(_, command)| matches!(command, Command::Settle(_)));
    settled.map(|(at, _)| at - start).collect()
}

#[tokio::test(start_paused = true)]
async fn a_shared_store_is_queried_when_a_lease_is_due_and_never_before() {
    let start = Instant::now();
    let store = ScriptedStore::new(move |command| {
        let now = FIRST + start.elapsed();
        match command {
            Command::Acquire(call) => Ok(queued(call.ticket, now, now + TTL)),
            Command::Settle(_) => Ok(Answer {
                outcome: Outcome::Settled(Settled {
                    waiters: 1,
                    retry_at: now + TTL * 2,
                }),
                now,
            }),
            _ => Err(StoreError::NotDone("not scripted".into())),
        }
    });
    let service = LockService::new(store.clone(), Config::default());
    let outcome = service.acquire(request(Some(TTL * 6))).await;
    assert!(matches!(outcome, Ok(AcquireOutcome::TimedOut { .. })));
    let settled = settled(&store, start);
    assert_eq!(
        settled.iter().map(Duration::as_secs).collect::<Vec<_>>(),
        [30, 90, 150]
    );
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_is_retried_with_growing_pauses() {
    let start = Instant::now();
    let mut left = 9;
    let store = ScriptedStore::new(move |command| {
        let now = FIRST + start.elapsed();
        match command {
            Command::Acquire(call) => Ok(queued(call.ticket, now, now)),
            Command::Settle(_) if left == 0 => Ok(Answer {
                outcome: Outcome::Settled(Settled {
                    waiters: 1,
                    retry_at: now + TTL * 20,
                }),
                now,
            }),
            _ => {
                left -= 1;
                Err(StoreError::NotDone("it is down".into()))
            }
        }
    });
    let service = LockService::new(store.clone(), Config::default());
    let call = tokio::spawn(async move { service.acquire(request(Some(TTL * 10))).await });
    tokio::time::sleep(TTL * 5).await;
    let settled = settled(&store, start);
    let pauses = settled.windows(2).map(|pair| pair[1] - pair[0]);
    let expected = [250, 500, 1000, 2000, 4000, 5000, 5000, 5000, 5000];
    assert_eq!(settled.len(), expected.len() + 1);
    for (pause, millis) in pauses.zip(expected) {
        let longest = Duration::from_millis(millis + 2);
        assert!(
            pause <= longest && pause >= longest / 2,
            "{pause:?} of {longest:?}"
        );
    }
    call.abort();
}

#[tokio::test]
async fn calls_of_all_threads_have_different_tickets() {
    let store = ScriptedStore::new(|_| Err(StoreError::NotDone("not scripted".into())));
    let service = LockService::new(store, Config::default());
    let mut tickets = std::collections::HashSet::new();
    std::thread::scope(|scope| {
        let of_thread = || -> Vec<Ticket> {
            let tickets = (0..1000).map(|_| service.threads.own().next_ticket());
            tickets.collect()
        };
        let threads: Vec<_> = (0..24).map(|_| scope.spawn(of_thread)).collect();
        for thread in threads {
            tickets.extend(thread.join().unwrap());
        }
    });
    assert_eq!(tickets.len(), 24 * 1000);
}
