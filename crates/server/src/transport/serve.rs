//! The listening port: accepts connections, and ends those that are silent or slow.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::Response;
use forrst_protocol::{ErrorCode, ErrorObject};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream, ToSocketAddrs};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};
use tokio_io_timeout::TimeoutStream;
use tower::ServiceExt;

use super::http::json;
use crate::Server;

/// What an HTTP/2 connection with prior knowledge starts with.
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

impl Server {
    /// Serves HTTP/1.1, HTTP/2 and WebSocket on one address until the server shuts down.
    ///
    /// # Errors
    ///
    /// When the address cannot be listened on.
    pub async fn serve(&self, address: impl ToSocketAddrs) -> io::Result<()> {
        self.serve_on(TcpListener::bind(address).await?).await;
        Ok(())
    }

    /// As [`serve`](Self::serve), on a listener that is there already.
    pub async fn serve_on(&self, listener: TcpListener) {
        let router = self.router().fallback(unknown_path);
        let places = Arc::new(Semaphore::new(self.shared.limits.max_connections));
        loop {
            let accepted = tokio::select! {
                () = self.shared.draining.cancelled() => break,
                accepted = listener.accept() => accepted,
            };
            let stream = match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    accept_error(&error).await;
                    continue;
                }
            };
            let Ok(place) = places.clone().try_acquire_owned() else {
                self.shared.tasks.spawn(turn_away(stream));
                continue;
            };
            let (server, router) = (self.clone(), router.clone());
            let place = Place(Arc::new(place));
            let serve = async move { server.serve_connection(stream, router, place).await };
            self.shared.tasks.spawn(serve);
        }
    }

    async fn serve_connection(&self, stream: TcpStream, router: Router, place: Place) {
        let limits = &self.shared.limits;
        let draining = &self.shared.draining;
        // Without it, small answers wait for the acknowledgement of the last one.
        let _ = stream.set_nodelay(true);
        let first = tokio::select! {
            first = timeout(limits.idle_timeout, is_http2(&stream)) => first,
            () = draining.cancelled() => return,
        };
        let Ok(Ok(is_http2)) = first else { return };
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder = if is_http2 {
            builder.http2_only()
        } else {
            builder.http1_only()
        };
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.idle_timeout);
        builder
            .http2()
            .timer(TokioTimer::new())
            .keep_alive_interval(limits.idle_timeout / 2)
            .keep_alive_timeout(limits.idle_timeout / 2);
        let service = service_fn(move |mut request: hyper::Request<Incoming>| {
            request.extensions_mut().insert(place.clone());
            router.clone().oneshot(request)
        });
        let mut stream = TimeoutStream::new(stream);
        // A client that does not read its answer is not written to for ever.
        stream.set_write_timeout(Some(limits.idle_timeout));
        let stream = TokioIo::new(Box::pin(stream));
        let connection = builder.serve_connection_with_upgrades(stream, service);
        tokio::pin!(connection);
        let result = tokio::select! {
            result = connection.as_mut() => result,
            () = draining.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = result {
            tracing::debug!(error, "a connection broke");
        }
    }
}

/// One of the places for connections, taken until all clones are gone. A WebSocket outlives the HTTP connection it began as.
#[derive(Clone)]
pub(super) struct Place(#[expect(dead_code, reason = "only held")] Arc<OwnedSemaphorePermit>);

/// Looks at the first bytes without taking them.
async fn is_http2(stream: &TcpStream) -> io::Result<bool> {
    let mut first = [0; HTTP2_PREFACE.len()];
    let mut pause = Duration::from_millis(1);
    loop {
        let count = stream.peek(&mut first).await?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if first[..count] != HTTP2_PREFACE[..count] {
            return Ok(false);
        }
        if count == HTTP2_PREFACE.len() {
            return Ok(true);
        }
        // More has to come; there is no way to be told when.
        sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(500));
    }
}

/// A server that is full says so, and does not let anybody wait for nothing.
async fn turn_away(mut stream: TcpStream) {
    const FULL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n\
        retry-after: 1\r\nconnection: close\r\ncontent-length: 148\r\n\r\n\
        {\"protocol\":{\"name\":\"forrst\",\"version\":\"0.1.0\"},\"id\":null,\"result\":null,\
        \"errors\":[{\"code\":\"UNAVAILABLE\",\"message\":\"Too many connections are open\"}]}";
    let _ = timeout(Duration::from_secs(1), stream.write_all(FULL)).await;
    let _ = stream.shutdown().await;
}

/// Out of file descriptors, or a client that left in between: the next one may work.
pub(super) async fn accept_error(error: &io::Error) {
    tracing::warn!(%error, "a connection could not be accepted");
    sleep(Duration::from_millis(50)).await;
}

async fn unknown_path(request: Request) -> Response {
    let message = format!(
        "There is nothing at {}: send Forrst requests to /forrst, JSON-RPC to /rpc",
        request.uri().path()
    );
    let error = ErrorObject::new(ErrorCode::NotFound, message);
    let response = forrst_protocol::Response::failure(None, error);
    json(StatusCode::NOT_FOUND, &response)
}
