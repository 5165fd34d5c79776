//! A store that measures another.

use std::sync::Arc;

use async_trait::async_trait;
use forrst_lock::state::{Acquire, Acquired, Extend, ForceRelease, Release};
use forrst_lock::{
    Answer, Capabilities, Lease, ListError, ListRequest, LockName, LockStatus, LockStore, NotHeld,
    Page, Secret, Settled, StoreError, Ticket, Waiter, Waiting,
};
use tokio::time::Instant;
use tracing::Instrument;

use super::Metrics;
use crate::span;

/// Times every operation of the store inside, and counts its failures.
#[derive(Debug)]
pub(crate) struct Metered {
    store: Arc<dyn LockStore>,
    metrics: Arc<Metrics>,
}

impl Metered {
    pub(crate) fn new(store: Arc<dyn LockStore>, metrics: Arc<Metrics>) -> Self {
        Self { store, metrics }
    }

    async fn measure<T>(
        &self,
        operation: &'static str,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let start = Instant::now();
        let result = work.instrument(span::store(operation)).await;
        let times = &self.metrics.operations;
        times
            .get_or_create(&[("op", operation)])
            .observe(start.elapsed().as_secs_f64());
        if let Err(error) = &result {
            let kind = match error {
                StoreError::NotDone(_) => "not_done",
                StoreError::MaybeDone(_) => "maybe_done",
            };
            let errors = &self.metrics.store_errors;
            errors.get_or_create(&[("kind", kind)]).inc();
        }
        result
    }
}

#[async_trait]
impl LockStore for Metered {
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    fn secret(&self) -> Secret {
        self.store.secret()
    }

    async fn acquire(
        &self,
        name: &LockName,
        command: Acquire<Waiter>,
    ) -> Result<Answer<Acquired>, StoreError> {
        self.measure("acquire", self.store.acquire(name, command))
            .await
    }

    fn abandon(&self, name: &LockName, ticket: Ticket) {
        self.store.abandon(name, ticket);
    }

    async fn close(&self) {
        self.store.close().await;
    }

    async fn release(
        &self,
        name: &LockName,
        command: Release,
    ) -> Result<Answer<Result<Lease, NotHeld>>, StoreError> {
        self.measure("release", self.store.release(name, command))
            .await
    }

    async fn extend(
        &self,
        name: &LockName,
        command: Extend,
    ) -> Result<Answer<Result<Lease, NotHeld>>, StoreError> {
        self.measure("extend", self.store.extend(name, command))
            .await
    }

    async fn force_release(
        &self,
        name: &LockName,
        command: ForceRelease,
    ) -> Result<Answer<Result<Lease, NotHeld>>, StoreError> {
        self.measure("force_release", self.store.force_release(name, command))
            .await
    }

    async fn settle(&self, name: &LockName) -> Result<Answer<Settled>, StoreError> {
        self.measure("settle", self.store.settle(name)).await
    }

    async fn inspect(&self, name: &LockName) -> Result<Answer<Option<LockStatus>>, StoreError> {
        self.measure("inspect", self.store.inspect(name)).await
    }

    async fn queue(
        &self,
        name: &LockName,
        limit: usize,
    ) -> Result<Answer<Vec<Waiting>>, StoreError> {
        self.measure("queue", self.store.queue(name, limit)).await
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, ListError> {
        // A cursor that is wrong is the caller's failure, not the store's.
        let list = async {
            match self.store.list(request).await {
                Err(ListError::Store(error)) => Err(error),
                page => Ok(page),
            }
        };
        self.measure("list", list).await?
    }

    async fn expire(&self, limit: usize) -> Result<Vec<Lease>, StoreError> {
        self.measure("expire", self.store.expire(limit)).await
    }

    async fn health(&self) -> Result<(), StoreError> {
        self.measure("health", self.store.health()).await
    }

    async fn held(&self) -> Result<usize, StoreError> {
        self.measure("held", self.store.held()).await
    }
}
