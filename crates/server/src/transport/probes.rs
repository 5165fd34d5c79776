//! `GET /health`, `/ready` and `/metrics`: what orchestrators and Prometheus ask.

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

/// Prometheus gives a scrape ten seconds.
const COUNTS_PATIENCE: Duration = Duration::from_secs(2);

/// The process is there and answers.
pub(super) fn health(method: &Method) -> Answer {
    if !is_read_only(method) {
        return only_get();
    }
    json(StatusCode::OK, &serde_json::json!({"status": "healthy"}))
}

/// Requests can be served: the store is reachable, and the server is not about to end.
pub(super) async fn ready(server: &Server, method: &Method) -> Answer {
    if !is_read_only(method) {
        return only_get();
    }
    if server.is_shutting_down() {
        let body = serde_json::json!({"status": "unhealthy", "message": "shutting down"});
        return json(StatusCode::SERVICE_UNAVAILABLE, &body);
    }
    let core = &server.core;
    let (health, store) = core.store_health.of(core.locks.store()).await;
    let status = match health {
        Health::Unhealthy => StatusCode::SERVICE_UNAVAILABLE,
        Health::Healthy | Health::Degraded => StatusCode::OK,
    };
    json(
        status,
        &serde_json::json!({"status": health.as_str(), "store": store}),
    )
}

/// What was counted, for Prometheus.
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
    if let Err(why) = core.let_look("GET /metrics", &sender.credential, from) {
        return refusal(server, why);
    }
    let _authorised = connection.map(Connection::authorised);
    // The store can take its time, and a thousand heads would wait with it.
    drop(parts);
    // A store that does not answer must not keep the rest from being read.
    let counts = timeout(COUNTS_PATIENCE, core.locks.store().counts()).await;
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
