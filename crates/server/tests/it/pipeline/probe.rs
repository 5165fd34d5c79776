//! A server without sockets, and a record of what its functions did.

use std::sync::Arc;
use std::time::Duration;

use forrst_lock::{ListRequest, LockName};
use forrst_protocol::ErrorCode;
use forrst_server::{Context, Server, ServerBuilder};
use forrst_stores::MemoryStore;
use serde_json::{Map, Value, json};
use tokio::task::JoinHandle;
use tokio::time::timeout;

pub(crate) use crate::functions::Seen;
use crate::functions::register;
use crate::wire::{Ask, expect, until};

/// The server, and a record of what its functions did.
#[derive(Clone)]
pub(crate) struct Probe {
    pub(crate) server: Server,
    pub(crate) seen: Seen,
}

impl Probe {
    /// With `test.parent`, which never ends, and spawns a child that notes when it is cancelled.
    pub(crate) fn with_parent() -> Self {
        Self::with(|builder, seen| {
            let seen = seen.clone();
            builder.function(
                "test.parent",
                "1.0.0",
                move |context: Context, _: Map<String, Value>| {
                    let (seen, token) = (seen.clone(), context.cancellation().clone());
                    let child = seen.clone();
                    tokio::spawn(async move {
                        token.cancelled().await;
                        child.note("child cancelled");
                    });
                    async move {
                        let _running = seen.run();
                        std::future::pending::<()>().await;
                        Ok(())
                    }
                },
            )
        })
    }

    pub(crate) fn new() -> Self {
        Self::with(|builder, _| builder)
    }

    /// With additions to the functions that every test has.
    pub(crate) fn with(add: impl FnOnce(ServerBuilder, &Seen) -> ServerBuilder) -> Self {
        let seen = Seen::default();
        let builder = Server::builder()
            .store(Arc::new(MemoryStore::new()))
            .node("node-test");
        let builder = add(register(builder, &seen), &seen);
        Self {
            server: builder.build().unwrap(),
            seen,
        }
    }

    /// Sends a request, and returns the answer, which must match.
    pub(crate) async fn check(&self, request: &Ask, expected: &Value) -> Value {
        let answer = self.call(request).await;
        expect(&answer, expected);
        answer
    }

    pub(crate) async fn call(&self, request: &Ask) -> Value {
        let response = self.server.handle(request.text().as_bytes()).await;
        serde_json::to_value(&response).unwrap()
    }

    /// Sends a request from a task of its own. Aborting the task is a disconnect.
    pub(crate) fn start(&self, request: &Ask) -> JoinHandle<Value> {
        let (probe, request) = (self.clone(), request.clone());
        let too_long = Duration::from_secs(24 * 60 * 60);
        tokio::spawn(async move {
            let answer = timeout(too_long, probe.call(&request)).await;
            answer.expect("the call never ended")
        })
    }

    /// As [`start`](Self::start), and waits until the function runs.
    pub(crate) async fn start_running(&self, request: &Ask) -> JoinHandle<Value> {
        let before = self.seen.started();
        let task = self.start(request);
        until("the function runs", || self.seen.started() > before).await;
        task
    }

    /// As [`start`](Self::start), and waits until the call is in a queue.
    pub(crate) async fn start_waiting(&self, request: &Ask) -> JoinHandle<Value> {
        let before = self.server.locks().waiting();
        let task = self.start(request);
        until("the call waits", || self.server.locks().waiting() > before).await;
        task
    }

    /// The owner that holds the lock with this full key.
    pub(crate) async fn holder(&self, full_key: &str) -> Option<String> {
        let name = LockName::parse(full_key).unwrap();
        let (status, _) = self.server.locks().inspect(&name).await.unwrap();
        status.holder().map(|lease| lease.owner.to_string())
    }

    /// Panics if any lock is held, or any call waits.
    pub(crate) async fn expect_nothing_left(&self) {
        assert_eq!(self.server.locks().waiting(), 0, "a call still waits");
        let request = ListRequest {
            limit: 100,
            ..ListRequest::default()
        };
        let held = self.server.locks().list(&request).await.unwrap().locks;
        assert!(held.is_empty(), "still held: {held:?}");
    }
}

/// The answer to a call that failed with this one error.
pub(crate) fn failed(code: &ErrorCode) -> Value {
    json!({"id": "req_1", "result": null, "errors": [{"code": code, "message": "<text>"}]})
}
