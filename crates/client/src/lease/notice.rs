//! Telling others of the loss.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Loss;
use super::tenure::Tenure;

/// Tells of the loss of a [`Lease`](crate::Lease), also in other tasks. After the lease was released, kept or dropped it does not
/// fire any more.
#[derive(Debug, Clone)]
pub struct LossNotice(Arc<Tenure>);

impl LossNotice {
    pub(super) fn new(tenure: Arc<Tenure>) -> Self {
        Self(tenure)
    }

    /// Returns when the lease is lost, and says why.
    pub async fn lost(&self) -> Loss {
        self.0.lost().await
    }

    /// Whether it is lost by now.
    pub fn is_lost(&self) -> bool {
        self.0.loss().is_some()
    }

    /// The moment from which on it counts as lost, unless it is renewed before.
    pub fn held_until(&self) -> Instant {
        self.0.term().until.instant()
    }

    /// How long it is held for certain.
    pub fn remaining(&self) -> Duration {
        self.0.term().until.remaining()
    }
}
