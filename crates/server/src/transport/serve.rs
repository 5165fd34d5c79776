//! The listening port: accepts connections, and ends those that are silent or slow.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::Response;
use forrst_protocol::{ErrorCode, ErrorObject};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, ToSocketAddrs};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};
use tokio_io_timeout::TimeoutStream;
use tower::ServiceExt;

use super::host_check::HostCheck;
use super::http::json;
use super::session::InFlight;
use super::tls::{Tls, peer_name};
use crate::Server;
use crate::access::PeerName;
use crate::limits::Refusal;
use crate::metrics::OpenConnection;

/// What an HTTP/2 connection with prior knowledge starts with.
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Longer than any handshake takes that is meant well.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// How many clients hear at the same time that the server is full. More of them only see their connections closed.
const TURNED_AWAY_AT_ONCE: usize = 256;

impl Server {
    /// Serves HTTP/1.1, HTTP/2 and WebSocket on one address until the server shuts down, over TLS if it was built with it.
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
        let router = self.routes().merge(Self::page()).fallback(unknown_path);
        let address = listener.local_addr().ok();
        let hosts = HostCheck::of_listener(&self.listeners.allowed_hosts, address);
        let router = hosts.around(router, self);
        let turned_away = Arc::new(Semaphore::new(TURNED_AWAY_AT_ONCE));
        loop {
            let accepted = tokio::select! {
                () = self.core.draining.cancelled() => break,
                accepted = listener.accept() => accepted,
            };
            let (stream, address) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    accept_error(&error).await;
                    continue;
                }
            };
            let Some(place) = self.take_place() else {
                // What is said in the clear means nothing to a client that waits for a handshake.
                if self.listeners.tls.is_none()
                    && let Ok(turn) = turned_away.clone().try_acquire_owned()
                {
                    let say = async move {
                        turn_away(stream).await;
                        drop(turn);
                    };
                    self.core.tasks.spawn(say);
                }
                continue;
            };
            let (server, router) = (self.clone(), router.clone());
            let peer = Peer {
                place,
                name: None,
                from: From(address.ip().to_canonical().to_string().into()),
            };
            self.core.tasks.spawn(async move {
                // Without it, small answers wait for the acknowledgement of the last one.
                let _ = stream.set_nodelay(true);
                match &server.listeners.tls {
                    None => server.serve_plain(stream, router, peer).await,
                    Some(tls) => server.serve_tls(stream, tls, router, peer).await,
                }
            });
        }
    }

    /// One of the places for connections; none when all are taken.
    pub(super) fn take_place(&self) -> Option<Place> {
        match self.listeners.connections.clone().try_acquire_owned() {
            Ok(place) => Some(Place(Arc::new((place, self.core.metrics.connection())))),
            Err(_) => {
                self.core.metrics.refused(Refusal::Connections);
                None
            }
        }
    }

    async fn serve_plain(&self, stream: TcpStream, router: Router, peer: Peer) {
        let first = tokio::select! {
            first = timeout(self.core.limits.idle_timeout, is_http2(&stream)) => first,
            () = self.core.draining.cancelled() => return,
        };
        match first {
            Ok(Ok(is_http2)) => self.serve_connection(stream, is_http2, router, peer).await,
            Ok(Err(_)) => {}
            Err(_) => self.core.metrics.refused(Refusal::Idle),
        }
    }

    async fn serve_tls(&self, stream: TcpStream, tls: &Tls, router: Router, mut peer: Peer) {
        let patience = HANDSHAKE.min(self.core.limits.idle_timeout);
        let shaken = tokio::select! {
            shaken = timeout(patience, tls.acceptor().accept(stream)) => shaken,
            () = self.core.draining.cancelled() => return,
        };
        let Ok(Ok(stream)) = shaken else {
            self.core.metrics.refused(Refusal::Tls);
            tracing::debug!("a TLS handshake failed");
            return;
        };
        let (_, session) = stream.get_ref();
        let is_http2 = session.alpn_protocol() == Some(b"h2");
        peer.name = peer_name(session.peer_certificates());
        self.serve_connection(stream, is_http2, router, peer).await;
    }

    async fn serve_connection<S>(&self, stream: S, is_http2: bool, router: Router, peer: Peer)
    where
        S: AsyncRead + AsyncWrite + Send + 'static,
    {
        let limits = &self.core.limits;
        let draining = &self.core.draining;
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder = if is_http2 {
            builder.http2_only()
        } else {
            builder.http1_only()
        };
        builder
            .http1()
            .timer(TokioTimer::new())
            .max_buf_size(limits.max_head.max(SMALLEST_HEAD))
            .header_read_timeout(limits.idle_timeout);
        let count = |limit: usize| u32::try_from(limit).unwrap_or(u32::MAX);
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_header_list_size(count(limits.max_head.max(SMALLEST_HEAD)))
            .max_concurrent_streams(count(limits.max_in_flight.max(1)))
            .keep_alive_interval(limits.idle_timeout / 2)
            .keep_alive_timeout(limits.idle_timeout / 2);
        let in_flight = InFlight::new(limits.max_in_flight);
        let service = service_fn(move |request: hyper::Request<Incoming>| {
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(peer.place.clone());
            request.extensions_mut().insert(peer.from.clone());
            request.extensions_mut().insert(in_flight.clone());
            if let Some(name) = &peer.name {
                request.extensions_mut().insert(name.clone());
            }
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
            match error.downcast_ref::<hyper::Error>() {
                Some(error) if error.is_parse_too_large() => {
                    self.core.metrics.refused(Refusal::Head);
                }
                Some(error) if error.is_timeout() => self.core.metrics.refused(Refusal::Idle),
                _ => tracing::debug!(error, "a connection broke"),
            }
        }
    }
}

/// Who is at the other end of a connection.
struct Peer {
    place: Place,
    name: Option<PeerName>,
    from: From,
}

/// The address that a connection came from.
#[derive(Clone)]
pub(super) struct From(pub(super) Arc<str>);

/// Less than this, hyper does not take.
const SMALLEST_HEAD: usize = 8 * 1024;

/// One of the places for connections, taken until all clones are gone. A WebSocket outlives the HTTP connection it began as.
#[derive(Clone)]
pub(super) struct Place(
    #[expect(dead_code, reason = "only held")] Arc<(OwnedSemaphorePermit, OpenConnection)>,
);

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

/// A server that is full says so, and does not let anybody wait for nothing. It is still well: an orchestrator that asks for
/// its health must not restart it.
async fn turn_away(mut stream: TcpStream) {
    const PROBE: &[u8] = b"GET /health ";
    const WELL: &[u8] =
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\
        content-length: 20\r\n\r\n{\"status\":\"healthy\"}";
    const FULL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n\
        retry-after: 1\r\nconnection: close\r\ncontent-length: 148\r\n\r\n\
        {\"protocol\":{\"name\":\"forrst\",\"version\":\"0.1.0\"},\"id\":null,\"result\":null,\
        \"errors\":[{\"code\":\"UNAVAILABLE\",\"message\":\"Too many connections are open\"}]}";
    let mut first = [0; PROBE.len()];
    let _ = timeout(Duration::from_millis(200), stream.peek(&mut first)).await;
    let answer = if first == PROBE { WELL } else { FULL };
    let say = async {
        stream.write_all(answer).await?;
        stream.shutdown().await?;
        // What the client has sent and nobody has read would take the answer away from it.
        let mut rest = [0; 1024];
        while stream.read(&mut rest).await? > 0 {}
        io::Result::Ok(())
    };
    let _ = timeout(Duration::from_secs(1), say).await;
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
