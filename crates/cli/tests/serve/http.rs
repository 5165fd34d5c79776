//! Requests to a server, one connection each.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde_json::{Value, json};

use crate::command::{Running, until};

/// A Forrst request.
pub(crate) fn request(function: &str, arguments: Value) -> Value {
    let mut request = json!({
        "protocol": {"name": "forrst", "version": "0.1.0"},
        "id": "req_1",
        "call": {"function": function},
    });
    request["call"]["arguments"] = arguments;
    request
}

/// The same with a lock, for which it waits up to a minute.
pub(crate) fn locked(mut request: Value, key: &str) -> Value {
    request["extensions"] = json!([{"urn": "urn:forrst:ext:atomicLock", "options": {
        "key": key,
        "scope": "global",
        "ttl": {"value": 1, "unit": "hour"},
        "block": {"value": 1, "unit": "minute"},
    }}]);
    request
}

/// Sends a request and gives back the status and the body of the answer.
pub(crate) fn post(address: &str, body: &Value) -> (u16, Value) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let body = body.to_string();
    let text = format!(
        "POST /forrst HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    // A server that refuses does not read all of it first; what it says arrives all the same.
    let _ = stream.write_all(text.as_bytes());
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").expect("an answer");
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, serde_json::from_str(body).unwrap())
}

impl Running {
    /// Calls a function and gives back the whole answer.
    pub(crate) fn call(&self, function: &str, arguments: Value) -> Value {
        post(&self.address(), &request(function, arguments)).1
    }

    /// Sends a request from a thread of its own.
    pub(crate) fn start_call(&self, request: Value) -> JoinHandle<(u16, Value)> {
        let address = self.address();
        thread::spawn(move || post(&address, &request))
    }

    /// Waits until somebody holds the lock of that full key.
    pub(crate) fn until_locked(&self, full_key: &str) {
        let status = "urn:cline:forrst:ext:atomic-lock:fn:status";
        until("the lock is held", || {
            self.call(status, json!({"key": full_key}))["result"]["locked"] == true
        });
    }
}
