//! `--unix`: a server that also listens on a unix socket.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use forrst_testkit::{request, until};
use serde_json::{Value, json};

use crate::serve::command::demo;

/// A connection to the socket.
pub(crate) struct Frames(UnixStream);

impl Frames {
    /// Connects as soon as the server listens.
    pub(crate) fn connect(path: &Path) -> Self {
        let mut stream = None;
        until("the server listens", || {
            stream = UnixStream::connect(path).ok();
            stream.is_some()
        });
        let stream = stream.expect("it is connected");
        let patience = Some(Duration::from_secs(20));
        stream.set_read_timeout(patience).unwrap();
        Self(stream)
    }

    pub(crate) fn send(&mut self, body: &Value) {
        let body = body.to_string();
        let length = u32::try_from(body.len()).unwrap().to_be_bytes();
        let frame = [&length, body.as_bytes()].concat();
        self.0.write_all(&frame).unwrap();
    }

    pub(crate) fn answer(&mut self) -> Value {
        let mut length = [0; 4];
        self.0.read_exact(&mut length).unwrap();
        let length = usize::try_from(u32::from_be_bytes(length)).unwrap();
        let mut answer = vec![0; length];
        self.0.read_exact(&mut answer).unwrap();
        serde_json::from_slice(&answer).unwrap()
    }

    fn exchange(&mut self, body: &Value) -> Value {
        self.send(body);
        self.answer()
    }
}

#[test]
fn http_and_the_unix_socket_are_one_server() {
    let serve = demo(&["--unix", "socket"]);
    let running = serve.start();
    assert_eq!(running.banner("unix"), "socket");
    let mut client = Frames::connect(&serve.path("socket"));
    for number in 0..3 {
        let answer = client.exchange(&request("demo.echo", json!({"number": number})));
        assert_eq!(answer["result"], json!({"number": number}));
    }
    let seen = running.call("demo.counter", json!({"name": "n"}));
    assert_eq!(seen["result"]["value"], 1);
    let answer = client.exchange(&request("demo.counter", json!({"name": "n"})));
    assert_eq!(answer["result"]["value"], 2);
}

#[test]
fn a_socket_that_a_killed_server_left_is_replaced() {
    let serve = demo(&["--unix", "socket"]);
    let path = serve.path("socket");
    for _ in 0..2 {
        let running = serve.start();
        Frames::connect(&path);
        // Dropping it kills it, so that it cannot remove the socket.
        drop(running);
        assert!(path.exists());
    }
}
