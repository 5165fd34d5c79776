//! The routes of HTTP requests.
//!
//! The frequent paths, `/forrst` and `/rpc`, are matched by comparison, before any router. The routes can be mounted into an axum
//! application, be served by [`Server::serve`], or be called as a [`tower::Service`].

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::http::header::{CONNECTION, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode, Uri};
use axum::response::Response;
use axum::{Extension, Router};
use bytes::Bytes;
use forrst_protocol::{ErrorCode, ErrorObject, excerpt};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use hyper::Request;
use hyper::body::Body as HttpBody;
use tokio::time::timeout;
use tower::ServiceExt;

use super::answer::{Answer, AnswerBody, json};
use super::body::{RequestBody, drain};
use super::connection::{Connection, UnderWay};
use super::host_check::HostCheck;
use super::{http, probes};
use crate::Server;

/// The paths that an application can mount.
const PATHS: [&str; 5] = ["/forrst", "/rpc", "/health", "/ready", "/metrics"];

/// The message of a full server.
pub(super) const FULL: &str = "Too many connections are open";

/// How long a client of a full server may take to send its one request.
pub(super) const FULL_REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// The dashboard, and the answer to unknown paths.
static OTHERS: LazyLock<Router> = LazyLock::new(|| Server::dashboard().fallback(unknown_path));

/// The routes of a server, with the host check of one listener. Cheap to clone.
#[derive(Clone)]
pub(super) struct Routes {
    server: Server,
    hosts: Arc<HostCheck>,
}

impl Server {
    /// The server's routes, to be mounted into an application.
    ///
    /// They are `/forrst`, `/rpc`, `/health`, `/ready` and `/metrics`. Only [`serve`](Self::serve) limits connections and silent
    /// clients; an application that mounts the routes has to do so itself. The server does not know the address on which the
    /// application listens, so the routes answer for `localhost`, loopback addresses, and the hosts of
    /// [`allow_host`](crate::ServerBuilder::allow_host), as on a loopback address.
    pub fn router(&self) -> Router {
        let routes = Routes::mounted(self);
        let service = tower::service_fn(move |request| routes.clone().respond(request));
        PATHS.iter().fold(Router::new(), |router, path| {
            router.route_service(path, service.clone())
        })
    }
}

/// Answers HTTP requests by the routes of [`router`](Server::router), without a socket: for tests, and for whatever mounts a
/// [`tower::Service`].
impl<B> tower::Service<Request<B>> for Server
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<axum::BoxError>,
{
    type Response = Response;
    type Error = Infallible;
    type Future = ServiceFuture<Response>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let routes = Routes::mounted(self);
        ServiceFuture(routes.respond(request.map(Body::new)).boxed())
    }
}

/// Answers requests of the protocol, given as the bytes of their bodies: [`Server::handle`], to be wrapped in layers.
impl tower::Service<Bytes> for Server {
    type Response = forrst_protocol::Response;
    type Error = Infallible;
    type Future = ServiceFuture<forrst_protocol::Response>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, body: Bytes) -> Self::Future {
        let server = self.clone();
        ServiceFuture(async move { Ok(server.handle(&body).await) }.boxed())
    }
}

/// The answer of a [`Server`] that is called as a [`tower::Service`].
pub struct ServiceFuture<T>(BoxFuture<'static, Result<T, Infallible>>);

impl<T> Future for ServiceFuture<T> {
    type Output = Result<T, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll_unpin(cx)
    }
}

impl Routes {
    pub(super) fn new(server: &Server, hosts: Arc<HostCheck>) -> Self {
        Self {
            server: server.clone(),
            hosts,
        }
    }

    pub(super) fn server(&self) -> &Server {
        &self.server
    }

    fn mounted(server: &Server) -> Self {
        Self::new(server, server.listeners.mounted_hosts.clone())
    }

    /// Answers a request of a mounted router.
    async fn respond(self, request: Request<Body>) -> Result<Response, Infallible> {
        let (mut answer, under_way) = self.answer(request, None).await;
        if let Some(under_way) = under_way {
            // Only the application knows when the client has taken the answer.
            answer.extensions_mut().insert(Arc::new(under_way));
        }
        Ok(answer.map(Body::new))
    }

    /// Answers a request, and returns what it holds until its answer is taken.
    pub(super) async fn answer<B: RequestBody>(
        &self,
        request: Request<B>,
        connection: Option<&Arc<Connection>>,
    ) -> (Answer, Option<UnderWay>)
    where
        B::Error: Into<axum::BoxError>,
    {
        let server = &self.server;
        if let Some(refusal) = self.hosts.check(&request, server, connection) {
            return (refusal, None);
        }
        match request.uri().path() {
            "/forrst" => http::forrst(server, request, connection).await,
            "/rpc" => http::rpc(server, request, connection).await,
            "/health" => (probes::health(request.method()), None),
            "/ready" => (probes::ready(server, request.method()).await, None),
            "/metrics" => (probes::metrics(server, request, connection).await, None),
            _ => {
                let mut request = request.map(Body::new);
                request.extensions_mut().insert(server.clone());
                let answer = OTHERS.clone().oneshot(request).await;
                let answer = answer.unwrap_or_else(|never| match never {});
                (answer.map(AnswerBody::Axum), None)
            }
        }
    }

    /// A full server is still healthy, and an orchestrator must not restart it. But it is not ready for more, and refuses every
    /// other request.
    pub(super) async fn answer_when_full<B: RequestBody>(
        &self,
        request: Request<B>,
        connection: &Arc<Connection>,
    ) -> Answer
    where
        B::Error: Into<axum::BoxError>,
    {
        let mut answer = match request.uri().path() {
            "/health" => self.answer(request, Some(connection)).await.0,
            "/ready" => {
                let body = serde_json::json!({"status": "unhealthy", "message": FULL});
                let mut answer = json(StatusCode::SERVICE_UNAVAILABLE, &body);
                let soon = HeaderValue::from_static("1");
                answer.headers_mut().insert(RETRY_AFTER, soon);
                answer
            }
            _ => {
                // A client that is still sending does not read, and would lose the answer with the connection.
                let _ = timeout(FULL_REQUEST_TIMEOUT / 2, drain(request.into_body())).await;
                full(&self.server)
            }
        };
        let close = HeaderValue::from_static("close");
        answer.headers_mut().insert(CONNECTION, close);
        answer
    }
}

pub(super) fn full(server: &Server) -> Answer {
    http::refusal(server, ErrorObject::new(ErrorCode::Unavailable, FULL))
}

async fn unknown_path(Extension(server): Extension<Server>, uri: Uri) -> Response {
    let message = format!(
        "There is nothing at {}: send Forrst requests to /forrst, JSON-RPC to /rpc",
        excerpt(uri.path())
    );
    http::refusal(&server, ErrorObject::new(ErrorCode::NotFound, message)).map(Body::new)
}
