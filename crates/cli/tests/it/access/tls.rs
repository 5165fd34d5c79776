//! TLS, client certificates, and certificates that a running server reads again.

use std::fs::Permissions;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use forrst_testkit::{Running, Serve, request, until};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair,
};
use rustix::process::Signal;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::{self, Message};

use crate::access::client::{Reply, acquire, code, connect, lock, post_text};
use crate::access::keys::{FORRST, make_key};

/// A certificate authority, whose own certificate is in a folder.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    file: PathBuf,
}

impl Authority {
    fn new(folder: &Path, name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut ca = CertificateParams::new([]).unwrap();
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        ca.distinguished_name.push(DnType::CommonName, name);
        let certificate = ca.self_signed(&key).unwrap();
        let file = folder.join(format!("{name}.pem"));
        std::fs::write(&file, certificate.pem()).unwrap();
        Self {
            issuer: Issuer::new(ca, key),
            file,
        }
    }

    /// Certificate and key, in PEM.
    fn issue(&self, common_name: Option<&str>, alternatives: &[&str]) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let names: Vec<String> = alternatives.iter().map(|&name| name.to_owned()).collect();
        let mut certificate = CertificateParams::new(names).unwrap();
        certificate.distinguished_name = DistinguishedName::new();
        if let Some(name) = common_name {
            certificate
                .distinguished_name
                .push(DnType::CommonName, name);
        }
        let certificate = certificate.signed_by(&key, &self.issuer).unwrap();
        (certificate.pem(), key.serialize_pem())
    }
}

/// A client that trusts these authorities, and may have a certificate of its own.
fn client(trusted: &Path, own: Option<&(String, String)>) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(trusted).unwrap() {
        roots.add(certificate.unwrap()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    Arc::new(match own {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let certificate = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
            let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
            builder
                .with_client_auth_cert(vec![certificate], key)
                .unwrap()
        }
    })
}

fn address(running: &Running) -> String {
    let url = running.banner("http ");
    let rest = url.strip_prefix("https://").expect("the banner says https");
    rest.split('/').next().unwrap().to_owned()
}

fn open(address: &str, client: &Arc<ClientConfig>) -> StreamOwned<ClientConnection, TcpStream> {
    let name = ServerName::try_from("localhost").unwrap();
    let connection = ClientConnection::new(client.clone(), name).unwrap();
    StreamOwned::new(connection, connect(address))
}

/// The answer; `None` when the connection is refused.
fn ask(
    address: &str,
    client: &Arc<ClientConfig>,
    headers: &[&str],
    request: &Value,
) -> Option<Reply> {
    let mut stream = open(address, client);
    // With TLS 1.3, a client learns only after the handshake that its certificate was refused.
    let text = post_text("localhost", "/forrst", headers, &request.to_string());
    stream.write_all(text.as_bytes()).ok()?;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    (!answer.is_empty()).then(|| Reply::read(&answer))
}

fn echo() -> Value {
    request("demo.echo", json!({}))
}

/// A server with TLS, and the authority of its certificate.
fn serve(arguments: &[&str]) -> (Serve, Authority) {
    let own = &[
        "--demo",
        "--store",
        "memory:",
        "--tls-cert",
        "server.pem",
        "--tls-key",
        "server.key",
    ];
    let serve = Serve::new(FORRST, &[&own[..], arguments].concat());
    let authority = Authority::new(&serve.path(""), "authority");
    install(&serve, &authority);
    (serve, authority)
}

