//! Several servers that share one store and receive requests in turn: a change through one is checked through the others.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{Exchange, ExchangeError, Server, Wire};

/// One server, or several that receive the requests in turn.
#[derive(Debug, Clone)]
pub(crate) struct Servers {
    all: Arc<[Server]>,
    next: Arc<AtomicUsize>,
}

impl Servers {
    /// There must be at least one.
    pub(crate) fn new(all: Vec<Server>) -> Self {
        Self {
            all: all.into(),
            next: Arc::default(),
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.all.len()
    }

    /// The same servers, starting with the first one again.
    pub(crate) fn restarted(&self) -> Self {
        Self {
            all: self.all.clone(),
            next: Arc::default(),
        }
    }

    /// Sends a message to the next server, and returns without waiting for the answer.
    pub(crate) async fn open(&self, wire: Wire) -> Result<Exchange, ExchangeError> {
        // Servers share locks, but not the state of their functions.
        let index = if wire.calls_the_counter() {
            0
        } else {
            self.next.fetch_add(1, Ordering::Relaxed) % self.all.len()
        };
        self.all[index].open(wire).await
    }
}
