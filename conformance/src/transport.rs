//! Sends messages to a server and receives the answers.
//!
//! Each exchange has its own connection, so that a step can disconnect as a real client does: by closing it.

mod api_key;
mod http;
mod servers;
mod stream;
mod wire;
mod ws;

use std::io;
use std::time::{Duration, Instant};

use hyper::Uri;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::vector::Transport;

pub use api_key::ApiKey;
pub(crate) use servers::Servers;
use stream::{Stream, Tls};
pub(crate) use wire::{Wire, unframed};

/// The address of a server, and the key to use there.
#[derive(Debug, Clone)]
pub(crate) struct Server {
    /// Host and port.
    authority: String,
    /// The path before `/forrst` and `/rpc`.
    base_path: String,
    /// `None` for connections that are not encrypted.
    tls: Option<Tls>,
    /// Whether the URL names the transport: a WebSocket.
    only_websocket: bool,
    api_key: Option<ApiKey>,
}

/// Why a string is not the address of a server.
#[derive(Debug, thiserror::Error)]
#[error("{url:?} is not the address of a server: {reason}")]
pub struct UrlError {
    url: String,
    reason: String,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExchangeError {
    #[error("no connection: {0}")]
    Connect(io::Error),
    #[error("HTTP: {0}")]
    Http(#[from] hyper::Error),
    #[error("the request cannot be sent: {0}")]
    Request(#[from] hyper::http::Error),
    #[error("WebSocket: {0}")]
    Ws(#[from] tokio_tungstenite::tungstenite::Error),
    #[error("the server closed the WebSocket without an answer")]
    Closed,
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
    #[error("the exchange failed: {0}")]
    Broken(#[from] tokio::task::JoinError),
}

/// What was received.
#[derive(Debug, Clone, Default)]
pub(crate) struct Answer {
    /// `None` over a WebSocket.
    pub(crate) status: Option<u16>,
    /// Names are in lower case.
    pub(crate) headers: Vec<(String, String)>,
    /// Empty if nothing was received.
    pub(crate) body: Vec<u8>,
    /// From sending to the last byte.
    pub(crate) elapsed: Duration,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(found, _)| found == name)
            .map(|(_, value)| value.as_str())
    }
}

impl Server {
    pub(crate) fn parse(url: &str, api_key: Option<ApiKey>) -> Result<Self, UrlError> {
        let wrong = |reason: &str| UrlError {
            url: url.to_owned(),
            reason: reason.to_owned(),
        };
        let uri: Uri = url.parse().map_err(|_| wrong("it is not a URL"))?;
        let (is_encrypted, only_websocket) = match uri.scheme_str() {
            Some("http") => (false, false),
            Some("https") => (true, false),
            Some("ws") => (false, true),
            Some("wss") => (true, true),
            _ => return Err(wrong("it must be an http, https, ws or wss URL")),
        };
        let host = uri.host().ok_or_else(|| wrong("it has no host"))?;
        let tls = match is_encrypted {
            true => Some(Tls::to(host).map_err(|reason| wrong(&reason))?),
            false => None,
        };
        let port = uri
            .port_u16()
            .unwrap_or(if is_encrypted { 443 } else { 80 });
        Ok(Self {
            authority: format!("{host}:{port}"),
            base_path: uri.path().trim_end_matches('/').to_owned(),
            tls,
            only_websocket,
            api_key,
        })
    }

    /// Whether it can be reached over this transport.
    pub(crate) fn has(&self, transport: Transport) -> bool {
        !self.only_websocket || transport == Transport::Ws
    }

    /// Whether a server accepts connections there.
    pub(crate) async fn reach(&self) -> Result<(), io::Error> {
        self.connect().await.map(drop)
    }

    /// Sends a message, and returns without waiting for the answer.
    pub(crate) async fn open(&self, wire: Wire) -> Result<Exchange, ExchangeError> {
        let stream = self.connect().await.map_err(ExchangeError::Connect)?;
        let task = match wire {
            Wire::Http(request) => tokio::spawn(http::exchange(stream, self.clone(), request)),
            Wire::Ws(text) => {
                let socket = ws::open(stream, self).await?;
                tokio::spawn(ws::exchange(socket, text))
            }
        };
        Ok(Exchange {
            task,
            since: Instant::now(),
        })
    }

    async fn connect(&self) -> io::Result<Box<dyn Stream>> {
        let stream = tokio::net::TcpStream::connect(&self.authority).await?;
        stream.set_nodelay(true)?;
        match &self.tls {
            None => Ok(Box::new(stream)),
            Some(tls) => tls.connect(stream).await,
        }
    }
}

/// A message whose answer is still to come. Dropping it closes the connection.
#[derive(Debug)]
pub(crate) struct Exchange {
    task: JoinHandle<Result<Answer, ExchangeError>>,
    since: Instant,
}

impl Exchange {
    pub(crate) async fn answer(mut self, at_most: Duration) -> Result<Answer, ExchangeError> {
        match timeout(at_most, &mut self.task).await {
            Ok(answer) => {
                let elapsed = self.since.elapsed();
                answer?.map(|answer| Answer { elapsed, ..answer })
            }
            Err(_) => Err(ExchangeError::TimedOut(at_most)),
        }
    }

    /// Closes the connection, and returns when it is closed.
    pub(crate) async fn close(mut self) {
        self.task.abort();
        let _ = (&mut self.task).await;
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<Server, UrlError> {
        Server::parse(url, None)
    }

    #[test]
    fn an_address_is_a_url_with_a_host() {
        let server = parse("http://127.0.0.1:7420").unwrap();
        assert_eq!(server.authority, "127.0.0.1:7420");
        assert_eq!(server.base_path, "");
        let server = parse("http://locks.internal/api/").unwrap();
        assert_eq!(server.authority, "locks.internal:80");
        assert_eq!(server.base_path, "/api");
        assert_eq!(parse("http://[::1]:80").unwrap().authority, "[::1]:80");
        for wrong in [
            "",
            "127.0.0.1:7420",
            "unix:/run/forrst.sock",
            "https://",
            "/x",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_scheme_says_whether_there_is_tls_and_whether_only_a_websocket() {
        for (url, authority, has_tls, has_http) in [
            ("http://h", "h:80", false, true),
            ("https://h", "h:443", true, true),
            ("https://[::1]:8443/x", "[::1]:8443", true, true),
            ("ws://h:1", "h:1", false, false),
            ("wss://h", "h:443", true, false),
        ] {
            let server = parse(url).unwrap();
            assert_eq!(server.authority, authority, "{url}");
            assert_eq!(server.tls.is_some(), has_tls, "{url}");
            assert_eq!(server.has(Transport::Http), has_http, "{url}");
            assert_eq!(server.has(Transport::Rpc), has_http, "{url}");
            assert!(server.has(Transport::Ws), "{url}");
        }
    }
}
