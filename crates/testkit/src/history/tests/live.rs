//! Histories of threads and tasks that really use a lock.

use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use crate::history::report::Rule;
use crate::history::{History, Sharing};

const TTL: Duration = Duration::from_secs(60);

#[test]
fn a_lock_that_works_is_good() {
    let history = History::default();
    // Its last fence.
    let lock = Mutex::new(0);
    thread::scope(|scope| {
        for owner in ["one", "two", "three", "four"] {
            let (history, lock) = (history.clone(), &lock);
            scope.spawn(move || {
                for _ in 0..50 {
                    let request = history.acquires(owner, ["a"], Sharing::Exclusive);
                    let mut fence = lock.lock().unwrap();
                    *fence += 1;
                    let lease = request.granted(*fence, Instant::now() + TTL);
                    lease.extends(TTL).extended(Instant::now() + TTL);
                    let release = lease.releases();
                    drop(fence);
                    release.released();
                }
            });
        }
    });
    history.nothing_stuck().unwrap();
    let summary = history.check().unwrap();
    assert_eq!((summary.leases, summary.operations), (200, 600));
    assert_eq!((summary.released, summary.open), (200, 0));
}

#[test]
fn a_lock_that_lets_two_in_is_bad() {
    let history = History::default();
    let requests = ["one", "two"].map(|owner| history.acquires(owner, ["a"], Sharing::Exclusive));
    for (fence, request) in (1..).zip(requests) {
        request.granted(fence, Instant::now() + TTL);
    }
    let violations = history.check().unwrap_err();
    let rules: Vec<Rule> = violations.iter().map(|found| found.rule).collect();
    assert_eq!(rules, [Rule::Overlap]);
}

#[test]
fn what_is_dropped_without_an_outcome_is_stuck() {
    let history = History::default();
    drop(history.forces("operator", "a", &[]));
    assert_eq!(history.nothing_stuck().unwrap_err().total(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_paused_clock_is_followed() {
    let history = History::default();
    let request = history.acquires("one", ["a"], Sharing::Exclusive);
    let end = tokio::time::Instant::now() + TTL;
    tokio::time::advance(Duration::from_secs(1)).await;
    request.granted(1, end);
    tokio::time::advance(TTL).await;
    // The first has expired by now.
    let request = history.acquires("two", ["a"], Sharing::Exclusive);
    request.granted(2, tokio::time::Instant::now() + TTL);
    history.check().unwrap();
    let request = history.acquires("three", ["a"], Sharing::Exclusive);
    tokio::time::advance(Duration::from_secs(1)).await;
    request.granted(3, tokio::time::Instant::now() + TTL);
    assert_eq!(history.check().unwrap_err().total(), 1);
}
