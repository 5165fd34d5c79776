//! The same patience inside a runtime, where nothing may block.

use std::panic::{Location, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use crate::patience::PATIENCE;

/// Waits for a condition; panics when it does not come true.
#[track_caller]
pub fn until<F: FnMut() -> bool>(what: &str, mut is_so: F) -> impl Future<Output = ()> + use<F> {
    let complaint = format!("{}: never came true: {what}", Location::caller());
    async move {
        let give_up = Instant::now() + PATIENCE;
        while !is_so() {
            assert!(Instant::now() < give_up, "{complaint}");
            sleep(Duration::from_millis(2)).await;
        }
    }
}

/// Waits for something that has to come soon, on any machine.
#[track_caller]
pub fn soon<W: IntoFuture>(what: W) -> impl Future<Output = W::Output> {
    let complaint = format!("{}: nothing came in {PATIENCE:?}", Location::caller());
    let answer = timeout(PATIENCE, what.into_future());
    async move { answer.await.expect(&complaint) }
}

/// Runs a test that fails when timers are late. If it fails, and any was later than `limit`, the machine had other things
/// to do and the failure says nothing: it is run once more.
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
        eprintln!("a timer was {late:?} late: once more");
    }
}

/// Keeps by how much timers are late at most.
async fn watch(latest: Arc<AtomicU64>) {
    loop {
        let due = Instant::now() + Duration::from_millis(5);
        tokio::time::sleep_until(due).await;
        let late = u64::try_from(due.elapsed().as_millis()).unwrap_or(u64::MAX);
        latest.fetch_max(late, Ordering::Relaxed);
    }
}
