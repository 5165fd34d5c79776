//! Writes what a session answers: whatever is ready together goes out in one write.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::{Sink, SinkExt};
use tokio::time::{Instant, timeout};

use super::{Held, LAST_ANSWERS, Message};

/// How many answers go out in one write at most.
const WRITTEN_AT_ONCE: usize = 256;

/// With so many bytes to be written, nothing more is read: a client that does not read its answers gets no more of them.
const ENOUGH: usize = 256 * 1024;

pub(super) struct Writer<M, Out> {
    outgoing: Out,
    ready: VecDeque<(M, Option<Held>)>,
    /// Of all that is ready.
    bytes: usize,
    /// How many of those that are ready belong to the write that is under way.
    left: usize,
    /// Given back when that write is done.
    written: Vec<Held>,
    /// When it began.
    since: Option<Instant>,
    patience: Duration,
}

/// The connection broke.
#[derive(Debug)]
pub(super) struct Broken;

impl<M: Message, Out: Sink<M> + Unpin> Writer<M, Out> {
    /// `patience` is how long one write may take.
    pub(super) fn new(outgoing: Out, patience: Duration) -> Self {
        Self {
            outgoing,
            ready: VecDeque::new(),
            bytes: 0,
            left: 0,
            written: Vec::new(),
            since: None,
            patience,
        }
    }

    pub(super) fn push(&mut self, message: M, held: Option<Held>) {
        self.bytes += message.length();
        self.ready.push_back((message, held));
    }

    pub(super) fn is_idle(&self) -> bool {
        self.ready.is_empty() && self.since.is_none()
    }

    /// Enough is ready: what comes in next can wait until this has been written.
    pub(super) fn is_full(&self) -> bool {
        self.ready.len() >= WRITTEN_AT_ONCE || self.bytes >= ENOUGH
    }

    /// When the client has had enough time to take what is being written.
    pub(super) fn due(&self) -> Option<Instant> {
        self.since.map(|since| since + self.patience)
    }

    /// One write, which goes on where it was when this is dropped. Gives the number of permits that are free again.
    pub(super) async fn write(&mut self) -> Result<usize, Broken> {
        poll_fn(|cx| self.poll_write(cx)).await
    }

    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<Result<usize, Broken>> {
        if self.since.is_none() {
            self.since = Some(Instant::now());
            self.left = self.ready.len().min(WRITTEN_AT_ONCE);
        }
        while self.left > 0 {
            ready!(self.outgoing.poll_ready_unpin(cx)).map_err(|_| Broken)?;
            self.left -= 1;
            if let Some((message, held)) = self.ready.pop_front() {
                self.bytes -= message.length();
                let sent = self.outgoing.start_send_unpin(message);
                sent.map_err(|_| Broken)?;
                self.written.extend(held);
            }
        }
        ready!(self.outgoing.poll_flush_unpin(cx)).map_err(|_| Broken)?;
        self.since = None;
        let permits = self.written.drain(..).map(|held| held.permits);
        Poll::Ready(Ok(permits.sum()))
    }

    /// Writes what is ready, and closes the connection as its protocol wants it.
    pub(super) async fn finish(mut self) {
        let patience = LAST_ANSWERS.min(self.patience);
        let finish = async {
            while !self.is_idle() {
                self.write().await?;
            }
            self.outgoing.close().await.map_err(|_| Broken)
        };
        // The client may be gone.
        let _ = timeout(patience, finish).await;
    }
}
