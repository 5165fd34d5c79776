//! Opens a WebSocket: TCP, TLS for `wss`, and the handshake with the API key.

use std::fmt;
use std::sync::Arc;

use hyper::StatusCode;
use hyper::header::{AUTHORIZATION, HeaderValue};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{self, handshake};
use tokio_tungstenite::{WebSocketStream, client_async_with_config};
use url::Url;

use crate::transport::{ConnectOptions, MAX_ANSWER_BYTES, not_forrst};
use crate::{Cause, Error};

/// A connection, encrypted or not.
pub(crate) trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

pub(crate) type Socket = WebSocketStream<Box<dyn ByteStream>>;

pub(crate) struct WebSocket {
    url: Url,
    authorization: Option<HeaderValue>,
    tls: TlsConnector,
}

impl fmt::Debug for WebSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WebSocket")
            .field(&self.url.as_str())
            .finish()
    }
}

impl WebSocket {
    pub(in crate::transport) fn new(url: Url, options: ConnectOptions) -> Self {
        Self {
            url,
            authorization: options.authorization,
            tls: TlsConnector::from(Arc::new(options.tls)),
        }
    }

    pub(super) async fn open(&self) -> Result<Socket, Error> {
        let bytes = self.connect().await.map_err(Error::Unreachable)?;
        let request = self
            .handshake()
            .map_err(|why| Error::Configuration(why.into()))?;
        let config = WebSocketConfig::default()
            .max_message_size(Some(MAX_ANSWER_BYTES))
            .max_frame_size(Some(MAX_ANSWER_BYTES));
        match client_async_with_config(request, bytes, Some(config)).await {
            Ok((socket, _)) => Ok(socket),
            Err(tungstenite::Error::Http(answer)) => Err(not_upgraded(answer.status())),
            Err(why) => Err(Error::Unreachable(why.into())),
        }
    }

    async fn connect(&self) -> Result<Box<dyn ByteStream>, Cause> {
        // Only in a URL, an IPv6 address is in brackets.
        let host = self.url.host_str().unwrap_or_default();
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let port = self.url.port_or_known_default().unwrap_or(80);
        let stream = TcpStream::connect((host, port)).await?;
        stream.set_nodelay(true)?;
        if self.url.scheme() != "wss" {
            return Ok(Box::new(stream));
        }
        let name = ServerName::try_from(host.to_owned())?;
        Ok(Box::new(self.tls.connect(name, stream).await?))
    }

    fn handshake(&self) -> Result<handshake::client::Request, tungstenite::Error> {
        let mut request = self.url.as_str().into_client_request()?;
        if let Some(authorization) = &self.authorization {
            let headers = request.headers_mut();
            headers.insert(AUTHORIZATION, authorization.clone());
        }
        Ok(request)
    }
}

/// Only the handshake was sent, so no request can have been carried out.
fn not_upgraded(status: StatusCode) -> Error {
    match not_forrst(status, "the server did not open a WebSocket") {
        Error::Interrupted(why) => Error::Unreachable(why),
        other => other,
    }
}
