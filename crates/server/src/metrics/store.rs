//! A store that measures another.

use std::sync::{Arc, Weak};

use async_trait::async_trait;
use forrst_lock::model::{Command, Outcome};
use forrst_lock::{
    Answer, Capabilities, Counts, ListError, ListRequest, LockName, LockStatus, LockStore, Node,
    Page, Secret, StoreError, Ticket, Waiter,
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
        let kind = match &result {
            Err(StoreError::NotDone(_)) => "not_done",
            Err(StoreError::MaybeDone(_)) => "maybe_done",
            // What a store cannot do is the caller's failure.
            Err(StoreError::Unsupported(_)) | Ok(_) => return result,
        };
        let errors = &self.metrics.store_errors;
        errors.get_or_create(&[("kind", kind)]).inc();
        result
    }
}

/// What a command is called in the metrics.
fn operation(command: &Command) -> &'static str {
    match command {
        Command::Acquire(_) => "acquire",
        Command::Abandon { .. } => "abandon",
        Command::Release(_) => "release",
        Command::Extend(..) => "extend",
        Command::ForceRelease { .. } => "force_release",
        Command::Withdraw { .. } => "withdraw",
        Command::Confirm { .. } => "confirm",
        Command::Settle(_) => "settle",
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

    fn subscribe(&self, node: Weak<dyn Node>) {
        self.store.subscribe(node);
    }

    async fn submit(&self, command: Command) -> Result<Answer<Outcome>, StoreError> {
        self.measure(operation(&command), self.store.submit(command))
            .await
    }

    fn abandon(&self, name: &LockName, ticket: Ticket) {
        self.store.abandon(name, ticket);
    }

    async fn close(&self) {
        self.store.close().await;
    }

    async fn inspect(&self, name: &LockName) -> Result<Answer<LockStatus>, StoreError> {
        self.measure("inspect", self.store.inspect(name)).await
    }

    async fn queue(
        &self,
        name: &LockName,
        limit: usize,
    ) -> Result<Answer<Vec<Waiter>>, StoreError> {
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

    async fn sweep(&self, limit: usize) -> Result<usize, StoreError> {
        self.measure("sweep", self.store.sweep(limit)).await
    }

    async fn health(&self) -> Result<(), StoreError> {
        self.measure("health", self.store.health()).await
    }

    async fn broadcast(&self, message: &[u8]) -> Result<(), StoreError> {
        self.measure("broadcast", self.store.broadcast(message))
            .await
    }

    async fn counts(&self) -> Result<Counts, StoreError> {
        self.measure("counts", self.store.counts()).await
    }
}
