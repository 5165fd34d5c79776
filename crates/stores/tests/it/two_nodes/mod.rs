//! Two stores on one server that act as one: calls alternate between them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, Weak};

use async_trait::async_trait;
use forrst_lock::model::{Command, Outcome};
use forrst_lock::{
    Answer, Capabilities, ListError, ListRequest, LockName, LockStatus, LockStore, Node, Page,
    Secret, StoreError, Ticket, Waiter,
};

#[derive(Debug)]
pub(crate) struct TwoNodes<S> {
    nodes: [S; 2],
    turn: AtomicUsize,
    /// Which node made each call, because only that one can abandon it.
    calls: Mutex<HashMap<Ticket, usize>>,
}

impl<S> TwoNodes<S> {
    pub(crate) fn new(nodes: [S; 2]) -> Self {
        Self {
            nodes,
            turn: AtomicUsize::new(0),
            calls: Mutex::default(),
        }
    }

    fn turn(&self) -> usize {
        self.turn.fetch_add(1, Ordering::Relaxed) % 2
    }

    fn next(&self) -> &S {
        &self.nodes[self.turn()]
    }

    fn node_of(&self, ticket: Ticket) -> &S {
        let node = self.calls.lock().unwrap().get(&ticket).copied();
        &self.nodes[node.unwrap_or(0)]
    }
}

#[async_trait]
impl<S: LockStore> LockStore for TwoNodes<S> {
    fn capabilities(&self) -> Capabilities {
        self.nodes[0].capabilities()
    }

    fn secret(&self) -> Secret {
        self.nodes[0].secret()
    }

    fn subscribe(&self, node: Weak<dyn Node>) {
        for store in &self.nodes {
            store.subscribe(node.clone());
        }
    }

    async fn submit(&self, command: Command) -> Result<Answer<Outcome>, StoreError> {
        let store = match &command {
            Command::Acquire(acquire) => {
                let node = self.turn();
                self.calls.lock().unwrap().insert(acquire.ticket, node);
                &self.nodes[node]
            }
            Command::Abandon { ticket, .. } => self.node_of(*ticket),
            _ => self.next(),
        };
        store.submit(command).await
    }

    fn abandon(&self, name: &LockName, ticket: Ticket) {
        self.node_of(ticket).abandon(name, ticket);
    }

    async fn inspect(&self, name: &LockName) -> Result<Answer<LockStatus>, StoreError> {
        self.next().inspect(name).await
    }

    async fn queue(
        &self,
        name: &LockName,
        limit: usize,
    ) -> Result<Answer<Vec<Waiter>>, StoreError> {
        self.next().queue(name, limit).await
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, ListError> {
        self.next().list(request).await
    }

    async fn sweep(&self, limit: usize) -> Result<usize, StoreError> {
        self.next().sweep(limit).await
    }

    async fn health(&self) -> Result<(), StoreError> {
        self.next().health().await
    }
}
