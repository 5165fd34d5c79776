//! What all listeners of a server share.

use std::sync::Arc;

use tokio::sync::Semaphore;

use super::Tls;

/// Settings and permits of the listeners, whichever protocol they speak.
#[derive(Debug)]
pub(crate) struct Listeners {
    pub(crate) tls: Option<Tls>,
    /// Hosts that requests may be for, besides this machine's own names.
    pub(crate) allowed_hosts: Vec<String>,
    /// Permits for connections, of all listeners together.
    pub(crate) connections: Arc<Semaphore>,
}
