//! Watchers over a scripted store, whose reads are counted.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::scripted::{ScriptedStore, lease, name};
use super::*;

const HOUR: Duration = Duration::from_secs(3600);
/// Longer than a poll of a reported key.
const LONG: Duration = Duration::from_secs(10);
const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);

fn service() -> (Arc<ScriptedStore>, LockService) {
    let store = ScriptedStore::new(|_| Err(StoreError::NotDone("not scripted".into())));
    let service = LockService::new(store.clone(), Config::default());
    (store, service)
}

/// A lease of the owner `a` that outlasts the test.
fn held(fence: u64) -> Lease {
    lease(fence, NOW, HOUR)
}

impl ScriptedStore {
    /// Another process changes the key, and the store reports that.
    fn change(&self, holder: Option<Lease>) {
        self.change_unreported(holder);
        self.node().may_have_changed(&name("k"));
    }

    fn change_unreported(&self, holder: Option<Lease>) {
        *self.watched.holder.lock().unwrap() = holder;
    }

    fn reads(&self) -> usize {
        self.watched.reads.load(Ordering::Relaxed)
    }

    fn renewals(&self) -> usize {
        self.watched.renewals.load(Ordering::Relaxed)
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_costs_few_reads_however_many_watch_it() {
    for takes in [Duration::ZERO, Duration::from_millis(1)] {
        count_reads(takes).await;
    }
}

async fn count_reads(takes: Duration) {
    const WATCHERS: usize = 1_000;
    const CHANGES: u64 = 3;
    let (store, service) = service();
    *store.watched.takes.lock().unwrap() = takes;
    let (seen, mut seen_by_all) = mpsc::unbounded_channel();
    let mut watchers = JoinSet::new();
    for _ in 0..WATCHERS {
        let (service, seen) = (service.clone(), seen.clone());
        watchers.spawn(async move {
            let mut since = Revision::FREE;
            loop {
                let change = service.watch(&name("k"), Some(since), HOUR).await.unwrap();
                since = change.revision;
                seen.send(since).unwrap();
            }
        });
    }
    // All of them wait.
    sleep(Duration::from_secs(1)).await;
    for fence in 1..=CHANGES {
        let before = store.reads();
        store.change(Some(held(fence)));
        sleep(Duration::from_secs(1)).await;
        for _ in 0..WATCHERS {
            seen_by_all.try_recv().unwrap();
        }
        assert!(seen_by_all.try_recv().is_err(), "each is woken once");
        let reads = store.reads() - before;
        assert!(reads <= 3, "{reads} reads");
    }
}

#[tokio::test(start_paused = true)]
async fn watchers_whose_waits_end_together_share_a_read() {
    let (store, service) = service();
    let mut watchers = JoinSet::new();
    for _ in 0..1_000 {
        let service = service.clone();
        watchers.spawn(async move {
            let since = Some(Revision::FREE);
            let (key, wait) = (name("k"), Duration::from_secs(1));
            service.watch(&key, since, wait).await.unwrap();
        });
    }
    watchers.join_all().await;
    assert!(store.reads() <= 6, "{} reads", store.reads());
}

#[tokio::test(start_paused = true)]
async fn a_failed_read_fails_all_that_wait_for_it() {
    let (store, service) = service();
    store.watched.fails.store(true, Ordering::Relaxed);
    let mut watchers = JoinSet::new();
    for _ in 0..1_000 {
        let service = service.clone();
        watchers.spawn(async move {
            let since = Some(Revision::FREE);
            service.watch(&name("k"), since, HOUR).await
        });
    }
    for watched in watchers.join_all().await {
        let why = watched.unwrap_err().to_string();
        assert_eq!(why, "the lock store is unavailable: it fails");
    }
    assert!(store.reads() <= 3, "{} reads", store.reads());
}

/// The read may have found a state from before the call.
#[tokio::test(start_paused = true)]
async fn a_watcher_that_begins_during_a_read_does_not_share_it() {
    let (store, service) = service();
    *store.watched.takes.lock().unwrap() = Duration::from_millis(1);
    let watch = || {
        let (service, since) = (service.clone(), Some(Revision::FREE));
        async move { service.watch(&name("k"), since, HOUR).await.unwrap() }
    };
    let first = tokio::spawn(watch());
    while store.reads() == 0 {
        tokio::task::yield_now().await;
    }
    store.change_unreported(Some(held(1)));
    let since = Instant::now();
    let second = timeout(HOUR, watch()).await.unwrap();
    assert_eq!(second.status.holder_count, 1);
    assert!(since.elapsed() < Duration::from_millis(100));
    assert_eq!(first.await.unwrap().status.holder_count, 1);
}

#[tokio::test(start_paused = true)]
async fn an_owner_without_a_lease_does_not_notice_those_of_others() {
    let (store, service) = service();
    let (key, owner) = (name("k"), Owner::parse("b").unwrap());
    let watch = |since| service.watch_own(&key, &owner, since, HOUR);
    store.change(Some(held(1)));
    let first = watch(None).await.unwrap();
    assert_eq!(first.revision, Revision::FREE);
    // Even if it guesses the revision.
    let status = service.watch(&name("k"), None, HOUR).await.unwrap();
    let guessed = watch(Some(status.revision)).await.unwrap();
    assert_eq!(guessed.revision, Revision::FREE);

    let mut waiting = Box::pin(watch(Some(Revision::FREE)));
    for holder in [None, Some(held(2)), Some(held(3)), None] {
        store.change(holder);
        timeout(LONG, &mut waiting).await.unwrap_err();
    }
    let own = Lease {
        owner: owner.clone(),
        ..held(4)
    };
    store.change(Some(own));
    let seen = waiting.await.unwrap();
    assert_eq!(seen.status.holders[0].owner, owner);
    assert_ne!(seen.revision, Revision::FREE);

    let waiting = watch(Some(seen.revision));
    store.change(Some(held(5)));
    assert_eq!(waiting.await.unwrap().revision, Revision::FREE);
}

#[tokio::test(start_paused = true)]
async fn reports_begin_again_when_a_poll_finds_a_change_that_was_not_reported() {
    let (store, service) = service();
    let watching = tokio::spawn({
        let service = service.clone();
        let nobody = Owner::parse("nobody").unwrap();
        async move {
            let since = Some(Revision::FREE);
            service.watch_own(&name("k"), &nobody, since, HOUR).await
        }
    });
    sleep(LONG).await;
    store.change(Some(held(1)));
    sleep(LONG).await;
    assert_eq!(store.renewals(), 0);
    store.change_unreported(None);
    sleep(LONG).await;
    assert_eq!(store.renewals(), 1);
    watching.abort();
}
