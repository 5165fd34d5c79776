//! Several servers that share one store.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{Exchange, ExchangeError, Server, Wire};

/// One server, or several of which the other is asked each time.
#[derive(Debug, Clone)]
pub(crate) struct Servers {
    all: Arc<[Server]>,
    asked: Arc<AtomicUsize>,
}

impl Servers {
    /// There has to be one at least.
    pub(crate) fn new(all: Vec<Server>) -> Self {
        Self {
            all: all.into(),
            asked: Arc::default(),
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.all.len()
    }

    /// The same ones, from the first on.
    pub(crate) fn beginning_again(&self) -> Self {
        Self {
            all: self.all.clone(),
            asked: Arc::default(),
        }
    }

    /// Sends, and comes back while the answer is still to come.
    pub(crate) async fn open(&self, wire: Wire) -> Result<Exchange, ExchangeError> {
        // Servers share locks, but not what their functions remember.
        let index = if wire.asks_for_the_counter() {
            0
        } else {
            self.asked.fetch_add(1, Ordering::Relaxed) % self.all.len()
        };
        self.all[index].open(wire).await
    }
}
