//! `GET /health`, `/ready` and `/metrics`, for orchestrators and Prometheus.

use std::sync::Arc;
use std::time::Duration;

use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, Method, StatusCode};
use hyper::Request;
use tokio::time::timeout;

use super::answer::{Answer, AnswerBody, allow, empty, json};
use super::connection::Connection;
use super::http::{refusal, sender};
use crate::Server;
use crate::system::Health;

/// How long a scrape waits for the counts of the store; Prometheus gives it ten seconds by default.
const COUNTS_TIMEOUT: Duration = Duration::from_secs(2);

/// The process is alive.
pub(super) fn health(method: &Method) -> Answer {
    if !is_read_only(method) {
        return only_get();
    }
    json(StatusCode::OK, &serde_json::json!({"status": "healthy"}))
}

/// Requests can be served: the store is reachable, and the server does not shut down.
pub(super) async fn ready(server: &Server, method: &Method) -> Answer {
    if !is_read_only(method) {
        return only_get();
    }
    if server.is_shutting_down() {
        let body = serde_json::json!({"status": "unhealthy", "message": "shutting down"});
        return json(StatusCode::SERVICE_UNAVAILABLE, &body);
    }
    let core = &server.core;
    let (health, store) = core.store_health.check(core.locks.store()).await;
    let status = match health {
        Health::Unhealthy => StatusCode::SERVICE_UNAVAILABLE,
        Health::Healthy | Health::Degraded => StatusCode::OK,
    };
    json(
        status,
        &serde_json::json!({"status": health.as_str(), "store": store}),
    )
}

/// The metrics, for Prometheus.
pub(super) async fn metrics<B>(
    server: &Server,
    request: Request<B>,
    connection: Option<&Arc<Connection>>,
) -> Answer {
    if !is_read_only(request.method()) {
        return only_get();
    }
    let (parts, _) = request.into_parts();
    let sender = sender(&parts.headers, connection);
    let from = sender.from.as_deref();
    let core = &server.core;
    if let Err(why) = core.authorise_observer("GET /metrics", &sender.credential, from) {
        return refusal(server, why);
    }
    let _authorised = connection.map(Connection::authorised);
    // The store can take long to answer, and the heads of a thousand requests would be kept.
    drop(parts);
    // Without an answer of the store, the other metrics are still sent.
    let counts = timeout(COUNTS_TIMEOUT, core.locks.store().counts()).await;
    let counts = counts.ok().and_then(Result::ok);
    let text = core.metrics.render(counts, core.locks.waiting());
    let mut answer = empty(StatusCode::OK);
    let content_type = HeaderValue::from_static(crate::metrics::CONTENT_TYPE);
    answer.headers_mut().insert(CONTENT_TYPE, content_type);
    *answer.body_mut() = AnswerBody::Whole(text.into());
    answer
}

fn is_read_only(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD)
}

fn only_get() -> Answer {
    allow(empty(StatusCode::METHOD_NOT_ALLOWED), "GET, HEAD")
}
