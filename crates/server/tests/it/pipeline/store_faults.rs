//! A store that is unavailable: nothing runs without its lock, and what failed is retried.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use axum::body::Body;
use axum::http::Request;
use forrst_lock::model::{Command, Outcome};
use forrst_lock::{
    Answer, Capabilities, ListError, ListRequest, LockName, LockStatus, LockStore, Node, Page,
    StoreError, Ticket, Waiter,
};
use forrst_protocol::ErrorCode;
use forrst_stores::MemoryStore;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::pipeline::probe::{Probe, failed};
use crate::wire::{LOCK, RETRY, ask, data, expect, seconds, until};

/// The memory store behind a connection that can be cut.
#[derive(Debug, Default)]
struct Cable {
    store: MemoryStore,
    is_pulled: AtomicBool,
    health_checks: AtomicUsize,
}

impl Cable {
    fn pull(&self, pull: bool) {
        self.is_pulled.store(pull, Ordering::SeqCst);
    }

    fn pass(&self) -> Result<(), StoreError> {
        if self.is_pulled.load(Ordering::SeqCst) {
            Err(StoreError::NotDone("10.0.0.7:6379 is unreachable".into()))
        } else {
            Ok(())
        }
    }
}

#[async_trait]
impl LockStore for Cable {
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    fn secret(&self) -> forrst_lock::Secret {
        self.store.secret()
    }

    fn subscribe(&self, node: Weak<dyn Node>) {
        self.store.subscribe(node);
    }

    async fn submit(&self, command: Command) -> Result<Answer<Outcome>, StoreError> {
        self.pass()?;
        self.store.submit(command).await
    }

    fn abandon(&self, name: &LockName, ticket: Ticket) {
        self.store.abandon(name, ticket);
    }

    async fn inspect(&self, name: &LockName) -> Result<Answer<LockStatus>, StoreError> {
        self.pass()?;
        self.store.inspect(name).await
    }

