//! Sends requests to a server over HTTP, with one connection each.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde_json::{Value, json};

use crate::patience::until;
use crate::serve::Running;
use crate::wire::Answer;

/// Longer than any wait of a test.
const PATIENCE: Duration = Duration::from_secs(90);

/// A Forrst request.
pub fn request(function: &str, arguments: Value) -> Value {
    let mut request = json!({
        "protocol": {"name": "forrst", "version": "0.1.0"},
        "id": "req_1",
        "call": {"function": function},
    });
    request["call"]["arguments"] = arguments;
    request
}

/// Sends a request. An incomplete answer is an error.
pub fn post(address: &str, body: &Value) -> io::Result<Answer> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let body = body.to_string();
    let text = format!(
        "POST /forrst HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    // A server that refuses the request does not read all of it; its answer arrives nevertheless.
    let _ = stream.write_all(text.as_bytes());
    let mut answer = Vec::new();
    let ended = stream.read_to_end(&mut answer);
    let answer = String::from_utf8(answer).map_err(io::Error::other)?;
    let Some((head, body)) = answer.split_once("\r\n\r\n") else {
        return Err(ended.err().unwrap_or(io::ErrorKind::UnexpectedEof.into()));
    };
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    Ok(Answer {
        status: status.ok_or_else(|| io::Error::other("no status"))?,
        body: serde_json::from_str(body)?,
    })
}

impl Running {
    /// Sends a request, which has to be answered.
    #[track_caller]
    pub fn ask(&self, request: &Value) -> Answer {
        let answer = post(&self.address(), request);
        answer.unwrap_or_else(|error| panic!("no answer to {request}: {error}"))
    }

    /// Sends a request from a thread of its own.
    pub fn start_ask(&self, request: Value) -> JoinHandle<io::Result<Answer>> {
        let address = self.address();
        thread::spawn(move || post(&address, &request))
    }

    /// Calls a function and returns the whole answer.
    #[track_caller]
    pub fn call(&self, function: &str, arguments: Value) -> Value {
        self.ask(&request(function, arguments)).body
    }

    /// Waits until the lock with this full key is held.
    #[track_caller]
    pub fn until_locked(&self, full_key: &str) {
        let status = "urn:cline:forrst:ext:atomic-lock:fn:status";
        until("the lock is held", || {
            self.call(status, json!({"key": full_key}))["result"]["locked"] == true
        });
    }
}
