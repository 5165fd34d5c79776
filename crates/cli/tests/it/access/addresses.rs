//! Which addresses a server listens on, and for which hosts it answers.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

use forrst_testkit::{Serve, request};
use serde_json::json;

use crate::access::client::{Transport, code, connect, exchange, post_text};
use crate::access::keys::{FORRST, Guarded, make_key};

#[test]
fn without_keys_only_loopback_addresses_are_listened_on() {
    for address in ["0.0.0.0:0", "[::]:0"] {
        let serve = Serve::bare(FORRST, &["--store", "memory:", "--listen", address]);
        let (code, output, errors) = serve.run();
        assert_eq!(code, Some(1), "{errors}");
        for word in ["--auth-file", "--insecure", "127.0.0.1"] {
            assert!(errors.contains(word), "{errors}");
        }
        assert!(!output.contains("curl"), "{output}");
    }
    let (_, block) = make_key("a", &["--role", "call"]);
    for with in [&["--insecure"][..], &["--auth-file", "keys.toml"]] {
        let own = &["--store", "memory:", "--listen", "0.0.0.0:0"];
        let serve = Serve::bare(FORRST, &[own, with].concat());
        std::fs::write(serve.path("keys.toml"), &block).unwrap();
        let running = serve.start();
        running.terminate();
        let says = running.errors().contains("may do everything");
        assert_eq!(says, with == ["--insecure"], "{}", running.errors());
    }
}

#[test]
fn keys_sent_in_cleartext_to_other_machines_are_warned_about() {
    let (_, block) = make_key("a", &["--role", "call"]);
    for (address, warns) in [("0.0.0.0:0", true), ("127.0.0.1:0", false)] {
        let own = ["--store", "memory:", "--auth-file", "keys.toml", "--listen"];
        let serve = Serve::bare(FORRST, &[&own[..], &[address]].concat());
        std::fs::write(serve.path("keys.toml"), &block).unwrap();
        let running = serve.start();
        running.terminate();
        let errors = running.errors();
        assert_eq!(errors.contains("cleartext"), warns, "{errors}");
        assert!(!warns || errors.contains("--tls-cert"), "{errors}");
    }
}

#[test]
fn a_key_file_that_others_can_read_or_write_is_warned_about() {
    let (_, block) = make_key("a", &["--role", "call"]);
    for (mode, warns) in [(0o600, false), (0o400, false), (0o644, true), (0o620, true)] {
        let own = ["--store", "memory:", "--auth-file", "keys.toml"];
        let serve = Serve::new(FORRST, &own);
        let path = serve.path("keys.toml");
        std::fs::write(&path, &block).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        let running = serve.start();
        running.terminate();
        let errors = running.errors();
        let named = errors.lines().any(|line| {
            let shown = format!("{mode:04o}");
            line.contains("WARN") && line.contains("keys.toml") && line.contains(&shown)
        });
        assert_eq!(named, warns, "{mode:o}: {errors}");
    }
}

#[test]
fn dns_rebinding_is_refused() {
    let serve = Serve::new(
        FORRST,
        &[
            "--demo",
            "--store",
            "memory:",
            "--allow-host",
            "locks.test,other.test",
        ],
    );
    let running = serve.start();
    let address = running.address();
    let (_, port) = address.rsplit_once(':').unwrap();
    let echo = request("demo.echo", json!({})).to_string();
    for (host, status) in [
        (format!("localhost:{port}"), 200),
        (format!("127.0.0.1:{port}"), 200),
        (format!("[::1]:{port}"), 200),
        ("locks.test".to_owned(), 200),
        ("OTHER.test:80".to_owned(), 200),
        ("evil.example".to_owned(), 403),
        (format!("evil.example:{port}"), 403),
        ("localhost.evil.example".to_owned(), 403),
        ("192.168.1.1".to_owned(), 403),
    ] {
        let text = post_text(&host, "/forrst", &[], &echo);
        let reply = exchange(connect(&address), &text);
        assert_eq!(reply.status, status, "{host}");
        if status == 403 {
            assert_eq!(reply.code(), Some("FORBIDDEN"));
            let message = reply.body["errors"][0]["message"].as_str().unwrap();
            assert!(message.contains("--allow-host"), "{message}");
        }
        let health = format!("GET /health HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        assert_eq!(
            exchange(connect(&address), &health).status,
            status,
            "{host}"
        );
    }
    let absolute =
        "POST http://evil.example/forrst HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    assert_eq!(exchange(connect(&address), absolute).status, 403);
    let two = "GET /health HTTP/1.1\r\nhost: localhost\r\nhost: evil.example\r\nconnection: close\r\n\r\n";
    assert_eq!(exchange(connect(&address), two).status, 403);
}

#[test]
fn a_server_on_a_public_address_answers_for_any_host_unless_some_are_allowed() {
    let (_, block) = make_key("a", &["--role", "call"]);
    for (with, status) in [(&[][..], 200), (&["--allow-host", "locks.test"], 403)] {
        let own = &[
            "--store",
            "memory:",
            "--listen",
            "0.0.0.0:0",
            "--auth-file",
            "keys.toml",
        ];
        let serve = Serve::bare(FORRST, &[own, with].concat());
        std::fs::write(serve.path("keys.toml"), &block).unwrap();
        let running = serve.start();
        let address = running.address().replace("0.0.0.0", "127.0.0.1");
        let text = "GET /health HTTP/1.1\r\nhost: anything.example\r\nconnection: close\r\n\r\n";
        assert_eq!(exchange(connect(&address), text).status, status);
    }
}

#[test]
fn no_cors_headers_are_sent() {
    let guarded = Guarded::start(&[("a", &["--role", "call"])]);
    let address = guarded.address();
    let preflight = format!(
        "OPTIONS /forrst HTTP/1.1\r\nhost: {address}\r\norigin: https://evil.example\r\n\
         access-control-request-method: POST\r\naccess-control-request-headers: content-type\r\nconnection: close\r\n\r\n"
    );
    let reply = exchange(connect(&address), &preflight);
    assert_eq!(reply.status, 405);
    assert!(!reply.head.contains("access-control"), "{reply:?}");
    let key = format!("x-api-key: {}", guarded.keys[0]);
    let headers = ["origin: https://evil.example", &key];
    let text = post_text(
        &address,
        "/forrst",
        &headers,
        &request("demo.echo", json!({})).to_string(),
    );
    let reply = exchange(connect(&address), &text);
    assert!(!reply.head.contains("access-control"), "{reply:?}");
}

#[test]
fn the_unix_socket_is_for_the_servers_own_user_and_needs_no_key() {
    use std::io::{Read, Write};
    use std::os::unix::fs::PermissionsExt;
    let guarded = Guarded::with(&["--unix", "socket"], &[("a", &["--role", "observe"])]);
    let path = guarded.serve.path("socket");
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let mut stream = std::os::unix::net::UnixStream::connect(&path).unwrap();
    let body = request("demo.echo", json!({})).to_string();
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    stream
        .write_all(&[&length[..], body.as_bytes()].concat())
        .unwrap();
    let mut length = [0; 4];
    stream.read_exact(&mut length).unwrap();
    let mut answer = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut answer).unwrap();
    let answer: serde_json::Value = serde_json::from_slice(&answer).unwrap();
    assert_eq!(code(&answer), None);
    let over_http = Transport::Http.ask(&guarded.address(), None, &request("demo.echo", json!({})));
    assert_eq!(code(&over_http), Some("UNAUTHORIZED"));
}