fn install(serve: &Serve, authority: &Authority) {
    let (certificate, key) = authority.issue(None, &["localhost"]);
    std::fs::write(serve.path("server.pem"), certificate).unwrap();
    std::fs::write(serve.path("server.key"), key).unwrap();
    set_mode(&serve.path("server.key"), 0o600);
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_private_key_that_others_can_read_is_warned_about() {
    for (mode, warns) in [(0o600, false), (0o640, true)] {
        let (serve, _) = serve(&[]);
        set_mode(&serve.path("server.key"), mode);
        let running = serve.start();
        running.terminate();
        let errors = running.errors();
        let mut lines = errors.lines();
        let warned = lines.any(|line| line.contains("server.key") && line.contains("0640"));
        assert_eq!(warned, warns, "{errors}");
    }
}

#[test]
fn requests_are_served_over_tls_and_not_in_cleartext() {
    let (serve, authority) = serve(&[]);
    let running = serve.start();
    let address = address(&running);
    let reply = ask(&address, &client(&authority.file, None), &[], &echo()).unwrap();
    assert_eq!((reply.status, reply.code()), (200, None));
    let mut clear = connect(&address);
    let text = post_text("localhost", "/forrst", &[], &echo().to_string());
    clear.write_all(text.as_bytes()).unwrap();
    let mut answer = Vec::new();
    let _ = clear.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    let unknown = Authority::new(&serve.path(""), "unknown");
    assert!(ask(&address, &client(&unknown.file, None), &[], &echo()).is_none());
}

#[test]
fn http_2_and_websockets_are_served_over_tls() {
    let (serve, authority) = serve(&[]);
    let running = serve.start();
    let address = address(&running);
    let mut speaks_http_2 = (*client(&authority.file, None)).clone();
    speaks_http_2.alpn_protocols = vec![b"h2".to_vec()];
    let mut stream = open(&address, &Arc::new(speaks_http_2));
    let no_settings = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    stream.write_all(no_settings).unwrap();
    let mut frame = [0; 9];
    stream.read_exact(&mut frame).unwrap();
    assert_eq!(stream.conn.alpn_protocol(), Some(&b"h2"[..]));
    assert_eq!(frame[3], 4, "the first frame has the server's settings");

    let stream = open(&address, &client(&authority.file, None));
    let (mut socket, _) = tungstenite::client("wss://localhost/rpc", stream).unwrap();
    let frame = json!({"jsonrpc": "2.0", "id": 1, "method": "forrst.call", "params": echo()});
    socket.send(Message::text(frame.to_string())).unwrap();
    let answer: Value = serde_json::from_str(socket.read().unwrap().to_text().unwrap()).unwrap();
    assert_eq!(code(&answer["result"]), None);
}

/// What `forrst conformance` prints, and its exit code.
fn play(url: &str, trusted: &Path) -> (String, Option<i32>) {
    let filter = ["--filter", "specification/key-and-ttl-are-required"];
    let output = Command::new(FORRST)
        .args(["conformance", "--url", url])
        .args(filter)
        .env_remove("FORRST_API_KEY")
        .env("SSL_CERT_FILE", trusted)
        .output()
        .unwrap();
    let printed = [output.stdout, output.stderr].concat();
    (String::from_utf8(printed).unwrap(), output.status.code())
}

#[test]
fn the_conformance_vectors_are_played_over_tls() {
    let (serve, authority) = serve(&[]);
    let running = serve.start();
    let address = address(&running);
    let port = address.rsplit(':').next().unwrap();
    for (scheme, passed) in [
        ("https", "6 passed, 0 failed"),
        ("wss", "2 passed, 0 failed"),
    ] {
        let url = format!("{scheme}://localhost:{port}");
        let (printed, code) = play(&url, &authority.file);
        assert_eq!(code, Some(0), "{printed}");
        assert_eq!(printed.lines().last(), Some(passed), "{printed}");
        let unknown = Authority::new(&serve.path(""), "unknown");
        let (printed, code) = play(&url, &unknown.file);
        assert_eq!(code, Some(69), "{printed}");
        assert!(printed.contains("SSL_CERT_FILE"), "{printed}");
    }
}

#[test]
fn certificates_are_read_again() {
    let (serve, first) = serve(&[]);
    let running = serve.start();
    let address = address(&running);
    let second = Authority::new(&serve.path(""), "second");
    let trusts_first = client(&first.file, None);
    let trusts_second = client(&second.file, None);
    assert!(ask(&address, &trusts_second, &[], &echo()).is_none());
    install(&serve, &second);
    running.signal(Signal::HUP);
    until("the new certificate is shown", || {
        ask(&address, &trusts_second, &[], &echo()).is_some()
    });
    assert!(ask(&address, &trusts_first, &[], &echo()).is_none());
    std::fs::write(serve.path("server.key"), "broken").unwrap();
    running.signal(Signal::HUP);
    until("it logs the error", || {
        running.errors().contains("stay as they were")
    });
    assert!(
        running.errors().contains("server.key"),
        "{}",
        running.errors()
    );
    assert!(ask(&address, &trusts_second, &[], &echo()).is_some());
}

#[test]
fn a_client_certificate_is_required_and_names_the_caller() {
    let (serve, authority) = serve(&["--tls-client-ca", "clients.pem"]);
    let clients = Authority::new(&serve.path(""), "clients");
    let others = Authority::new(&serve.path(""), "others");
    let running = serve.start();
    let address = address(&running);
    assert!(ask(&address, &client(&authority.file, None), &[], &echo()).is_none());
    let foreign = client(&authority.file, Some(&others.issue(Some("billing"), &[])));
    assert!(ask(&address, &foreign, &[], &echo()).is_none());
    for (certificate, name) in [
        (clients.issue(Some("billing"), &[]), "billing"),
        // The alternative name of a certificate counts more than its common name.
        (
            clients.issue(Some("admin"), &["invoices.test"]),
            "invoices.test",
        ),
        // An address names a machine, not a caller.
        (
            clients.issue(Some("admin"), &["127.0.0.1", "reports.test"]),
            "reports.test",
        ),
        (
            clients.issue(None, &["worker.test", "other.test"]),
            "worker.test",
        ),
    ] {
        let client = client(&authority.file, Some(&certificate));
        let taken = ask(&address, &client, &[], &acquire(name)).unwrap();
        assert_eq!(taken.code(), None, "{taken:?}");
        let status = lock("status", json!({"key": format!("lock:{name}")}));
        let status = ask(&address, &client, &[], &status).unwrap();
        assert_eq!(status.body["result"]["caller"], name);
    }
}

#[test]
fn the_keys_file_says_what_a_certificate_may_do() {
    let (serve, authority) = serve(&["--tls-client-ca", "clients.pem", "--auth-file", "keys.toml"]);
    let clients = Authority::new(&serve.path(""), "clients");
    let (key, block) = make_key("by-key", &["--role", "call"]);
    let certificates =
        "[[certificates]]\nname = 'dashboard'\nroles = ['observe']\nlocks = ['lock:a*']\n";
    std::fs::write(serve.path("keys.toml"), format!("{block}\n{certificates}")).unwrap();
    let running = serve.start();
    let address = address(&running);
    let dashboard = client(
        &authority.file,
        Some(&clients.issue(Some("dashboard"), &[])),
    );
    let unknown = client(&authority.file, Some(&clients.issue(Some("by-key"), &[])));
    let with_key = format!("x-api-key: {key}");
    let status = |key: &str| lock("status", json!({"key": key}));
    for (client, headers, request, expected) in [
        (&dashboard, &[][..], status("lock:a"), None),
        (&dashboard, &[], status("lock:b"), Some("FORBIDDEN")),
        (&dashboard, &[], echo(), Some("FORBIDDEN")),
        // A key counts more than a certificate, even if it is wrong.
        (&dashboard, &[with_key.as_str()], echo(), None),
        (
            &dashboard,
            &["x-api-key: wrong"],
            status("lock:a"),
            Some("UNAUTHORIZED"),
        ),
        // The name of a key does not apply to a certificate.
        (&unknown, &[], echo(), Some("UNAUTHORIZED")),
        (&unknown, &[with_key.as_str()], echo(), None),
    ] {
        let reply = ask(&address, client, headers, &request).unwrap();
        assert_eq!(code(&reply.body), expected, "{request} {headers:?}");
    }
}

#[test]
fn an_error_names_the_tls_file_that_is_missing_or_invalid() {
    for (arguments, says) in [
        (&["--tls-cert", "server.pem"][..], "--tls-key"),
        (&["--tls-key", "server.key"], "--tls-cert"),
        (&["--tls-client-ca", "server.pem"], "--tls-cert"),
        (
            &["--tls-cert", "missing.pem", "--tls-key", "server.key"],
            "missing.pem",
        ),
        (
            &["--tls-cert", "empty.pem", "--tls-key", "server.key"],
            "empty.pem",
        ),
        (
            &["--tls-cert", "server.pem", "--tls-key", "other.key"],
            "certificates",
        ),
        (
            &[
                "--tls-cert",
                "server.pem",
                "--tls-key",
                "server.key",
                "--tls-client-ca",
                "empty.pem",
            ],
            "empty.pem",
        ),
    ] {
        let serve = Serve::new(FORRST, &[&["--store", "memory:"], arguments].concat());
        let authority = Authority::new(&serve.path(""), "authority");
        install(&serve, &authority);
        std::fs::write(serve.path("empty.pem"), "").unwrap();
        std::fs::write(serve.path("other.key"), authority.issue(None, &[]).1).unwrap();
        let (code, _, errors) = serve.run();
        assert_eq!(code, Some(1), "{arguments:?}");
        assert!(errors.contains(says), "{arguments:?} {errors}");
    }
}

#[test]
fn a_client_that_does_not_begin_the_handshake_is_disconnected() {
    let (serve, authority) = serve(&["--idle-timeout", "300ms"]);
    let running = serve.start();
    let address = address(&running);
    let mut silent: TcpStream = connect(&address);
    let mut rest = Vec::new();
    let _ = silent.read_to_end(&mut rest);
    assert!(rest.is_empty());
    assert!(ask(&address, &client(&authority.file, None), &[], &echo()).is_some());
}

/// The idle timeout also applies after the handshake, with either protocol.
#[test]
fn a_client_that_is_silent_after_the_handshake_is_disconnected() {
    let (serve, authority) = serve(&["--idle-timeout", "500ms", "--max-connections", "10"]);
    let running = serve.start();
    let address = address(&running);
    let plain = client(&authority.file, None);
    let mut http2 = (*plain).clone();
    http2.alpn_protocols = vec![b"h2".to_vec()];
    let http2 = Arc::new(http2);
    let silent: Vec<_> = (0..10)
        .map(|number| {
            let mut stream = open(&address, if number % 2 == 0 { &plain } else { &http2 });
            while stream.conn.is_handshaking() {
                stream.conn.complete_io(&mut stream.sock).unwrap();
            }
            stream
        })
        .collect();
    until("others are served", || {
        ask(&address, &plain, &[], &echo()).is_some_and(|reply| reply.status == 200)
    });
    drop(silent);
}

#[test]
fn a_full_server_with_tls_answers_503_and_is_still_healthy() {
    let (serve, authority) = serve(&["--max-connections", "1"]);
    let running = serve.start();
    let address = address(&running);
    let plain = client(&authority.file, None);
    let mut first = open(&address, &plain);
    let text = post_text("localhost", "/forrst", &[], &echo().to_string());
    first
        .write_all(text.replace("connection: close\r\n", "").as_bytes())
        .unwrap();
    first.read_exact(&mut [0; 12]).unwrap();
    let refused = ask(&address, &plain, &[], &echo()).expect("an answer");
    assert_eq!(refused.status, 503);
    let mut probe = open(&address, &plain);
    let text = "GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    probe.write_all(text.as_bytes()).unwrap();
    let mut answer = Vec::new();
    let _ = probe.read_to_end(&mut answer);
    assert_eq!(Reply::read(&answer).status, 200);
}

#[test]
fn replacing_the_client_authority_ends_the_connections_of_its_clients() {
    let (serve, authority) = serve(&["--tls-client-ca", "trusted.pem"]);
    let old = Authority::new(&serve.path(""), "old");
    let new = Authority::new(&serve.path(""), "new");
    std::fs::copy(&old.file, serve.path("trusted.pem")).unwrap();
    let running = serve.start();
    let address = address(&running);
    let before = client(&authority.file, Some(&old.issue(None, &["before.test"])));
    let after = client(&authority.file, Some(&new.issue(None, &["after.test"])));
    assert_eq!(
        ask(&address, &before, &[], &acquire("k")).unwrap().code(),
        None
    );
    let mut waits = acquire("k");
    waits["call"]["arguments"]["block"] = json!({"value": 2, "unit": "minute"});
    let waiting = std::thread::spawn({
        let (address, before) = (address.clone(), before.clone());
        move || ask(&address, &before, &[], &waits)
    });
    let stream = open(&address, &before);
    let (mut socket, _) = tungstenite::client("wss://localhost/rpc", stream).unwrap();
    let mut idle = open(&address, &before);
    idle.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        .unwrap();
    idle.read_exact(&mut [0; 12]).unwrap();
    until("the call waits", || {
        let status = lock("status", json!({"key": "lock:k"}));
        let status = ask(&address, &before, &[], &status).unwrap();
        status.body["result"]["waiters"] == 1
    });

    std::fs::copy(&new.file, serve.path("trusted.pem")).unwrap();
    running.signal(Signal::HUP);
    let refused = waiting.join().unwrap();
    assert!(
        refused.is_none_or(|reply| reply.code() == Some("UNAUTHORIZED")),
        "the waiting call was not refused"
    );
    until("the WebSocket is closed", || {
        matches!(socket.read(), Ok(Message::Close(_)) | Err(_))
    });
    let mut rest = Vec::new();
    let _ = idle.read_to_end(&mut rest);
    assert!(ask(&address, &before, &[], &echo()).is_none());
    let status = lock("status", json!({"key": "lock:k"}));
    let status = ask(&address, &after, &[], &status).unwrap();
    assert_eq!(status.body["result"]["locked"], true);
    assert_eq!(status.body["result"]["waiters"], 0, "{status:?}");
}