    async fn queue(
        &self,
        name: &LockName,
        limit: usize,
    ) -> Result<Answer<Vec<Waiter>>, StoreError> {
        self.pass()?;
        self.store.queue(name, limit).await
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, ListError> {
        self.pass()?;
        self.store.list(request).await
    }

    async fn sweep(&self, limit: usize) -> Result<usize, StoreError> {
        self.pass()?;
        self.store.sweep(limit).await
    }

    async fn health(&self) -> Result<(), StoreError> {
        self.health_checks.fetch_add(1, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(1)).await;
        self.pass()
    }
}

fn cabled() -> (Probe, Arc<Cable>) {
    let cable = Arc::new(Cable::default());
    let store = cable.clone();
    (Probe::with(|builder, _| builder.store(store)), cable)
}

#[tokio::test(start_paused = true)]
async fn a_function_that_needs_a_lock_is_not_run_without_the_store() {
    let (probe, cable) = cabled();
    cable.pull(true);
    for options in [
        json!({"key": "k"}),
        json!({"key": "k", "block": seconds(5)}),
    ] {
        let request = ask("test.echo").lock(options).with(RETRY, Value::Null);
        let answer = probe
            .check(&request, &failed(&ErrorCode::Unavailable))
            .await;
        expect(data(&answer, LOCK), &json!({"key": "k", "acquired": false}));
        expect(data(&answer, RETRY), &json!({"allowed": true}));
        assert!(!answer.to_string().contains("10.0.0.7"), "{answer}");
    }
    assert_eq!(probe.seen.started(), 0);
    // A call without a lock needs no store.
    probe.check(&ask("test.echo"), &json!({"result": {}})).await;
    cable.pull(false);
    probe
        .check(
            &ask("test.echo").lock(json!({"key": "k"})),
            &json!({"result": {}}),
        )
        .await;
    probe.expect_nothing_left().await;
}

#[tokio::test(start_paused = true)]
async fn system_functions_report_an_unavailable_store() {
    let (probe, cable) = cabled();
    cable.pull(true);
    let lock = |name: &str| format!("urn:cline:forrst:ext:atomic-lock:fn:{name}");
    for (function, arguments) in [
        ("acquire", json!({"key": "k", "ttl": seconds(5)})),
        ("release", json!({"key": "lock:k", "owner": "o"})),
        (
            "extend",
            json!({"key": "lock:k", "owner": "o", "ttl": seconds(5)}),
        ),
        ("force-release", json!({"key": "lock:k"})),
        ("status", json!({"key": "lock:k"})),
        ("list", json!({})),
    ] {
        let request = ask(&lock(function)).arguments(arguments);
        probe
            .check(&request, &failed(&ErrorCode::Unavailable))
            .await;
    }
    let unwell = json!({"status": "unhealthy", "message": "<text>"});
    let expected = json!({"result": {"status": "unhealthy", "components": {"store": unwell, "self": {"status": "healthy"}}}});
    let health = ask("urn:cline:forrst:fn:health");
    let answer = probe.check(&health, &expected).await;
    assert!(!answer.to_string().contains("10.0.0.7"), "{answer}");
    let itself = health.clone().arguments(json!({"component": "self"}));
    probe
        .check(
            &itself,
            &json!({"result": {"status": "healthy", "components": {"store": "<absent>"}}}),
        )
        .await;
    cable.pull(false);
    // The last result of the health check counts for a second.
    tokio::time::advance(Duration::from_secs(1)).await;
    probe
        .check(&health, &json!({"result": {"status": "healthy"}}))
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_release_that_fails_is_retried() {
    let (probe, cable) = cabled();
    let call = probe
        .start_running(&ask("test.gate").lock(json!({"key": "k"})))
        .await;
    cable.pull(true);
    probe.seen.open_gate();
    // The function has run, and its caller gets the result.
    expect(
        &call.await.unwrap(),
        &json!({"result": {"fence": "<fence>"}, "errors": "<absent>"}),
    );
    cable.pull(false);
    assert!(probe.holder("lock:test.gate:k").await.is_some());
    let next = ask("test.gate").lock(json!({"key": "k", "block": seconds(5)}));
    let next = probe.start_running(&next).await;
    probe.seen.open_gate();
    expect(&next.await.unwrap(), &json!({"errors": "<absent>"}));
    probe.expect_nothing_left().await;
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_fails_once_is_retried_and_keeps_the_lease() {
    let (probe, cable) = cabled();
    let renewed = json!({"key": "k", "ttl": seconds(3), "renew": true});
    let call = probe.start_running(&ask("test.gate").lock(renewed)).await;
    let started = tokio::time::Instant::now();
    until("a second is over", || started.elapsed().as_millis() > 900).await;
    cable.pull(true);
    until("another second is over", || {
        started.elapsed().as_millis() > 1_900
    })
    .await;
    cable.pull(false);
    until("the first ttl is long over", || {
        started.elapsed().as_secs() > 6
    })
    .await;
    assert!(probe.holder("lock:test.gate:k").await.is_some());
    probe.seen.open_gate();
    call.await.unwrap();
    probe.expect_nothing_left().await;
}

/// The text of `GET /metrics`.
async fn metrics(probe: &Probe) -> String {
    let request = Request::get("/metrics").body(Body::empty()).unwrap();
    let answer = probe.server.router().oneshot(request).await.unwrap();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(body.to_vec()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn failures_of_the_store_are_counted_and_no_metric_says_that_nothing_is_held() {
    let (probe, cable) = cabled();
    let before = metrics(&probe).await;
    assert!(before.contains("\nlocks_held 0\n"), "{before}");
    assert!(
        before.contains("store_errors_total{kind=\"not_done\"} 0"),
        "{before}"
    );
    cable.pull(true);
    let request = ask("test.echo").lock(json!({"key": "k"}));
    probe
        .check(&request, &failed(&ErrorCode::Unavailable))
        .await;
    let after = metrics(&probe).await;
    assert!(!after.contains("\nlocks_held "), "{after}");
    assert!(
        !after.contains("store_errors_total{kind=\"not_done\"} 0"),
        "{after}"
    );
    assert!(
        after.contains("lock_acquire_total{result=\"error\"} 1"),
        "{after}"
    );
}

async fn is_ready(probe: &Probe) -> bool {
    let request = Request::get("/ready").body(Body::empty()).unwrap();
    let answer = probe.server.router().oneshot(request).await.unwrap();
    answer.status() == 200
}

#[tokio::test(start_paused = true)]
async fn the_health_of_the_store_is_checked_once_a_second() {
    let (probe, cable) = cabled();
    let checks = || cable.health_checks.load(Ordering::SeqCst);
    let probes = (0..300).map(|_| is_ready(&probe));
    let ready = futures_util::future::join_all(probes).await;
    assert!(ready.into_iter().all(|is_ready| is_ready));
    probe.call(&ask("urn:cline:forrst:fn:health")).await;
    assert_eq!(checks(), 1, "checks for 301 requests");
    cable.pull(true);
    assert!(is_ready(&probe).await, "as it was a moment ago");
    tokio::time::advance(Duration::from_secs(1)).await;
    assert!(!is_ready(&probe).await);
    assert_eq!(checks(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_disconnect_does_not_cancel_the_health_check() {
    let (probe, cable) = cabled();
    for _ in 0..10 {
        let asked = tokio::time::timeout(Duration::from_micros(10), is_ready(&probe));
        let _ = asked.await;
    }
    assert!(is_ready(&probe).await);
    assert_eq!(cable.health_checks.load(Ordering::SeqCst), 1);
}
