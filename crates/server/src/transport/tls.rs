//! TLS: certificates from files that can be read again while the server runs.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use forrst_lock::Caller as CallerName;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;

use crate::access::PeerName;

/// Where the certificates are, all in PEM.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// The server's certificate, and those that lead to its authority.
    pub certificate: PathBuf,
    /// The private key of the certificate.
    pub key: PathBuf,
    /// The authority that clients' certificates have to be from; clients need none when omitted.
    pub client_ca: Option<PathBuf>,
}

/// Why there is no TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or does not have what it should.
    #[error("cannot use {}: {source}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: rustls::pki_types::pem::Error,
    },
    /// A file has no certificate in it.
    #[error("there is no certificate in {}", .0.display())]
    Empty(PathBuf),
    /// The files are readable, and do not fit together.
    #[error("the certificates cannot be used: {0}")]
    Unfit(String),
}

/// The server's side of TLS. Cheap to clone: all clones are one.
#[derive(Clone)]
pub struct Tls {
    files: Arc<TlsFiles>,
    config: Arc<RwLock<Arc<ServerConfig>>>,
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    ///
    /// When one of them cannot be read, or they do not fit together.
    pub fn load(files: TlsFiles) -> Result<Self, TlsError> {
        let config = configure(&files)?;
        Ok(Self {
            files: Arc::new(files),
            config: Arc::new(RwLock::new(config)),
        })
    }

    /// Reads the files again, for the connections to come. What counted before still counts when that fails.
    ///
    /// # Errors
    ///
    /// As [`load`](Self::load).
    pub fn reload(&self) -> Result<(), TlsError> {
        let config = configure(&self.files)?;
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = config;
        Ok(())
    }

    /// Whether clients have to show a certificate.
    pub fn asks_clients(&self) -> bool {
        self.files.client_ca.is_some()
    }

    pub(super) fn acceptor(&self) -> TlsAcceptor {
        let config = self.config.read().unwrap_or_else(PoisonError::into_inner);
        config.clone().into()
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.files.fmt(f)
    }
}

fn configure(files: &TlsFiles) -> Result<Arc<ServerConfig>, TlsError> {
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
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(path)? {
                roots.add(certificate).map_err(|error| unfit(&error))?;
            }
            let verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            builder.with_client_cert_verifier(verifier.map_err(|error| unfit(&error))?)
        }
    };
    let config = builder.with_single_cert(chain, key);
    let mut config = config.map_err(|error| unfit(&error))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
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

/// Who is at the other end: the first alternative name of their certificate that names a caller, else its common name. The
/// authority that vouches for it was checked with the handshake.
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
    CallerName::parse(name).ok().map(PeerName)
}
