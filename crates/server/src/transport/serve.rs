//! The TCP listener: accepts connections, tells HTTP/1.1 from HTTP/2, and closes connections that are idle, slow or not
//! authorised in time. A full server still accepts a few connections, to refuse them with an answer.

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
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, ToSocketAddrs};
use tokio::select;
use tokio::time::{Instant, sleep, timeout};
use tokio_io_timeout::TimeoutStream;

use super::answer::{Answer, AnswerBody, without_body};
use super::connection::{Connection, Overdue};
use super::host_check::HostCheck;
use super::http::refusal_with;
use super::intake::LimitedStream;
use super::interrupt::run_until;
use super::listeners::ConnectionPermit;
use super::order::{InOrder, Streams};
use super::routes::{FULL_REQUEST_TIMEOUT, Routes, full};
use super::socket::Socket;
use super::tls::peer_name;
use crate::Server;
use crate::limits::Refusal;

/// What an HTTP/2 connection with prior knowledge starts with.
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The time limit for a TLS handshake; no legitimate one takes as long.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a client of a full server may be silent before it is refused without a request.
const FULL_SILENCE: Duration = Duration::from_millis(200);

/// How long calls on a connection that is being closed have to finish.
pub(super) const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// How long after a log line about failed accepts further ones are only counted.
const ACCEPT_ERRORS_INTERVAL: Duration = Duration::from_secs(10);

/// The smallest limit that hyper accepts.
const MIN_MAX_HEAD: usize = 8 * 1024;

/// How many headers a request may have: hyper's own limit for HTTP/1.
const MAX_HEADERS: usize = 100;

/// The HTTP/2 flow-control windows: how much a client may send before it is read, on a stream and on the whole connection.
const STREAM_WINDOW: u32 = 64 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;

impl Server {
    /// Serves HTTP/1.1, HTTP/2 and WebSocket on one address until the server shuts down, over TLS if it was built with it.
    ///
    /// # Errors
    ///
    /// If the address cannot be bound.
    pub async fn serve(&self, address: impl ToSocketAddrs) -> io::Result<()> {
        self.serve_on(TcpListener::bind(address).await?).await;
        Ok(())
    }

