//! Load by a client library in this process: each caller does the same thing again and again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::{Measured, Tally, Watched, Window, first_serial, measure};

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
    let window = Window::from_now(duration);
    let operation = Arc::new(operation);
    let mut tasks = JoinSet::new();
    for caller in 0..callers {
        let operation = operation.clone();
        tasks.spawn(async move {
            let mut tally = Tally::new();
            let mut serial = first_serial();
            loop {
                let started = Instant::now();
                if started >= window.closes {
                    return Ok(tally);
                }
                serial += 1;
                operation(caller, serial).await?;
                let now = Instant::now();
                if window.contains(now) {
                    tally.record(now - started);
                }
            }
        });
    }
    measure(tasks, window, watched).await
}
