//! Keeps the order of requests: those that are sent one after the other on a connection join the queues of locks in that order.
//!
//! A call submits its acquire to the store in its first poll. So a session polls such calls in their order
//! ([`session`](super::session)). The streams of an HTTP/2 connection are polled in the connection's task, in the order in which their
//! frames arrive ([`Streams`]), until the call was polled once; then they go on in tasks of their own. Requests that cannot wait
//! for a lock go there first, so that they use all threads.

use std::convert::Infallible;
use std::fmt;
use std::future::poll_fn;
use std::mem;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use hyper::rt::Executor;
use memchr::memmem;
use tokio::task::coop::unconstrained;
use tokio::task::yield_now;

type Stream = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Whether a request may wait for a lock. It is not parsed for that: a member of another kind may have the same name.
pub(super) fn may_wait(request: &[u8]) -> bool {
    memmem::find(request, b"\"block\"").is_some()
}

/// The streams of an HTTP/2 connection. It is the executor that hyper gives them to.
#[derive(Default)]
pub(super) struct Streams {
    accepted: Mutex<Vec<Stream>>,
    /// Set by the stream that is being polled, when its request has arrived.
    has_arrived: AtomicBool,
}

impl Streams {
    /// Called in a stream whose request has arrived completely.
    pub(super) async fn request_arrived(&self, request: &[u8]) {
        self.has_arrived.store(true, Ordering::Relaxed);
        if !may_wait(request) {
            yield_now().await;
        }
    }

    /// Polls the streams. Must be polled in the task of the connection, after the connection itself.
    pub(super) async fn run(&self) -> Infallible {
        let mut streams = FuturesUnordered::new();
        poll_fn(|cx| {
            loop {
                let accepted = mem::take(&mut *self.accepted());
                streams.extend(accepted.into_iter().map(|stream| {
                    let mut stream = Some(stream);
                    poll_fn(move |cx| self.poll(&mut stream, cx))
                }));
                match streams.poll_next_unpin(cx) {
                    Poll::Ready(Some(None)) => {}
                    Poll::Ready(Some(Some(stream))) => drop(tokio::spawn(stream)),
                    // A stream that was polled may have given the executor another one.
                    Poll::Ready(None) | Poll::Pending if !self.accepted().is_empty() => {}
                    Poll::Ready(None) | Poll::Pending => return Poll::Pending,
                }
            }
        })
        .await
    }

    /// Ready when the stream has ended, or goes on in a task of its own.
    fn poll(&self, stream: &mut Option<Stream>, cx: &mut Context<'_>) -> Poll<Option<Stream>> {
        let Some(own) = stream else {
            return Poll::Ready(None);
        };
        // Tokio's budget would wake those that have used it up in the reverse order.
        let is_done = Pin::new(&mut unconstrained(own)).poll(cx).is_ready();
        let has_arrived = self.has_arrived.swap(false, Ordering::Relaxed);
        match (is_done, has_arrived) {
            (true, _) => Poll::Ready(None),
            (false, true) => Poll::Ready(stream.take()),
            (false, false) => Poll::Pending,
        }
    }

    fn accepted(&self) -> MutexGuard<'_, Vec<Stream>> {
        self.accepted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Streams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Streams").finish_non_exhaustive()
    }
}

/// The executor of an HTTP/2 connection.
#[derive(Clone)]
pub(super) struct InOrder(pub(super) Arc<Streams>);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for InOrder {
    fn execute(&self, stream: F) {
        self.0.accepted().push(Box::pin(stream));
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_stream_that_is_accepted_while_another_is_polled_is_polled_too() {
        let executor = InOrder(Arc::default());
        let is_polled = Arc::new(AtomicBool::new(false));
        executor.execute({
            let (executor, is_polled) = (executor.clone(), is_polled.clone());
            async move {
                executor.execute(async move { is_polled.store(true, Ordering::Relaxed) });
                std::future::pending::<()>().await;
            }
        });
        assert!(executor.0.run().now_or_never().is_none());
        assert!(is_polled.load(Ordering::Relaxed));
    }
}
