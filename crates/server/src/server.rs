//! A server: a [`Core`] that answers requests, and the listeners that feed it.

mod builder;
mod shutdown;

use std::sync::Arc;

use forrst_lock::LockService;
use forrst_protocol::Response;

pub use self::builder::{BuildError, ServerBuilder};
use crate::audit::Audit;
use crate::core::{Core, Origin};
use crate::transport::Listeners;

/// A Forrst server. Cheap to clone: all clones are one server.
#[derive(Debug, Clone)]
pub struct Server {
    pub(crate) core: Arc<Core>,
    pub(crate) listeners: Arc<Listeners>,
}

impl Server {
    /// A builder, which needs at least a [`store`](ServerBuilder::store).
    pub fn builder() -> ServerBuilder {
        ServerBuilder::new()
    }

    /// Answers one request, given as the bytes of its body, without a socket and with all rights.
    ///
    /// Dropping the future is a disconnect: a call that waits for a lock leaves the queue, and a function that has started
    /// runs to completion.
    pub async fn handle(&self, body: &[u8]) -> Response {
        self.core.answer(body, Origin::local(None)).await
    }

    /// The locks behind the server, for the service's own use.
    pub fn locks(&self) -> &LockService {
        &self.core.locks
    }

    /// The audit log, for entries of the service itself, and to reopen the file after it was rotated.
    pub fn audit(&self) -> &Audit {
        &self.core.audit
    }

    /// The name of this node.
    pub fn node(&self) -> &str {
        &self.core.node
    }

    /// The names of all registered functions, without the system functions.
    pub fn functions(&self) -> Vec<String> {
        let registry = &self.core.registry;
        let own = registry.iter().filter(|function| !function.is_system);
        let mut names: Vec<String> = own.map(|function| function.name.to_string()).collect();
        names.dedup();
        names
    }
}
