//! A socket that can be watched while a protocol reads it.
//!
//! A protocol that has stopped reading, because it has enough to do, does not see the end of the stream behind what it has not
//! read. The kernel does: [`Socket::disconnected`] asks it.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::net::{Shutdown, shutdown};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf, Ready};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::sleep;

/// How long a protocol has to read on after the client has disconnected: it may be about to see the end itself.
const GRACE: Duration = Duration::from_millis(250);

/// A connected socket. All clones are one.
#[derive(Debug, Clone)]
pub(super) struct Socket(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    stream: Stream,
    reads: AtomicU64,
}

#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// Calls the method that both kinds of streams have.
macro_rules! on_stream {
    ($socket:expr, $stream:ident => $call:expr) => {
        match &$socket.0.stream {
            Stream::Tcp($stream) => $call,
            Stream::Unix($stream) => $call,
        }
    };
}

/// Reads what there is. When that is less than would fit, there is no more, and the stream is marked as not ready: otherwise the
/// next read would ask the kernel in vain.
macro_rules! read {
    ($stream:expr, $buffer:expr) => {{
        let room = $buffer.remaining();
        let mut done = None;
        // What becomes ready from here on makes the stream ready again.
        let read = $stream.try_io(Interest::READABLE, || {
            // The rest of the buffer is not touched: it may be as long as a frame is announced to be.
            let count = $stream.try_read_buf($buffer)?;
            done = Some(());
            match count > 0 && count < room {
                true => Err(io::ErrorKind::WouldBlock.into()),
                false => Ok(()),
            }
        });
        done.map_or(read, Ok)
    }};
}

impl From<TcpStream> for Socket {
    fn from(stream: TcpStream) -> Self {
        Self::new(Stream::Tcp(stream))
    }
}

impl From<UnixStream> for Socket {
    fn from(stream: UnixStream) -> Self {
        Self::new(Stream::Unix(stream))
    }
}

impl Socket {
    fn new(stream: Stream) -> Self {
        let reads = AtomicU64::new(0);
        Self(Arc::new(Inner { stream, reads }))
    }

    /// Returns when the client has disconnected and nobody reads what it has left behind.
    pub(super) async fn disconnected(&self) {
        while !self.peer_closed().await.is_ok_and(Ready::is_read_closed) {
            sleep(GRACE).await;
        }
        loop {
            let reads = self.0.reads.load(Ordering::Relaxed);
            sleep(GRACE).await;
            if self.0.reads.load(Ordering::Relaxed) == reads {
                return;
            }
        }
    }

    /// Priority data is not subscribed to, so only the end of the peer's side wakes this, whatever there is to be read.
    #[cfg(target_os = "linux")]
    async fn peer_closed(&self) -> io::Result<Ready> {
        on_stream!(self, stream => stream.ready(Interest::PRIORITY).await)
    }

    #[cfg(not(target_os = "linux"))]
    async fn peer_closed(&self) -> io::Result<Ready> {
        std::future::pending().await
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(on_stream!(self, stream => stream.poll_read_ready(cx)))?;
            match on_stream!(self, stream => read!(stream, buffer)) {
                Ok(()) => {
                    self.0.reads.fetch_add(1, Ordering::Relaxed);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(on_stream!(self, stream => stream.poll_write_ready(cx)))?;
            match on_stream!(self, stream => stream.try_write(bytes)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(on_stream!(self, stream => stream.poll_write_ready(cx)))?;
            match on_stream!(self, stream => stream.try_write_vectored(parts)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ended = on_stream!(self, stream => shutdown(stream, Shutdown::Write));
        Poll::Ready(match ended {
            // The client was faster.
            Ok(()) | Err(rustix::io::Errno::NOTCONN) => Ok(()),
            Err(error) => Err(error.into()),
        })
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::time::timeout;

    use super::*;

    /// What arrives between a read that empties the socket and the note that it is empty must still wake the reader.
    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn nothing_that_arrives_is_overlooked() {
        let (here, mut there) = UnixStream::pair().unwrap();
        let mut socket = Socket::from(here);
        let sent = 50_000;
        let sender = tokio::spawn(async move {
            for number in 0..sent {
                there.write_all(&[0; 3]).await.unwrap();
                if number % 7 == 0 {
                    tokio::task::yield_now().await;
                }
            }
        });
        let mut received = 0;
        let mut buffer = [0; 64];
        while received < 3 * sent {
            let read = timeout(Duration::from_secs(20), socket.read(&mut buffer));
            let count = read.await.expect("the reader was not woken").unwrap();
            assert!(count > 0);
            received += count;
        }
        sender.await.unwrap();
        assert_eq!(
            socket.read(&mut buffer).await.unwrap(),
            0,
            "the end is seen"
        );
    }
}
