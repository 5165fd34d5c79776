//! How requests reach a server.

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

/// What all connections have in common.
pub(crate) struct Access {
    pub(crate) authorization: Option<HeaderValue>,
    pub(crate) tls: ClientConfig,
    pub(crate) connect_timeout: Duration,
}

/// One way to a server.
///
/// What it cannot deliver is [`Error::Unreachable`] when nothing was sent, and [`Error::Interrupted`] when the request may have
/// arrived: all that is decided about repeating hangs on that difference.
#[derive(Debug)]
pub(crate) enum Transport {
    Http(Box<Http>),
    WebSocket(Multiplexed<WebSocket>),
    #[cfg(unix)]
    Unix(Multiplexed<UnixSocket>),
}

impl Transport {
    pub(crate) fn new(endpoint: Endpoint, access: Access) -> Result<Self, Error> {
        let connect_timeout = access.connect_timeout;
        Ok(match endpoint {
            Endpoint::Http(url) => Self::Http(Box::new(Http::new(&url, access)?)),
            Endpoint::WebSocket(url) => {
                let wire = WebSocket::new(url, access);
                Self::WebSocket(Multiplexed::new(wire, connect_timeout))
            }
            #[cfg(unix)]
            Endpoint::Unix(path) => {
                Self::Unix(Multiplexed::new(UnixSocket::new(path), connect_timeout))
            }
        })
    }

    /// Sends the request and gives its answer, which may be one of failure.
    pub(crate) async fn send(&self, request: Request<'_>) -> Result<Response, Error> {
        let asked = request.id.clone();
        let response = match self {
            Self::Http(http) => http.send(&request).await?,
            Self::WebSocket(websocket) => websocket.send(request).await?,
            #[cfg(unix)]
            Self::Unix(unix) => unix.send(request).await?,
        };
        match response.id() {
            Some(id) if *id != asked => Err(Error::Protocol(
                format!("it answers the request `{id}`, which is not this one").into(),
            )),
            _ => Ok(response),
        }
    }

    /// Does not use the connection for anything new that has not answered in time. Over HTTP a request that is given up ends
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

/// What an HTTP status says where no Forrst answer came with it: somebody between here and the server speaks.
fn refused(status: StatusCode, why: &str) -> Error {
    let said = format!("HTTP status {status} without a Forrst answer: {why}");
    match status {
        StatusCode::UNAUTHORIZED => Error::Unauthorized(None),
        StatusCode::FORBIDDEN => Error::Forbidden(None),
        StatusCode::TOO_MANY_REQUESTS
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => Error::Interrupted(said.into()),
        _ => Error::Protocol(said.into()),
    }
}
