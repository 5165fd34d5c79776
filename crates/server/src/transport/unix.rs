//! Forrst requests and responses as frames over a unix socket: four bytes of length, big-endian, then the JSON.
//!
//! Responses come in the order in which they are ready; their `id` says whose they are.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use forrst_protocol::{ErrorCode, ErrorObject, Response};
use futures_util::StreamExt;
use tokio::net::{UnixListener, UnixStream};
use tokio_util::codec::{FramedRead, FramedWrite, LengthDelimitedCodec};

use super::serve::accept_error;
use super::session::{self, Incoming, Rules};
use crate::Server;
use crate::server::Origin;

impl Server {
    /// Serves on a unix socket until the server shuts down. Only the user who runs the server may connect.
    ///
    /// # Errors
    ///
    /// When the socket cannot be made: another server listens on it, or the path is no socket.
    pub async fn serve_unix(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let listener = bind(path.as_ref()).await?;
        let draining = &self.shared.draining;
        loop {
            let accepted = tokio::select! {
                () = draining.cancelled() => break,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, _)) => {
                    let server = self.clone();
                    self.shared
                        .tasks
                        .spawn(async move { run(stream, &server).await });
                }
                Err(error) => accept_error(&error).await,
            }
        }
        let _ = std::fs::remove_file(path);
        Ok(())
    }
}

/// A socket file that nobody listens on is left from a server that was killed.
async fn bind(path: &Path) -> io::Result<UnixListener> {
    use std::os::unix::fs::FileTypeExt;
    if let Ok(metadata) = std::fs::symlink_metadata(path) {
        if !metadata.file_type().is_socket() {
            let message = format!("{} is there and is no socket", path.display());
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

async fn run(stream: UnixStream, server: &Server) {
    let limits = &server.shared.limits;
    let rules = Rules {
        max_in_flight: limits.max_in_flight,
        // A neighbour on the same machine may stay connected; a broken connection is seen at once.
        idle_timeout: Duration::from_secs(24 * 60 * 60),
        keep_alive: None,
        goodbye: None,
        draining: server.shared.draining.clone(),
    };
    let codec = LengthDelimitedCodec::builder()
        .max_frame_length(limits.max_body)
        .new_codec();
    let (reader, writer) = stream.into_split();
    let mut is_broken = false;
    // A frame that is too large gets its answer, and is the last: where the next one starts is not known.
    let incoming = FramedRead::new(reader, codec)
        .take_while(move |frame| {
            let goes_on = !is_broken;
            is_broken = frame.is_err();
            std::future::ready(goes_on)
        })
        .map(Incoming::Request);
    let mut codec = LengthDelimitedCodec::new();
    codec.set_max_frame_length(u32::MAX as usize);
    let outgoing = FramedWrite::new(writer, codec);
    let max_body = limits.max_body;
    session::run(incoming, outgoing, rules, |frame: io::Result<_>| {
        let server = server.clone();
        async move {
            let response = match frame {
                Ok(frame) => server.answer(&frame, Origin::now()).await,
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    let message = format!("The frame is larger than {max_body} bytes");
                    let error = ErrorObject::new(ErrorCode::InvalidRequest, message);
                    Response::failure(None, error).with_node(server.node())
                }
                Err(_) => return None,
            };
            serde_json::to_vec(&response).map(Bytes::from).ok()
        }
    })
    .await;
}
