//! A server on a TCP port, for tests.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use forrst_lock::LockStore;
use forrst_server::{Limits, Server};
use forrst_stores::MemoryStore;
pub(crate) use forrst_testkit::asynchronous::soon;
use forrst_testkit::asynchronous::until;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::functions::{Seen, register};

/// A server and its address. It stops on drop.
pub(crate) struct Host {
    pub(crate) server: Server,
    pub(crate) seen: Seen,
    pub(crate) address: SocketAddr,
    serving: JoinHandle<()>,
}

impl Host {
    pub(crate) async fn start() -> Self {
        Self::with(Limits::default()).await
    }

    pub(crate) async fn with(limits: Limits) -> Self {
        Self::on(Arc::new(MemoryStore::new()), limits).await
    }

    pub(crate) async fn on(store: Arc<dyn LockStore>, limits: Limits) -> Self {
        let seen = Seen::default();
        let builder = Server::builder()
            .store(store)
            .node("node-test")
            .allow_host("test")
            .limits(limits);
        let server = register(builder, &seen).build().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = tokio::spawn({
            let server = server.clone();
            async move { server.serve_on(listener).await }
        });
        Self {
            server,
            seen,
            address,
            serving,
        }
    }

    /// Waits until this many calls are in queues.
    #[track_caller]
    pub(crate) fn until_waiting(&self, count: usize) -> impl Future<Output = ()> + use<> {
        let locks = self.server.locks().clone();
        until(&format!("{count} wait"), move || locks.waiting() == count)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// If timers are later than this, a server with `short_timeouts` may close connections that are in time.
pub(crate) const LATE: Duration = Duration::from_millis(100);

/// Timeouts for tests of slow clients.
pub(crate) fn short_timeouts() -> Limits {
    Limits {
        idle_timeout: Duration::from_millis(300),
        body_timeout: Duration::from_millis(300),
        ..Limits::default()
    }
}
