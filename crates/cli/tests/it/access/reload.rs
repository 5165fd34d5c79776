//! SIGHUP: a running server reads its keys again.

use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;

use forrst_testkit::{Serve, request, until};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit};
use serde_json::json;
use tokio_tungstenite::tungstenite::Message;

use crate::access::client::{Transport, code, open, socket_ask};
use crate::access::keys::{FORRST, Guarded, make_key};

fn echo(guarded: &Guarded, key: &str) -> bool {
    let request = request("demo.echo", json!({}));
    let answer = Transport::Http.ask(&guarded.address(), Some(key), &request);
    code(&answer).is_none()
}

fn send_sighup(guarded: &Guarded, until_logged: &str) {
    let before = guarded.running.errors().matches(until_logged).count();
    guarded.running.signal(Signal::HUP);
    until("it has handled the signal", || {
        guarded.running.errors().matches(until_logged).count() > before
    });
}

#[test]
fn keys_are_read_again_and_an_invalid_file_changes_nothing() {
    let guarded = Guarded::start(&[("first", &["--role", "call"])]);
    let first = guarded.keys[0].clone();
    let file = guarded.serve.path("keys.toml");
    let (second, block) = make_key("second", &["--role", "call"]);
    assert!(echo(&guarded, &first) && !echo(&guarded, &second));
    std::fs::write(&file, &block).unwrap();
    assert!(!echo(&guarded, &second), "the server got no signal");
    send_sighup(&guarded, "were read again");
    assert!(echo(&guarded, &second) && !echo(&guarded, &first));
    for broken in [
        "",
        "nonsense",
        "[[keys]]\nname = 'x'\n",
        &block.replace("call", "root"),
        &block.replace("sha256", "md5"),
    ] {
        std::fs::write(&file, broken).unwrap();
        send_sighup(&guarded, "stay as they were");
        assert!(echo(&guarded, &second), "{broken}");
    }
    std::fs::remove_file(&file).unwrap();
    send_sighup(&guarded, "stay as they were");
    assert!(echo(&guarded, &second));
    assert!(guarded.running.errors().contains("ERROR"));
    assert!(guarded.running.errors().contains("keys.toml"));
    std::fs::write(&file, &block).unwrap();
    send_sighup(&guarded, "were read again");
    assert!(echo(&guarded, &second));
}

#[test]
fn a_websocket_is_closed_when_its_key_is_removed() {
    let guarded = Guarded::start(&[("first", &["--role", "call"])]);
    let mut socket = open(&guarded.address(), Some(&guarded.keys[0])).unwrap();
    let request = request("demo.echo", json!({}));
    let frame = json!({"jsonrpc": "2.0", "id": 1, "method": "forrst.call", "params": request});
    assert_eq!(code(&socket_ask(&mut socket, &frame)["result"]), None);
    let (_, block) = make_key("second", &["--role", "call"]);
    std::fs::write(guarded.serve.path("keys.toml"), block).unwrap();
    send_sighup(&guarded, "were read again");
    until("it is closed", || {
        matches!(socket.read(), Ok(Message::Close(_)) | Err(_))
    });
}

#[test]
fn keys_are_read_again_when_no_descriptor_is_left() {
    let guarded = Guarded::start(&[("first", &["--role", "call"])]);
    let (second, block) = make_key("second", &["--role", "call"]);
    std::fs::write(guarded.serve.path("keys.toml"), &block).unwrap();
    let process = guarded.running.id();
    let open = std::fs::read_dir(format!("/proc/{process}/fd")).unwrap();
    let numbers = open.map(|entry| {
        let name = entry.unwrap().file_name();
        name.to_str().unwrap().parse::<u64>().unwrap()
    });
    let maximum = getrlimit(Resource::Nofile).maximum;
    let limit = Rlimit {
        current: Some(numbers.max().unwrap() + 1),
        maximum,
    };
    let process = Pid::from_raw(i32::try_from(process).unwrap()).unwrap();
    prlimit(Some(process), Resource::Nofile, limit).unwrap();
    // Connections use up the descriptors that are left below the limit.
    let address = guarded.address();
    let mut silent = Vec::new();
    let started = std::time::Instant::now();
    until("no connection can be accepted", || {
        silent.push(std::net::TcpStream::connect(&address).unwrap());
        guarded.running.errors().contains("could not be accepted")
    });
    // It is retried twenty times a second, and logged every ten seconds.
    std::thread::sleep(std::time::Duration::from_millis(500));
    let log = guarded.running.errors();
    let lines = log.matches("could not be accepted").count() as u64;
    assert!(lines <= 1 + started.elapsed().as_secs() / 10, "{log}");
    send_sighup(&guarded, "were read again");
    let no_limit = Rlimit {
        current: Some(1024),
        maximum,
    };
    prlimit(Some(process), Resource::Nofile, no_limit).unwrap();
    drop(silent);
    assert!(echo(&guarded, &second) && !echo(&guarded, &guarded.keys[0]));
}

#[test]
fn a_server_does_not_start_with_an_invalid_keys_file() {
    for (text, says) in [
        (Some(""), "nobody could call"),
        (Some("keys = 1"), "line 1"),
        (None, "No such file"),
    ] {
        let arguments = &["--store", "memory:", "--auth-file", "keys.toml"];
        let serve = forrst_testkit::Serve::new(crate::access::keys::FORRST, arguments);
        if let Some(text) = text {
            std::fs::write(serve.path("keys.toml"), text).unwrap();
        }
        let (code, _, errors) = serve.run();
        assert_eq!(code, Some(1));
        assert!(
            errors.contains(says) && errors.contains("keys.toml"),
            "{errors}"
        );
    }
}

/// Every connection needs a file descriptor, and so does reading the keys file.
#[test]
fn keys_are_read_again_however_many_connections_are_open() {
    let folder = tempfile::tempdir().unwrap();
    let limited = folder.path().join("limited");
    std::fs::write(
        &limited,
        format!("#!/bin/sh\nulimit -n 300\nexec {FORRST} \"$@\"\n"),
    )
    .unwrap();
    std::fs::set_permissions(&limited, std::fs::Permissions::from_mode(0o755)).unwrap();
    let own = &["--demo", "--store", "memory:", "--auth-file", "keys.toml"];
    let serve = Serve::new(&limited, own);
    let (_, block) = make_key("first", &["--role", "call"]);
    let keys = serve.path("keys.toml");
    std::fs::write(&keys, &block).unwrap();
    let running = serve.start();
    until("it logs how many connections it can have", || {
        running.errors().contains("max_connections=75")
    });
    let crowd: Vec<_> = (0..400)
        .filter_map(|_| TcpStream::connect(running.address()).ok())
        .collect();
    running.signal(Signal::HUP);
    until("the keys are read again", || {
        running.errors().contains("were read again")
    });
    assert!(!running.errors().contains("stay as they were"));
    drop(crowd);
}
