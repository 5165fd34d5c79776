//! Servers behind TLS, by `https` and `wss`.

use std::net::SocketAddr;
use std::sync::Arc;

use forrst_client::{Client, Error, Retry};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::PrivateKeyDer;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::host::{Host, acquired, soon};

/// Starts a TLS proxy before a server. Returns its port, and the certificate of its authority as PEM.
async fn encrypt(target: SocketAddr) -> (u16, String) {
    let authority_key = KeyPair::generate().unwrap();
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let pem = authority.self_signed(&authority_key).unwrap().pem();
    let issuer = Issuer::new(authority, authority_key);

    let key = KeyPair::generate().unwrap();
    let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
    let certificate = CertificateParams::new(names).unwrap();
    let certificate = certificate.signed_by(&key, &issuer).unwrap();
    let private_key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], private_key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let mut client = acceptor.accept(stream).await?;
                let mut server = TcpStream::connect(target).await?;
                copy_bidirectional(&mut client, &mut server).await
            });
        }
    });
    (port, pem)
}

#[tokio::test]
async fn a_server_of_a_given_authority_is_trusted() {
    let host = Host::start().await;
    let (port, pem) = encrypt(host.address).await;
    for url in [
        "https://localhost",
        "https://127.0.0.1",
        "wss://localhost",
        "wss://127.0.0.1",
    ] {
        let client = Client::builder(format!("{url}:{port}")).ca_certificate(pem.clone());
        let client = soon(client.connect()).await.unwrap();
        let lease = acquired(client.lock("k")).await;
        soon(lease.release()).await.unwrap();
    }
}

#[tokio::test]
async fn a_server_of_an_unknown_authority_is_not_trusted() {
    let host = Host::start().await;
    let (port, _) = encrypt(host.address).await;
    let (_, other) = encrypt(host.address).await;
    for scheme in ["https", "wss"] {
        let builder = Client::builder(format!("{scheme}://localhost:{port}")).retry(Retry::never());
        for builder in [builder.clone(), builder.ca_certificate(other.clone())] {
            let error = soon(builder.connect()).await.unwrap_err();
            assert!(matches!(error, Error::Unreachable(_)), "{error}");
            assert!(error.is_certificate_error(), "{error:?}");
            assert!(
                error.to_string().to_lowercase().contains("certificate"),
                "{error}"
            );
        }
    }
}
