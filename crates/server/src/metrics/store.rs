//! [`Metered`]: a store around another that measures its operations.

use std::sync::{Arc, Weak};

use async_trait::async_trait;
use forrst_lock::model::{Command, Outcome};
use forrst_lock::{
    Answer, Capabilities, Counts, KeyWatch, ListError, ListRequest, LockName, LockStatus,
    LockStore, Node, Page, Secret, StoreError, Ticket, Waiter,
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
        operation: Operation,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let start = Instant::now();
        let result = work.instrument(span::store(operation.name())).await;
        self.count(operation, start, &result);
        result
    }

    fn count<T>(&self, operation: Operation, start: Instant, result: &Result<T, StoreError>) {
        self.metrics.operations[operation as usize].observe(start.elapsed());
        let kind = match result {
            Err(StoreError::NotDone(_)) => "not_done",
            Err(StoreError::MaybeDone(_)) => "maybe_done",
            // An unsupported request is a mistake of the caller.
            Err(StoreError::Unsupported(_)) | Ok(_) => return,
        };
        let errors = &self.metrics.store_errors;
        errors.get_or_create(&[("kind", kind)]).inc();
    }
}

/// The operations of a store.
#[derive(Debug, Clone, Copy)]
pub(super) enum Operation {
    Acquire,
    Abandon,
    Release,
    Extend,
    ForceRelease,
    Withdraw,
    Confirm,
    Settle,
    Inspect,
    Queue,
    List,
    Sweep,
    Health,
    Counts,
}

impl Operation {
    pub(super) const ALL: [Self; 14] = [
        Self::Acquire,
        Self::Abandon,
        Self::Release,
        Self::Extend,
        Self::ForceRelease,
        Self::Withdraw,
        Self::Confirm,
        Self::Settle,
        Self::Inspect,
        Self::Queue,
        Self::List,
        Self::Sweep,
        Self::Health,
        Self::Counts,
    ];

    /// The label in the metrics.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Acquire => "acquire",
            Self::Abandon => "abandon",
            Self::Release => "release",
            Self::Extend => "extend",
            Self::ForceRelease => "force_release",
            Self::Withdraw => "withdraw",
            Self::Confirm => "confirm",
            Self::Settle => "settle",
            Self::Inspect => "inspect",
            Self::Queue => "queue",
            Self::List => "list",
            Self::Sweep => "sweep",
            Self::Health => "health",
            Self::Counts => "counts",
        }
    }
}

impl From<&Command> for Operation {
    fn from(command: &Command) -> Self {
        match command {
            Command::Acquire(_) => Self::Acquire,
            Command::Abandon { .. } => Self::Abandon,
            Command::Release(_) => Self::Release,
            Command::Extend(..) => Self::Extend,
            Command::ForceRelease { .. } => Self::ForceRelease,
            Command::Withdraw { .. } => Self::Withdraw,
            Command::Confirm { .. } => Self::Confirm,
            Command::Settle(_) => Self::Settle,
        }
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

    fn watch(&self, name: &LockName) -> Option<Box<dyn KeyWatch>> {
        self.store.watch(name)
    }

    async fn submit(&self, command: Command) -> Result<Answer<Outcome>, StoreError> {
        let operation = Operation::from(&command);
        self.measure(operation, self.store.submit(command)).await
    }

    fn submit_now(&self, command: &Command) -> Option<Answer<Outcome>> {
        if span::is_traced() {
            return None;
        }
        let (operation, start) = (Operation::from(command), Instant::now());
        let answer = self.store.submit_now(command)?;
        self.count(operation, start, &Ok(()));
        Some(answer)
    }

    fn abandon(&self, name: &LockName, ticket: Ticket) {
        self.store.abandon(name, ticket);
    }

    async fn close(&self) {
        self.store.close().await;
    }

    async fn inspect(&self, name: &LockName) -> Result<Answer<LockStatus>, StoreError> {
        self.measure(Operation::Inspect, self.store.inspect(name))
            .await
    }

    async fn queue(
        &self,
        name: &LockName,
        limit: usize,
    ) -> Result<Answer<Vec<Waiter>>, StoreError> {
        self.measure(Operation::Queue, self.store.queue(name, limit))
            .await
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, ListError> {
        // An invalid cursor is a mistake of the caller, not a failure of the store.
        let list = async {
            match self.store.list(request).await {
                Err(ListError::Store(error)) => Err(error),
                page => Ok(page),
            }
        };
        self.measure(Operation::List, list).await?
    }

    async fn sweep(&self, limit: usize) -> Result<usize, StoreError> {
        self.measure(Operation::Sweep, self.store.sweep(limit))
            .await
    }

    async fn health(&self) -> Result<(), StoreError> {
        self.measure(Operation::Health, self.store.health()).await
    }

    async fn counts(&self) -> Result<Counts, StoreError> {
        self.measure(Operation::Counts, self.store.counts()).await
    }
}
