//! Waits for conditions in async tests, where nothing may block.

use std::panic::{Location, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use crate::patience::PATIENCE;

/// Waits for a condition; panics if it does not come true.
#[track_caller]
pub fn until<F: FnMut() -> bool>(
    what: &str,
    mut condition: F,
) -> impl Future<Output = ()> + use<F> {
    let failure = format!("{}: never came true: {what}", Location::caller());
    async move {
        let give_up = Instant::now() + PATIENCE;
        while !condition() {
            assert!(Instant::now() < give_up, "{failure}");
            sleep(Duration::from_millis(2)).await;
        }
    }
}

/// As [`until`], for an async condition.
pub async fn eventually(what: &str, condition: impl AsyncFn() -> bool) {
    let give_up = Instant::now() + PATIENCE;
    while !condition().await {
        assert!(Instant::now() < give_up, "never came true: {what}");
        sleep(Duration::from_millis(10)).await;
    }
}

/// Waits for a future that has to complete soon, on any machine.
#[track_caller]
pub fn soon<W: IntoFuture>(what: W) -> impl Future<Output = W::Output> {
    let failure = format!("{}: not completed in {PATIENCE:?}", Location::caller());
    let answer = timeout(PATIENCE, what.into_future());
    async move { answer.await.expect(&failure) }
}

/// Runs a test that fails when timers are late. If it fails and a timer was later than `limit`, the machine was overloaded and the
/// failure means nothing: the test is run again.
pub async fn undisturbed<F>(limit: Duration, test: impl Fn() -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    const TRIES: usize = 10;
    for tries_left in (0..TRIES).rev() {
        let latest = Arc::new(AtomicU64::new(0));
        let watching = tokio::spawn(watch(latest.clone()));
        let ended = tokio::spawn(test()).await;
        watching.abort();
        let Err(failed) = ended else { return };
        let late = Duration::from_millis(latest.load(Ordering::Relaxed));
        if late <= limit || tries_left == 0 {
            resume_unwind(failed.into_panic());
        }
        eprintln!("a timer was {late:?} late: running the test again");
    }
}

/// Records by how much timers are late at most.
async fn watch(latest: Arc<AtomicU64>) {
    loop {
        let due = Instant::now() + Duration::from_millis(5);
        tokio::time::sleep_until(due).await;
        let late = u64::try_from(due.elapsed().as_millis()).unwrap_or(u64::MAX);
        latest.fetch_max(late, Ordering::Relaxed);
    }
}
