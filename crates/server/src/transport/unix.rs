//! Forrst requests and responses as frames over a unix socket: four bytes of length, big-endian, then the JSON.
//!
//! Responses are sent in the order in which they are ready; clients match them by `id`.

use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use forrst_protocol::{ErrorCode, ErrorObject, Response};
use futures_util::{SinkExt, StreamExt, stream};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::timeout;
use tokio_util::codec::{FramedRead, FramedWrite, LengthDelimitedCodec};

use super::answer::to_json;
use super::intake::{Intake, LimitedStream};
use super::interrupt::run_until;
use super::listeners::ConnectionPermit;
use super::serve::AcceptErrors;
use super::session::{self, Incoming, Rules, SessionAccount};
use super::socket::Socket;
use crate::Server;
use crate::access::Credential;
use crate::core::Origin;
use crate::limits::Refusal;

/// A local client may be silent for long; its disconnect is noticed at once.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60 * 60);

/// Answers are buffered up to this many bytes, and then written at once.
const WRITTEN_AT_ONCE: usize = 256 * 1024;

/// How long a client that is refused has to read that.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(1);

impl Server {
    /// Serves on a unix socket until the server shuts down. Only the user who runs the server may connect, without a key, because
    /// that user can also read the keys file and the store.
    ///
    /// # Errors
    ///
    /// If the socket cannot be created: another server listens on it, or the path is not a socket.
    pub async fn serve_unix(&self, path: impl AsRef<Path>) -> io::Result<()> {
        self.bind_unix(path.as_ref()).await?.await;
        Ok(())
    }

    /// As [`serve_unix`](Self::serve_unix), in two steps: clients can connect as soon as this returns, and are served while the
    /// returned future is awaited.
    ///
    /// # Errors
    ///
    /// If the socket cannot be created.
    pub async fn bind_unix(
        &self,
        path: &Path,
    ) -> io::Result<impl Future<Output = ()> + Send + use<>> {
        let path = path.to_owned();
        let listener = bind(&path).await?;
        let owner = std::fs::metadata(&path)?.uid();
        let server = self.clone();
        Ok(async move {
            let mut errors = AcceptErrors::default();
            loop {
                let accepted = tokio::select! {
                    () = server.core.draining.cancelled() => break,
                    accepted = listener.accept() => accepted,
                };
                match accepted {
                    Ok((stream, _)) if is_from_another_user(&stream, owner) => drop(stream),
                    Ok((stream, _)) => {
                        let permit = server.listeners.admit(None, &server.core.metrics);
                        let connection = server.clone();
                        let serve = async move { run(stream, &connection, permit).await };
                        server.core.tasks.spawn(serve);
                    }
                    Err(error) => errors.note(&error).await,
                }
            }
            let _ = std::fs::remove_file(path);
        })
    }
}

/// Binds the socket. A socket file without a listener is left over from a server that was killed, and is replaced.
async fn bind(path: &Path) -> io::Result<UnixListener> {
    use std::os::unix::fs::FileTypeExt;
    if let Ok(metadata) = std::fs::symlink_metadata(path) {
        if !metadata.file_type().is_socket() {
            let message = format!("{} exists and is not a socket", path.display());
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, message));
        }
        if UnixStream::connect(path).await.is_ok() {
            let message = format!("another server listens on {}", path.display());
            return Err(io::Error::new(io::ErrorKind::AddrInUse, message));
        }
        std::fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Another user may have connected before the mode of the file was set.
fn is_from_another_user(stream: &UnixStream, owner: u32) -> bool {
    let peer = stream.peer_cred();
    !peer.is_ok_and(|peer| peer.uid() == owner || peer.uid() == 0)
}

async fn run(stream: UnixStream, server: &Server, permit: Option<ConnectionPermit>) {
    let socket = Socket::from(stream);
    let writer = socket.clone();
    let intake = Arc::<Intake>::default();
    let reader = LimitedStream::new(socket.clone(), intake.clone());
    let mut codec = LengthDelimitedCodec::new();
    codec.set_max_frame_length(u32::MAX as usize);
    let mut outgoing = FramedWrite::new(writer, codec);
    // Answers that are ready together are written together.
    outgoing.set_backpressure_boundary(WRITTEN_AT_ONCE);
    if permit.is_none() {
        let error = ErrorObject::new(ErrorCode::Unavailable, "Too many connections are open");
        let _ = timeout(REFUSAL_TIMEOUT, outgoing.send(refusal(server, error))).await;
        return;
    }
    let limits = &server.core.limits;
    let from: Arc<str> = "unix".into();
    let rules = Rules {
        max_in_flight: limits.max_in_flight,
        account: SessionAccount::new(server, &Credential::Local, Some(from.clone()), intake),
        idle_timeout: IDLE_TIMEOUT,
        notifications: stream::pending().boxed(),
        keep_alive: None,
        close: None,
        too_slow: too_slow(server),
        draining: server.core.draining.child_token(),
        metrics: server.core.metrics.clone(),
    };
    let codec = LengthDelimitedCodec::builder()
        .max_frame_length(limits.max_body)
        .new_codec();
    // After a frame that is too large, the start of the next one is not known.
    let incoming = FramedRead::new(reader, codec)
        .take_while(|frame| std::future::ready(!is_broken_connection(frame)))
        .map(|frame| match frame {
            Ok(frame) => Incoming::Request(frame),
            Err(_) => Incoming::Violation(too_large(server)),
        });
    let answer = |frame: BytesMut, room| {
        let server = server.clone();
        let mut origin = Origin::local(Some(from.clone()));
        match room {
            Ok(room) => origin.room = room,
            Err(refusal) => origin.refusal = Some(refusal),
        }
        async move {
            let response = server.core.answer(frame, origin).await;
            Some(to_json("", &response, "").into())
        }
    };
    let session = session::run(incoming, outgoing, rules, |_| 1, answer);
    run_until(session, socket.disconnected()).await;
}

fn is_broken_connection(frame: &io::Result<BytesMut>) -> bool {
    let error = frame.as_ref().err();
    error.is_some_and(|error| error.kind() != io::ErrorKind::InvalidData)
}

fn too_slow(server: &Server) -> Bytes {
    let message = "The frame did not arrive in time";
    refusal(server, ErrorObject::new(ErrorCode::InvalidRequest, message))
}

fn too_large(server: &Server) -> Bytes {
    server.core.metrics.refused(Refusal::Body);
    let max_body = server.core.limits.max_body;
    let message = format!("The frame is larger than {max_body} bytes");
    refusal(server, ErrorObject::new(ErrorCode::InvalidRequest, message))
}

fn refusal(server: &Server, error: ErrorObject) -> Bytes {
    let response = Response::failure(None, error).with_node(server.node());
    to_json("", &response, "").into()
}
