//! The listening port: accepts connections, and ends those that are silent or slow.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use axum::http::{Method, StatusCode};
use forrst_protocol::{ErrorCode, ErrorObject};
use futures_util::FutureExt;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, ToSocketAddrs};
use tokio::time::{Instant, sleep, timeout};
use tokio_io_timeout::TimeoutStream;

use super::answer::{Answer, forrst_answer, without_body};
use super::connection::{Connection, Overdue};
use super::host_check::HostCheck;
use super::intake::LimitedStream;
use super::interrupt::run_until;
use super::listeners::ConnectionPermit;
use super::routes::{FULL_PATIENCE, Routes, full};
use super::socket::Socket;
use super::tls::peer_name;
use crate::Server;
use crate::limits::Refusal;

/// What an HTTP/2 connection with prior knowledge starts with.
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Longer than any handshake takes that is meant well.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// How long such a client may be silent before it learns that the server is full.
const FULL_SILENCE: Duration = Duration::from_millis(200);

/// How long what is under way on a connection has to finish once it has to go.
pub(super) const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// How long after a line about connections that could not be accepted the next ones are only counted.
const ACCEPT_ERRORS_QUIET: Duration = Duration::from_secs(10);

/// Less than this, hyper does not take.
const SMALLEST_HEAD: usize = 8 * 1024;

/// How many headers a request may have: hyper's own limit for HTTP/1.
const MAX_HEADERS: usize = 100;

