//! TLS, with certificates from files that can be reloaded while the server runs. After a reload, open connections are closed if
//! their client certificates are no longer trusted.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forrst_lock::Caller as CallerName;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;

use crate::access::{PeerName, SpareDescriptors, is_out_of_descriptors};

/// The files of the certificates, all in PEM.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// The server's certificate chain.
    pub certificate: PathBuf,
    /// The private key of the certificate.
    pub key: PathBuf,
    /// The authority of client certificates; `None` if clients need no certificate.
    pub client_ca: Option<PathBuf>,
}

/// Why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or has the wrong content.
    #[error("cannot use {}: {source}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: rustls::pki_types::pem::Error,
    },
    /// A file has no certificate.
    #[error("there is no certificate in {}", .0.display())]
    Empty(PathBuf),
    /// The files can be read, but do not fit together.
    #[error("the certificates cannot be used: {0}")]
    Unfit(String),
}

/// The server's side of TLS. Cheap to clone: all clones are one.
#[derive(Clone)]
pub struct Tls {
    files: Arc<TlsFiles>,
    /// Replaced by a reload; open connections then check whether they are still trusted.
    settings: Arc<watch::Sender<Settings>>,
    spare: Arc<SpareDescriptors>,
}

#[derive(Clone)]
struct Settings {
    config: Arc<ServerConfig>,
    /// Verifies client certificates; `None` if clients need none.
    clients: Option<Arc<dyn ClientCertVerifier>>,
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    ///
    /// If one of them cannot be read, or they do not fit together.
    pub fn load(files: TlsFiles) -> Result<Self, TlsError> {
        let settings = configure(&files)?;
        Ok(Self {
            files: Arc::new(files),
            settings: Arc::new(watch::Sender::new(settings)),
            spare: Arc::new(SpareDescriptors::new()),
        })
    }

    /// Reads the files again; if that fails, the previous ones stay in force. Connections of clients whose certificates are no
    /// longer trusted are closed.
    ///
    /// # Errors
    ///
    /// As [`load`](Self::load).
    pub fn reload(&self) -> Result<(), TlsError> {
        let read = || configure(&self.files);
        let settings = self.spare.with(read, TlsError::is_out_of_descriptors)?;
        self.settings.send_replace(settings);
        Ok(())
    }

    /// Whether clients need a certificate.
    pub fn asks_clients(&self) -> bool {
        self.files.client_ca.is_some()
    }

    pub(super) fn acceptor(&self) -> TlsAcceptor {
        self.settings.borrow().config.clone().into()
    }

    /// Watches for reloads; a connection takes it before its handshake, so that it misses none.
    pub(super) fn trust(&self) -> Trust {
        Trust(self.settings.subscribe())
    }
}

/// Whether the certificate of a client is still trusted.
pub(super) struct Trust(watch::Receiver<Settings>);

impl Trust {
    /// Returns when the client's certificate chain is no longer trusted. Costs nothing until a reload.
    pub(super) async fn lost(mut self, certificates: Option<Vec<CertificateDer<'static>>>) {
        let certificates = certificates.unwrap_or_default();
        while self.0.changed().await.is_ok() {
            let clients = self.0.borrow_and_update().clients.clone();
            let Some(clients) = clients else { continue };
            let is_trusted = certificates
                .split_first()
                .is_some_and(|(own, intermediates)| {
                    let now = UnixTime::now();
                    clients.verify_client_cert(own, intermediates, now).is_ok()
                });
            if !is_trusted {
                return;
            }
        }
        std::future::pending::<()>().await;
    }
}

impl TlsError {
    fn is_out_of_descriptors(&self) -> bool {
        use rustls::pki_types::pem::Error;
        matches!(self, Self::File { source: Error::Io(error), .. } if is_out_of_descriptors(error))
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.files.fmt(f)
    }
}

fn configure(files: &TlsFiles) -> Result<Settings, TlsError> {
    let unfit = |error: &dyn fmt::Display| TlsError::Unfit(error.to_string());
    let chain = certificates(&files.certificate)?;
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|source| TlsError::File {
        path: files.key.clone(),
        source,
    })?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| unfit(&error))?;
    let (builder, clients) = match &files.client_ca {
        None => (builder.with_no_client_auth(), None),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(path)? {
                roots.add(certificate).map_err(|error| unfit(&error))?;
            }
            let verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            let verifier = verifier.map_err(|error| unfit(&error))?;
            let builder = builder.with_client_cert_verifier(verifier.clone());
            (builder, Some(verifier))
        }
    };
    let config = builder.with_single_cert(chain, key);
    let mut config = config.map_err(|error| unfit(&error))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Settings {
        config: Arc::new(config),
        clients,
    })
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let unreadable = |source| TlsError::File {
        path: path.to_owned(),
        source,
    };
    let all = CertificateDer::pem_file_iter(path).map_err(unreadable)?;
    let all: Vec<_> = all.collect::<Result<_, _>>().map_err(unreadable)?;
    if all.is_empty() {
        return Err(TlsError::Empty(path.to_owned()));
    }
    Ok(all)
}

/// The name of a client: the first subject alternative name of its certificate that can name a caller, else its common name. The
/// certificate was verified in the handshake.
pub(super) fn peer_name(certificates: Option<&[CertificateDer<'_>]>) -> Option<PeerName> {
    let (_, certificate) = X509Certificate::from_der(certificates?.first()?).ok()?;
    let alternatives = certificate.subject_alternative_name().ok().flatten();
    let alternative = alternatives.and_then(|names| {
        let mut names = names.value.general_names.iter();
        names.find_map(|name| match name {
            GeneralName::DNSName(name) | GeneralName::RFC822Name(name) | GeneralName::URI(name) => {
                Some(*name).filter(|name| !name.is_empty())
            }
            _ => None,
        })
    });
    let mut common_names = certificate.subject().iter_common_name();
    let common_name = common_names.next().and_then(|name| name.as_str().ok());
    let name = alternative.or(common_name.filter(|name| !name.is_empty()))?;
    CallerName::parse(name).ok().map(PeerName::new)
}
