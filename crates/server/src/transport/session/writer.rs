//! Writes the answers of a session: all that are ready together go out in one write.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::{Sink, SinkExt};
use tokio::time::{Instant, timeout};

use super::{FrameHold, LAST_ANSWERS, Message};

/// How many answers go out in one write at most.
const WRITTEN_AT_ONCE: usize = 256;

/// With this many bytes to be written, nothing more is read: a client that does not read its answers gets no more of them.
const MAX_UNWRITTEN: usize = 256 * 1024;

pub(super) struct Writer<M, Out> {
    outgoing: Out,
    ready: VecDeque<(M, Option<FrameHold>)>,
    /// The length of all messages that are ready.
    bytes: usize,
    /// How many of the ready messages belong to the write that is under way.
    left: usize,
    /// Given back when that write is done.
    written: Vec<FrameHold>,
    /// When it began.
    since: Option<Instant>,
    write_timeout: Duration,
}

/// The connection failed.
#[derive(Debug)]
pub(super) struct Broken;

impl<M: Message, Out: Sink<M> + Unpin> Writer<M, Out> {
    /// `write_timeout` is how long one write may take.
    pub(super) fn new(outgoing: Out, write_timeout: Duration) -> Self {
        Self {
            outgoing,
            ready: VecDeque::new(),
            bytes: 0,
            left: 0,
            written: Vec::new(),
            since: None,
            write_timeout,
        }
    }

    pub(super) fn push(&mut self, message: M, hold: Option<FrameHold>) {
        self.bytes += message.length();
        self.ready.push_back((message, hold));
    }

    pub(super) fn is_idle(&self) -> bool {
        self.ready.is_empty() && self.since.is_none()
    }

    /// Whether so much is ready that no further calls are run until some of it is written.
    pub(super) fn is_full(&self) -> bool {
        self.ready.len() >= WRITTEN_AT_ONCE || self.bytes >= MAX_UNWRITTEN
    }

    /// When the write that is under way times out.
    pub(super) fn due(&self) -> Option<Instant> {
        self.since.map(|since| since + self.write_timeout)
    }

    /// Does one write. If the future is dropped, the next call resumes it. Returns the number of permits that are free again.
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
            if let Some((message, hold)) = self.ready.pop_front() {
                self.bytes -= message.length();
                let sent = self.outgoing.start_send_unpin(message);
                sent.map_err(|_| Broken)?;
                self.written.extend(hold);
            }
        }
        ready!(self.outgoing.poll_flush_unpin(cx)).map_err(|_| Broken)?;
        self.since = None;
        let permits = self.written.drain(..).map(|hold| hold.permits);
        Poll::Ready(Ok(permits.sum()))
    }

    /// Writes what is ready, and closes the connection.
    pub(super) async fn finish(mut self) {
        let time_limit = LAST_ANSWERS.min(self.write_timeout);
        let finish = async {
            while !self.is_idle() {
                self.write().await?;
            }
            self.outgoing.close().await.map_err(|_| Broken)
        };
        // The client may have disconnected.
        let _ = timeout(time_limit, finish).await;
    }
}
