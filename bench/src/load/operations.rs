//! Load through a client library in this process: each caller repeats one operation.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::schedule::Schedule;
use super::{Measured, Pace, Tally, Watched, Window, first_serial, measure};

/// A closed loop of `operation(caller, serial)`.
pub(crate) async fn repeat<F, Fut>(
    callers: usize,
    duration: Duration,
    watched: Watched<u32>,
    operation: F,
) -> Result<Measured, String>
where
    F: Fn(usize, u64) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), String>> + Send,
{
    repeat_at(Pace::Closed, callers, duration, watched, operation).await
}

/// As [`repeat`], at any pace. An operation that is due while its caller is busy waits.
pub(crate) async fn repeat_at<F, Fut>(
    pace: Pace,
    callers: usize,
    duration: Duration,
    watched: Watched<u32>,
    operation: F,
) -> Result<Measured, String>
where
    F: Fn(usize, u64) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), String>> + Send,
{
    let window = Window::from_now(duration);
    let operation = Arc::new(operation);
    let mut tasks = JoinSet::new();
    for caller in 0..callers {
        let operation = operation.clone();
        tasks.spawn(async move {
            let failed = |error| format!("the timer failed: {error}");
            let mut schedule = Schedule::new(pace, window, caller, callers);
            let timer = schedule.timer().map_err(failed)?;
            let mut tally = Tally::new();
            let mut serial = first_serial();
            loop {
                if let Some(due) = schedule.next(Instant::now()) {
                    serial += 1;
                    operation(caller, serial).await?;
                    let now = Instant::now();
                    if schedule.counts(due, now) {
                        tally.record(now - due);
                    }
                } else if schedule.is_over() {
                    return Ok(tally);
                } else if let Some(timer) = &timer {
                    timer.tick().await.map_err(failed)?;
                }
            }
        });
    }
    measure(tasks, window, watched).await
}
