//! A socket whose end can be watched while a protocol reads it.
//!
//! A protocol that has stopped reading, to apply backpressure, does not see the end of the stream behind bytes that it has not
//! read. The kernel does, and [`Socket::disconnected`] waits for its event.

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

/// How long a protocol may pause between reads after a disconnect before it counts as not reading: it may be about to see the
/// end itself.
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

/// Calls a method that both types of streams have.
macro_rules! on_stream {
    ($socket:expr, $stream:ident => $call:expr) => {
        match &$socket.0.stream {
            Stream::Tcp($stream) => $call,
            Stream::Unix($stream) => $call,
        }
    };
}

/// Reads what is available. If that is less than the buffer holds, the socket is empty, and is marked as not ready, which saves
/// the system call of a next read that would return nothing.
macro_rules! read {
    ($stream:expr, $buffer:expr) => {{
        let room = $buffer.remaining();
        let mut done = None;
        // Bytes that arrive from here on make the stream ready again.
        let read = $stream.try_io(Interest::READABLE, || {
            // The rest of the buffer is not initialised: it may be as long as the announced length of a frame.
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

    /// Returns when the client has disconnected, and its last bytes are not being read.
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

    /// `PRIORITY` has no data here, so only the end of the peer's side wakes this, even if there are bytes to read.
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
            // The client has closed it already.
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

    /// Bytes that arrive between a read that empties the socket and its mark as not ready must still wake the reader.
    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn bytes_that_arrive_while_the_socket_is_marked_as_empty_wake_the_reader() {
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
