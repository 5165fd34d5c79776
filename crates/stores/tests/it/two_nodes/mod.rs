//! Two stores on one Redis that look like one: every call goes to the other one in turn.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use forrst_lock::state::{Acquire, Acquired, Extend, ForceRelease, NotHeld, Release};
use forrst_lock::{
    Answer, Capabilities, Lease, ListError, ListRequest, LockName, LockStatus, LockStore, Page,
    Settled, StoreError, Ticket, Waiter, Waiting,
};
use forrst_stores::RedisStore;

#[derive(Debug)]
pub(crate) struct TwoNodes {
    nodes: [RedisStore; 2],
    turn: AtomicUsize,
    /// A call is given up where it was made.
    calls: Mutex<HashMap<Ticket, usize>>,
}

impl TwoNodes {
    pub(crate) fn new(nodes: [RedisStore; 2]) -> Self {
        Self {
            nodes,
            turn: AtomicUsize::new(0),
            calls: Mutex::default(),
        }
    }

    fn turn(&self) -> usize {
        self.turn.fetch_add(1, Ordering::Relaxed) % 2
    }

    fn next(&self) -> &RedisStore {
        &self.nodes[self.turn()]
    }
}

#[async_trait]
impl LockStore for TwoNodes {
    fn capabilities(&self) -> Capabilities {
        self.nodes[0].capabilities()
    }

    fn secret(&self) -> forrst_lock::Secret {
        self.nodes[0].secret()
    }

    async fn acquire(
        &self,
        name: &LockName,
        command: Acquire<Waiter>,
    ) -> Result<Answer<Acquired>, StoreError> {
        let node = self.turn();
        let ticket = command.claim.ticket;
        self.calls.lock().unwrap().insert(ticket, node);
        self.nodes[node].acquire(name, command).await
    }

    fn abandon(&self, name: &LockName, ticket: Ticket) {
        let node = self.calls.lock().unwrap().get(&ticket).copied();
        self.nodes[node.unwrap_or(0)].abandon(name, ticket);
    }

    async fn release(
        &self,
        name: &LockName,
        command: Release,
    ) -> Result<Answer<Result<Lease, NotHeld>>, StoreError> {
        self.next().release(name, command).await
    }

    async fn extend(
        &self,
        name: &LockName,
        command: Extend,
    ) -> Result<Answer<Result<Lease, NotHeld>>, StoreError> {
        self.next().extend(name, command).await
    }

    async fn force_release(
        &self,
        name: &LockName,
        command: ForceRelease,
    ) -> Result<Answer<Result<Lease, NotHeld>>, StoreError> {
        self.next().force_release(name, command).await
    }

    async fn settle(&self, name: &LockName) -> Result<Answer<Settled>, StoreError> {
        self.next().settle(name).await
    }

    async fn inspect(&self, name: &LockName) -> Result<Answer<Option<LockStatus>>, StoreError> {
        self.next().inspect(name).await
    }

    async fn queue(
        &self,
        name: &LockName,
        limit: usize,
    ) -> Result<Answer<Vec<Waiting>>, StoreError> {
        self.next().queue(name, limit).await
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, ListError> {
        self.next().list(request).await
    }

    async fn expire(&self, limit: usize) -> Result<Vec<Lease>, StoreError> {
        self.next().expire(limit).await
    }

    async fn health(&self) -> Result<(), StoreError> {
        self.next().health().await
    }
}