    /// As [`serve`](Self::serve), on a listener that is bound already.
    pub async fn serve_on(&self, listener: TcpListener) {
        let address = listener.local_addr().ok();
        let hosts = HostCheck::of_listener(&self.listeners.allowed_hosts, address);
        let routes = Routes::new(self, Arc::new(hosts));
        let mut errors = AcceptErrors::default();
        loop {
            let accepted = select! {
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
            // Without it, a small answer waits for the acknowledgement of the previous one.
            let _ = stream.set_nodelay(true);
            let server = self.clone();
            match self.admit(address) {
                Some(permit) => {
                    let time_limit = self.core.limits.idle_timeout;
                    let routes = routes.clone();
                    let serve = async move {
                        let permit = Some(permit);
                        server
                            .serve_stream(stream, address, permit, routes, time_limit)
                            .await;
                    };
                    self.core.tasks.spawn(serve);
                }
                None => {
                    let Some(permit) = self.listeners.admit_to_full() else {
                        continue;
                    };
                    let routes = routes.clone();
                    let time_limit = FULL_REQUEST_TIMEOUT.min(self.core.limits.idle_timeout);
                    let serve = async move {
                        let serve = server.serve_stream(stream, address, None, routes, time_limit);
                        let _ = timeout(2 * FULL_REQUEST_TIMEOUT, serve).await;
                        drop(permit);
                    };
                    self.core.tasks.spawn(serve);
                }
            }
        }
    }

    fn admit(&self, address: SocketAddr) -> Option<ConnectionPermit> {
        self.listeners.admit(Some(address.ip()), &self.core.metrics)
    }

    /// Serves one connection, with or without TLS, in the protocol that it starts with. `time_limit` applies to each step
    /// before its first request, and then as the idle timeout.
    async fn serve_stream(
        &self,
        stream: TcpStream,
        address: SocketAddr,
        permit: Option<ConnectionPermit>,
        routes: Routes,
        time_limit: Duration,
    ) {
        let from: Arc<str> = address.ip().to_canonical().to_string().into();
        let max_in_flight = self.core.limits.max_in_flight;
        let bytes = self.listeners.budgets.connection();
        let metrics = &self.core.metrics;
        let Some(tls) = &self.listeners.tls else {
            let first_byte_timeout = match permit {
                Some(_) => time_limit,
                None => time_limit.min(FULL_SILENCE),
            };
            let first = select! {
                first = timeout(first_byte_timeout, is_http2(&stream)) => first,
                () = self.core.draining.cancelled() => return,
            };
            match first {
                Ok(Ok(is_http2)) => {
                    let socket = Socket::from(stream);
                    let connection =
                        Connection::new(permit, socket.clone(), from, None, max_in_flight, bytes);
                    self.serve_connection(socket, is_http2, routes, connection, time_limit)
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
            HANDSHAKE_TIMEOUT.min(time_limit),
            tls.acceptor().accept(socket.clone()),
        );
        let accepted = select! {
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
            // Calls that wait are refused, and their clients get to read that.
            distrusted.cancel();
            sleep(LAST_ANSWERS).await;
        };
        let connection = Connection::new(permit, socket, from, peer, max_in_flight, bytes);
        let served = async {
            self.serve_connection(stream, is_http2, routes, connection, time_limit)
                .await;
            // A WebSocket outlives the HTTP connection it began as, and a function its caller.
            if has_name {
                unused.cancelled().await;
            }
        };
        select! {
            () = served => {}
            () = ended => metrics.refused(Refusal::Tls),
        }
    }

    async fn serve_connection<S>(
        &self,
        stream: S,
        is_http2: bool,
        routes: Routes,
        mut connection: Connection,
        time_limit: Duration,
    ) where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let limits = &self.core.limits;
        let streams = Arc::<Streams>::default();
        if is_http2 {
            connection.keeps_order_of(streams.clone());
        }
        let connection = Arc::new(connection);
        let state = connection.clone();
        // An `Arc` of this connection alone: threads would contend for the count of one that all connections share.
        let routes = Arc::new(routes);
        let service = service_fn(move |request: hyper::Request<Incoming>| {
            let (routes, connection) = (routes.clone(), connection.clone());
            let is_head = request.method() == Method::HEAD;
            async move {
                let (mut answer, under_way) = if request.headers().len() > MAX_HEADERS {
                    (too_many_headers(routes.server()), None)
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
        // A client that does not read its answer is disconnected.
        stream.set_write_timeout(Some(time_limit));
        let stream = TokioIo::new(Box::pin(stream));
        let max_head = limits.max_head.max(MIN_MAX_HEAD);
        if is_http2 {
            let count = |limit: usize| u32::try_from(limit).unwrap_or(u32::MAX);
            let served = http2::Builder::new(InOrder(streams.clone()))
                .timer(TokioTimer::new())
                .max_header_list_size(count(max_head))
                .max_concurrent_streams(count(limits.max_in_flight.max(1)))
                .initial_stream_window_size(STREAM_WINDOW)
                .initial_connection_window_size(CONNECTION_WINDOW)
                .keep_alive_interval(time_limit / 2)
                .keep_alive_timeout(time_limit / 2)
                .serve_connection(stream, service);
            let driven = self.drive(
                served,
                http2::Connection::graceful_shutdown,
                &state,
                time_limit,
            );
            select! {
                biased;
                () = driven => {}
                never = streams.run() => match never {},
            }
        } else {
            let served = http1::Builder::new()
                .max_buf_size(max_head)
                // Not needed: a connection whose head does not arrive becomes overdue.
                .header_read_timeout(None)
                .serve_connection(stream, service)
                .with_upgrades();
            self.drive(
                served,
                http1::UpgradeableConnection::graceful_shutdown,
                &state,
                time_limit,
            )
            .await;
        }
    }

    /// Tells a client without TLS that has not sent a request yet that the server is full.
    async fn refuse_silent_client(&self, mut stream: TcpStream) {
        let (head, body) = full(self).into_parts();
        let AnswerBody::Whole(body) = body else {
            return;
        };
        let mut answer = format!("HTTP/1.1 {}\r\n", head.status).into_bytes();
        for (name, value) in &head.headers {
            answer.extend([name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat());
        }
        let length = body.len();
        answer.extend(format!("connection: close\r\ncontent-length: {length}\r\n\r\n").bytes());
        answer.extend(body);
        if stream.write_all(&answer).await.is_ok() && stream.shutdown().await.is_ok() {
            // Unread bytes would make the kernel reset the connection, and the client would lose the answer.
            let mut rest = [0; 1024];
            while stream.read(&mut rest).await.is_ok_and(|count| count > 0) {}
        }
    }

    /// Runs a connection until it ends, the client disconnects, it is overdue, or the server shuts down.
    async fn drive<C>(
        &self,
        served: C,
        finish: fn(Pin<&mut C>),
        state: &Connection,
        time_limit: Duration,
    ) where
        C: Future<Output = hyper::Result<()>>,
    {
        let metrics = &self.core.metrics;
        let mut served = pin!(served);
        let watch = async {
            select! {
                () = state.disconnected() => Watched::Disconnected,
                why = state.overdue(time_limit) => Watched::Overdue(why),
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
                // Calls have until the drain timeout; an incomplete head does not.
                let is_unused = state.is_unused();
                let ended = async {
                    select! {
                        () = state.disconnected() => {}
                        _ = state.overdue(time_limit) => {}
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
            Err(error) => tracing::debug!(%error, "a connection failed"),
        }
    }
}

/// The first event on a connection.
enum Watched {
    Done(hyper::Result<()>),
    Disconnected,
    Overdue(Overdue),
    Draining,
}

/// Peeks at the first bytes for the HTTP/2 preface.
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
        // The socket stays readable, so there is no event to wait for.
        sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(500));
    }
}

fn too_many_headers(server: &Server) -> Answer {
    let message = format!("A request may have at most {MAX_HEADERS} headers");
    let error = ErrorObject::new(ErrorCode::InvalidRequest, message);
    let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
    refusal_with(server, status, error, Instant::now())
}

/// Failed accepts: out of file descriptors, or a client that disconnected in between.
#[derive(Debug, Default)]
pub(super) struct AcceptErrors {
    count: u64,
    /// Until when they are only counted.
    quiet_until: Option<Instant>,
}

impl AcceptErrors {
    /// Logs or counts a failure, and pauses before the next accept.
    pub(super) async fn note(&mut self, error: &io::Error) {
        self.count += 1;
        let now = Instant::now();
        if self.quiet_until.is_none_or(|until| until <= now) {
            let count = std::mem::take(&mut self.count);
            self.quiet_until = Some(now + ACCEPT_ERRORS_INTERVAL);
            tracing::warn!(%error, count, "connections could not be accepted");
        }
        sleep(Duration::from_millis(50)).await;
    }
}
