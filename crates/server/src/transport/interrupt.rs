//! Work that can be interrupted, without a cost each time that it is polled.

use std::future::Future;
use std::pin::pin;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::select;

/// Runs `work` until it is done, or until `interruption` is.
///
/// A plain `select!` polls the interruption each time that the work is polled, and what a connection watches (its socket, a
/// timer, the shutdown) takes locks for that. Here, the interruption has its own waker, and is polled only when that is woken.
pub(super) async fn run_until<T>(
    work: impl Future<Output = T>,
    interruption: impl Future<Output = T>,
) -> T {
    let mut work = pin!(work);
    let mut interruption = FuturesUnordered::from_iter([interruption]);
    select! {
        biased;
        done = &mut work => done,
        Some(interrupted) = interruption.next() => interrupted,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::{pending, poll_fn};
    use std::task::Poll;

    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn the_interruption_is_polled_only_when_it_was_woken() {
        let polls = Cell::new(0);
        let interruption = poll_fn(|_| {
            polls.set(polls.get() + 1);
            Poll::<&str>::Pending
        });
        let work = async {
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            "done"
        };
        assert_eq!(run_until(work, interruption).await, "done");
        assert_eq!(polls.get(), 1);
    }

    #[tokio::test]
    async fn an_interruption_ends_the_work() {
        let (sender, receiver) = oneshot::channel();
        tokio::spawn(async move { sender.send("interrupted") });
        let interruption = async { receiver.await.unwrap() };
        assert_eq!(run_until(pending(), interruption).await, "interrupted");
    }
}
