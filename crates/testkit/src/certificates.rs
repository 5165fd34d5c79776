//! Certificates for TLS, of an authority that is generated with them.

use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

/// A certificate authority and a certificate for `localhost`, as PEM files.
#[derive(Debug, Clone)]
pub struct Certificates {
    /// The certificate of the authority.
    pub ca: PathBuf,
    /// The certificate of the server.
    pub certificate: PathBuf,
    /// The server's private key.
    pub key: PathBuf,
}

impl Certificates {
    /// Generates them, for `localhost` and `127.0.0.1`.
    pub fn make(folder: &Path) -> Self {
        let ca_key = KeyPair::generate().unwrap();
        let mut ca = CertificateParams::new([]).unwrap();
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca_certificate = ca.self_signed(&ca_key).unwrap();
        let key = KeyPair::generate().unwrap();
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let server = CertificateParams::new(names).unwrap();
        let issuer = Issuer::new(ca, ca_key);
        let certificate = server.signed_by(&key, &issuer).unwrap();
        let write = |name: &str, pem: String| {
            let path = folder.join(name);
            std::fs::write(&path, pem).unwrap();
            path
        };
        Self {
            ca: write("ca.pem", ca_certificate.pem()),
            certificate: write("server.pem", certificate.pem()),
            key: write("server.key", key.serialize_pem()),
        }
    }
}
