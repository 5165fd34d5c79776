//! Connections, with or without TLS. The certificates of servers are checked as the system does it, and with those of the file that
//! `SSL_CERT_FILE` names.

use std::fmt;
use std::io;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::crypto::ring;
use rustls::pki_types::ServerName;
use rustls_platform_verifier::Verifier;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// An open connection.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// TLS to one server.
#[derive(Clone)]
pub(super) struct Tls {
    connector: TlsConnector,
    name: ServerName<'static>,
}

impl Tls {
    /// `host` as in a URL: an IPv6 address is in brackets.
    pub(super) fn to(host: &str) -> Result<Self, String> {
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let name = ServerName::try_from(bare.to_owned())
            .map_err(|_| format!("{host:?} is not the name of a host"))?;
        let config = config().map_err(|why| format!("TLS is not available: {why}"))?;
        let connector = TlsConnector::from(Arc::new(config));
        Ok(Self { connector, name })
    }

    pub(super) async fn connect(&self, stream: TcpStream) -> io::Result<Box<dyn Stream>> {
        let stream = self.connector.connect(self.name.clone(), stream).await?;
        Ok(Box::new(stream))
    }
}

fn config() -> Result<ClientConfig, rustls::Error> {
    let provider = Arc::new(ring::default_provider());
    let verifier = Verifier::new(provider.clone())?;
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    Ok(builder.with_no_client_auth())
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tls({:?})", self.name)
    }
}
