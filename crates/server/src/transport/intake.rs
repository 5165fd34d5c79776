//! Limits how much is read from a connection.
//!
//! A codec reads until the socket is empty or a message is complete. A session counts the bytes of an incomplete message against its
//! byte budgets, and lets the codec read no more than it has reserved there.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// How much was read from a connection, and how much may be.
#[derive(Debug)]
pub(super) struct Intake {
    received: AtomicU64,
    limit: AtomicU64,
}

impl Default for Intake {
    fn default() -> Self {
        Self {
            received: AtomicU64::new(0),
            limit: AtomicU64::new(u64::MAX),
        }
    }
}

impl Intake {
    pub(super) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Sets the limit, in bytes since the connection was opened. A task that waits to read is not woken: it has to poll again.
    pub(super) fn limit(&self, bytes: u64) {
        self.limit.store(bytes, Ordering::Relaxed);
    }

    /// How much more may be read.
    pub(super) fn left(&self) -> u64 {
        let limit = self.limit.load(Ordering::Relaxed);
        limit.saturating_sub(self.received())
    }
}

/// A stream that is read only up to the limit of its intake.
#[derive(Debug)]
pub(super) struct LimitedStream<S> {
    stream: S,
    intake: Arc<Intake>,
}

impl<S> LimitedStream<S> {
    pub(super) fn new(stream: S, intake: Arc<Intake>) -> Self {
        Self { stream, intake }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for LimitedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let left = usize::try_from(self.intake.left()).unwrap_or(usize::MAX);
        if left == 0 {
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        if left >= buffer.remaining() {
            ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        } else {
            let mut part = ReadBuf::new(buffer.initialize_unfilled_to(left));
            ready!(Pin::new(&mut self.stream).poll_read(cx, &mut part))?;
            let count = part.filled().len();
            buffer.advance(count);
        }
        let count = (buffer.filled().len() - before) as u64;
        self.intake.received.fetch_add(count, Ordering::Relaxed);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for LimitedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
