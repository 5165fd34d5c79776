//! The transports: HTTP, WebSocket and unix socket.
//!
//! HTTP has a connection for each request under way; the other two multiplex all requests over one connection, which differs only
//! in its [`wire`] format.

mod connection;
mod http;
mod multiplexed;
#[cfg(unix)]
mod unix;
mod websocket;
mod wire;

use std::time::Duration;

use forrst_protocol::{Request, Response};
use hyper::StatusCode;
use hyper::header::HeaderValue;
use rustls::ClientConfig;

use self::http::Http;
use self::multiplexed::Multiplexed;
#[cfg(unix)]
use self::unix::UnixSocket;
use self::websocket::WebSocket;
use crate::Error;
use crate::endpoint::Endpoint;

/// No answer is larger than this, whatever a server says.
const MAX_ANSWER_BYTES: usize = 64 * 1024 * 1024;

/// What every transport needs to connect.
#[derive(Clone)]
pub(crate) struct ConnectOptions {
    pub(crate) authorization: Option<HeaderValue>,
    pub(crate) tls: ClientConfig,
    pub(crate) connect_timeout: Duration,
}

/// The transport to one server.
///
/// It fails with [`Error::Unreachable`] when nothing was sent, and with [`Error::Interrupted`] when the request may have arrived:
/// retries depend on that difference.
#[derive(Debug)]
pub(crate) enum Transport {
    Http(Box<Http>),
    WebSocket(Multiplexed<WebSocket>),
    #[cfg(unix)]
    Unix(Multiplexed<UnixSocket>),
}

impl Transport {
    pub(crate) fn new(endpoint: Endpoint, options: ConnectOptions) -> Result<Self, Error> {
        let connect_timeout = options.connect_timeout;
        Ok(match endpoint {
            Endpoint::Http(url) => Self::Http(Box::new(Http::new(&url, options)?)),
            Endpoint::WebSocket(url) => {
                let wire = WebSocket::new(url, options);
                Self::WebSocket(Multiplexed::new(wire, connect_timeout))
            }
            #[cfg(unix)]
            Endpoint::Unix(path) => {
                Self::Unix(Multiplexed::new(UnixSocket::new(path), connect_timeout))
            }
        })
    }

    /// Sends the request and returns its answer, which may be a failure.
    pub(crate) async fn send(&self, request: Request<'_>) -> Result<Response, Error> {
        let request_id = request.id.clone();
        let response = match self {
            Self::Http(http) => http.send(&request).await?,
            Self::WebSocket(websocket) => websocket.send(request).await?,
            #[cfg(unix)]
            Self::Unix(unix) => unix.send(request).await?,
        };
        match response.id() {
            Some(id) if *id != request_id => Err(Error::Protocol(
                format!("the answer is for another request, `{id}`").into(),
            )),
            _ => Ok(response),
        }
    }

    /// Uses another connection for new requests, after one was not answered in time. Over HTTP, a request that is given up closes
    /// its connection anyway.
    pub(crate) fn distrust_connection(&self) {
        match self {
            Self::Http(_) => {}
            Self::WebSocket(websocket) => websocket.retire(),
            #[cfg(unix)]
            Self::Unix(unix) => unix.retire(),
        }
    }
}

/// The error for an HTTP answer without a Forrst answer in it, which a proxy or gateway may have sent.
fn not_forrst(status: StatusCode, why: &str) -> Error {
    let message = format!("HTTP status {status} without a Forrst answer: {why}");
    match status {
        StatusCode::UNAUTHORIZED => Error::Unauthorized(None),
        StatusCode::FORBIDDEN => Error::Forbidden(None),
        StatusCode::TOO_MANY_REQUESTS
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => Error::Interrupted(message.into()),
        _ => Error::Protocol(message.into()),
    }
}