/// What a client may send ahead over HTTP/2 before anything of it is read, on a stream and on the whole connection.
const STREAM_WINDOW: u32 = 64 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;

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
        let address = listener.local_addr().ok();
        let hosts = HostCheck::of_listener(&self.listeners.allowed_hosts, address);
        let routes = Routes::new(self, Arc::new(hosts));
        let mut errors = AcceptErrors::default();
        loop {
            let accepted = tokio::select! {
                () = self.core.draining.cancelled() => break,
                accepted = listener.accept() => accepted,
            };
            let (stream, address) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    errors.note(&error).await;
                    continue;
                }
            };
            // Without it, small answers wait for the acknowledgement of the last one.
            let _ = stream.set_nodelay(true);
            let server = self.clone();
            match self.admit(address) {
                Some(permit) => {
                    let patience = self.core.limits.idle_timeout;
                    let routes = routes.clone();
                    let serve = async move {
                        let permit = Some(permit);
                        server
                            .serve_stream(stream, address, permit, routes, patience)
                            .await;
                    };
                    self.core.tasks.spawn(serve);
                }
                None => {
                    let Some(turn) = self.listeners.admit_to_full() else {
                        continue;
                    };
                    let routes = routes.clone();
                    let patience = FULL_PATIENCE.min(self.core.limits.idle_timeout);
                    let serve = async move {
                        let serve = server.serve_stream(stream, address, None, routes, patience);
                        let _ = timeout(2 * FULL_PATIENCE, serve).await;
                        drop(turn);
                    };
                    self.core.tasks.spawn(serve);
                }
            }
        }
    }

    fn admit(&self, address: SocketAddr) -> Option<ConnectionPermit> {
        self.listeners.admit(Some(address.ip()), &self.core.metrics)
    }

    /// Serves one connection over TLS or not, by the protocol that it starts with. `patience` is for each of its first steps.
    async fn serve_stream(
        &self,
        stream: TcpStream,
        address: SocketAddr,
        permit: Option<ConnectionPermit>,
        routes: Routes,
        patience: Duration,
    ) {
        let from: Arc<str> = address.ip().to_canonical().to_string().into();
        let max_in_flight = self.core.limits.max_in_flight;
        let bytes = self.listeners.budgets.connection();
        let metrics = &self.core.metrics;
        let Some(tls) = &self.listeners.tls else {
            let patience_for_first = match permit {
                Some(_) => patience,
                None => patience.min(FULL_SILENCE),
            };
            let first = tokio::select! {
                first = timeout(patience_for_first, is_http2(&stream)) => first,
                () = self.core.draining.cancelled() => return,
            };
            match first {
                Ok(Ok(is_http2)) => {
                    let socket = Socket::from(stream);
                    let connection =
                        Connection::new(permit, socket.clone(), from, None, max_in_flight, bytes);
                    self.serve_connection(socket, is_http2, routes, connection, patience)
                        .await;
                }
                Ok(Err(_)) => {}
                Err(_) if permit.is_none() => self.refuse_silent_client(stream).await,
                Err(_) => metrics.refused(Refusal::Idle),
            }
            return;
        };
        let socket = Socket::from(stream);
        let trust = tls.trust();
        let handshake = timeout(
            HANDSHAKE.min(patience),
            tls.acceptor().accept(socket.clone()),
        );
        let accepted = tokio::select! {
            accepted = handshake => accepted,
            () = self.core.draining.cancelled() => return,
        };
        let Ok(Ok(stream)) = accepted else {
            metrics.refused(Refusal::Tls);
            tracing::debug!("a TLS handshake failed");
            return;
        };
        let (_, session) = stream.get_ref();
        let is_http2 = session.alpn_protocol() == Some(b"h2");
        let certificates = session.peer_certificates();
        let peer = peer_name(certificates);
        let tokens = peer
            .as_ref()
            .map(|peer| (peer.distrusted.clone(), peer.unused.clone()));
        let has_name = tokens.is_some();
        let (distrusted, unused) = tokens.unwrap_or_default();
        let lost = trust.lost(certificates.map(<[_]>::to_vec));
        let ended = async {
            lost.await;
            // Calls that wait are refused, which their clients still get to see.
            distrusted.cancel();
            sleep(LAST_ANSWERS).await;
        };
        let connection = Connection::new(permit, socket, from, peer, max_in_flight, bytes);
        let served = async {
            self.serve_connection(stream, is_http2, routes, connection, patience)
                .await;
            // A WebSocket outlives the HTTP connection it began as, and a function its caller.
            if has_name {
                unused.cancelled().await;
            }
        };
        tokio::select! {
            () = served => {}
            () = ended => metrics.refused(Refusal::Tls),
        }
    }

    async fn serve_connection<S>(
        &self,
        stream: S,
        is_http2: bool,
        routes: Routes,
        connection: Connection,
        patience: Duration,
    ) where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let limits = &self.core.limits;
        let connection = Arc::new(connection);
        let state = connection.clone();
        // Of this connection: what all connections share is counted by all threads.
        let routes = Arc::new(routes);
        let service = service_fn(move |request: hyper::Request<Incoming>| {
            let (routes, connection) = (routes.clone(), connection.clone());
            let is_head = request.method() == Method::HEAD;
            async move {
                let (mut answer, under_way) = if request.headers().len() > MAX_HEADERS {
                    (too_many_headers(), None)
                } else if connection.is_served() {
                    routes.answer(request, Some(&connection)).await
                } else {
                    (routes.answer_when_full(request, &connection).await, None)
                };
                if is_head {
                    answer = without_body(answer);
                }
                Ok::<_, Infallible>(answer.map(|body| connection.track(body, under_way)))
            }
        });
        let stream = LimitedStream::new(stream, state.intake.clone());
        let mut stream = TimeoutStream::new(stream);
        // A client that does not read its answer is not written to for ever.
        stream.set_write_timeout(Some(patience));
        let stream = TokioIo::new(Box::pin(stream));
        let max_head = limits.max_head.max(SMALLEST_HEAD);
        if is_http2 {
            let count = |limit: usize| u32::try_from(limit).unwrap_or(u32::MAX);
            let served = http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .max_header_list_size(count(max_head))
                .max_concurrent_streams(count(limits.max_in_flight.max(1)))
                .initial_stream_window_size(STREAM_WINDOW)
                .initial_connection_window_size(CONNECTION_WINDOW)
                .keep_alive_interval(patience / 2)
                .keep_alive_timeout(patience / 2)
                .serve_connection(stream, service);
            self.drive(
                served,
                http2::Connection::graceful_shutdown,
                &state,
                patience,
            )
            .await;
        } else {
            let served = http1::Builder::new()
                .max_buf_size(max_head)
                // A head that does not arrive is no request, and its connection is overdue.
                .header_read_timeout(None)
                .serve_connection(stream, service)
                .with_upgrades();
            self.drive(
                served,
                http1::UpgradeableConnection::graceful_shutdown,
                &state,
                patience,
            )
            .await;
        }
    }

    /// A client in the clear that has opened its connection ahead of its first request learns that the server is full, too.
    async fn refuse_silent_client(&self, mut stream: TcpStream) {
        let body = serde_json::to_string(&full(self)).unwrap_or_default();
        let answer = format!(
            "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n\
             connection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        if stream.write_all(answer.as_bytes()).await.is_ok() && stream.shutdown().await.is_ok() {
            // What the client has sent and nobody has read would take the answer away from it.
            let mut rest = [0; 1024];
            while stream.read(&mut rest).await.is_ok_and(|count| count > 0) {}
        }
    }

    /// Runs a connection until it ends, the client disconnects, its time is over, or the server ends.
    async fn drive<C>(
        &self,
        served: C,
        finish: fn(Pin<&mut C>),
        state: &Connection,
        patience: Duration,
    ) where
        C: Future<Output = hyper::Result<()>>,
    {
        let metrics = &self.core.metrics;
        let mut served = pin!(served);
        let watch = async {
            tokio::select! {
                () = state.disconnected() => Watched::Disconnected,
                why = state.overdue(patience) => Watched::Overdue(why),
                () = self.core.draining.cancelled() => Watched::Draining,
            }
        };
        let served_first = served.as_mut().map(Watched::Done);
        let result = match run_until(served_first, watch).await {
            Watched::Done(result) => result,
            Watched::Disconnected => return,
            Watched::Overdue(why) => {
                metrics.refused(match why {
                    Overdue::Idle => Refusal::Idle,
                    Overdue::Unread => Refusal::Unread,
                });
                finish(served.as_mut());
                timeout(LAST_ANSWERS, served).await.unwrap_or(Ok(()))
            }
            Watched::Draining => {
                finish(served.as_mut());
                // Calls have until the drain timeout; half a head has not.
                let is_unused = state.is_unused();
                let ended = async {
                    tokio::select! {
                        () = state.disconnected() => {}
                        _ = state.overdue(patience) => {}
                        () = sleep(LAST_ANSWERS), if is_unused => {}
                    }
                    Ok(())
                };
                run_until(served, ended).await
            }
        };
        match result {
            Ok(()) => {}
            Err(error) if error.is_parse_too_large() => metrics.refused(Refusal::Head),
            Err(error) if error.is_timeout() => metrics.refused(Refusal::Idle),
            Err(error) => tracing::debug!(%error, "a connection broke"),
        }
    }
}

/// What happens on a connection.
enum Watched {
    Done(hyper::Result<()>),
    Disconnected,
    Overdue(Overdue),
    Draining,
}

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

fn too_many_headers() -> Answer {
    let message = format!("A request may have at most {MAX_HEADERS} headers");
    let error = ErrorObject::new(ErrorCode::InvalidRequest, message);
    let response = forrst_protocol::Response::failure(None, error);
    forrst_answer(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, &response)
}

/// Connections that could not be accepted: out of file descriptors, or a client that left in between.
#[derive(Debug, Default)]
pub(super) struct AcceptErrors {
    count: u64,
    /// Until when they are only counted.
    quiet: Option<Instant>,
}

impl AcceptErrors {
    /// Pauses: the next one may work.
    pub(super) async fn note(&mut self, error: &io::Error) {
        self.count += 1;
        let now = Instant::now();
        if self.quiet.is_none_or(|until| until <= now) {
            let count = std::mem::take(&mut self.count);
            self.quiet = Some(now + ACCEPT_ERRORS_QUIET);
            tracing::warn!(%error, count, "connections could not be accepted");
        }
        sleep(Duration::from_millis(50)).await;
    }
}
