//! The TLS configuration: which certificates of servers are trusted.

use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use rustls_platform_verifier::Verifier;

use crate::Error;

/// Which certificate authorities a client trusts.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Trust<'a> {
    /// Those of the system.
    System,
    /// The certificates in this PEM text.
    Only(&'a [u8]),
    /// None, for connections that are not encrypted: so the certificates of the system are not needed.
    None,
}

/// The crypto provider is named here and not installed for the whole process: an application may use another one.
pub(crate) fn config(trust: Trust<'_>) -> Result<ClientConfig, Error> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(invalid)?;
    let config = match trust {
        Trust::Only(pem) => builder.with_root_certificates(roots(pem)?),
        Trust::None => builder.with_root_certificates(RootCertStore::empty()),
        Trust::System => {
            let verifier = Verifier::new(provider).map_err(invalid)?;
            let builder = builder.dangerous();
            builder.with_custom_certificate_verifier(Arc::new(verifier))
        }
    };
    Ok(config.with_no_client_auth())
}

fn roots(pem: &[u8]) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|why| Error::Configuration(unreadable(&why)))?;
        roots.add(certificate).map_err(invalid)?;
    }
    if roots.is_empty() {
        return Err(Error::Configuration(unreadable(
            &"the text has no certificate",
        )));
    }
    Ok(roots)
}

fn unreadable(why: &impl ToString) -> crate::Cause {
    format!("the CA certificate cannot be read: {}", why.to_string()).into()
}

fn invalid(why: rustls::Error) -> Error {
    Error::Configuration(why.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_without_certificates_is_refused() {
        for pem in [
            "",
            "hello",
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        ] {
            let error = config(Trust::Only(pem.as_bytes())).unwrap_err();
            assert!(matches!(error, Error::Configuration(_)), "{pem:?}");
        }
    }
}
