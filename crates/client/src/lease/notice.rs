//! The notice of loss, which tasks other than the lease's own can await.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Loss;
use super::tenure::Tenure;

/// Notifies a task of the loss of a [`Lease`](crate::Lease). It no longer fires once the lease was released, kept or dropped.
#[derive(Debug, Clone)]
pub struct LossNotice(Arc<Tenure>);

impl LossNotice {
    pub(super) fn new(tenure: Arc<Tenure>) -> Self {
        Self(tenure)
    }

    /// Waits until the lease is lost, and returns why.
    pub async fn lost(&self) -> Loss {
        self.0.lost().await
    }

    /// Whether it is lost.
    pub fn is_lost(&self) -> bool {
        self.0.loss().is_some()
    }

    /// When it counts as lost, unless it is renewed before.
    pub fn held_until(&self) -> Instant {
        self.0.term().until.instant()
    }

    /// How long it is certainly held.
    pub fn remaining(&self) -> Duration {
        self.0.term().until.remaining()
    }
}
