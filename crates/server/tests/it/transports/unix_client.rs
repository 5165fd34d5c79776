//! A server on a unix socket, and a client that writes raw frames.

use std::path::{Path, PathBuf};

use forrst_server::Server;
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::task::JoinHandle;

use crate::transports::host::{Host, soon};
use crate::wire::until;

/// A path for a socket, in a folder that is removed on drop.
pub(crate) struct SocketPath {
    _folder: TempDir,
    path: PathBuf,
}

impl SocketPath {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self {
            path: folder.path().join("socket"),
            _folder: folder,
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Serves on the socket, and waits until clients can connect.
    pub(crate) async fn serve(&self, server: &Server) -> JoinHandle<std::io::Result<()>> {
        let serving = tokio::spawn({
            let (server, path) = (server.clone(), self.path.clone());
            async move { server.serve_unix(path).await }
        });
        let can_connect = || std::os::unix::net::UnixStream::connect(&self.path).is_ok();
        until("the socket can be connected to", can_connect).await;
        serving
    }
}

/// A host that listens on a unix socket as well.
pub(crate) struct UnixHost {
    pub(crate) host: Host,
    pub(crate) socket: SocketPath,
    serving: JoinHandle<std::io::Result<()>>,
}

impl UnixHost {
    pub(crate) async fn start(host: Host) -> Self {
        let socket = SocketPath::new();
        let serving = socket.serve(&host.server).await;
        Self {
            host,
            socket,
            serving,
        }
    }
}

impl Drop for UnixHost {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

pub(crate) struct Frames(UnixStream);

/// A frame with this text.
pub(crate) fn frame(text: &str) -> Vec<u8> {
    let mut frame = u32::try_from(text.len()).unwrap().to_be_bytes().to_vec();
    frame.extend_from_slice(text.as_bytes());
    frame
}

impl Frames {
    pub(crate) async fn connect(socket: &SocketPath) -> Self {
        Self(soon(UnixStream::connect(&socket.path)).await.unwrap())
    }

    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        soon(self.0.write_all(bytes.as_ref())).await.unwrap();
    }

    /// The next answer; `None` if the server has closed the connection.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        let length = soon(self.0.read_u32()).await.ok()?;
        let mut body = vec![0; usize::try_from(length).unwrap()];
        soon(self.0.read_exact(&mut body)).await.unwrap();
        Some(serde_json::from_slice(&body).unwrap())
    }

    pub(crate) async fn answer(&mut self) -> Value {
        self.next().await.expect("the connection ended")
    }
}
