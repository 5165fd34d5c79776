//! Clients with and without API keys, over each transport.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{self, Message, WebSocket};

pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// An answer over HTTP.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    /// In lower case.
    pub(crate) head: String,
    pub(crate) body: Value,
}

impl Reply {
    pub(crate) fn read(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let (head, body) = text.split_once("\r\n\r\n").expect("an answer with a head");
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
        Self {
            status: status.expect("a status"),
            head: head.to_ascii_lowercase(),
            body: serde_json::from_str(body).unwrap_or_default(),
        }
    }

    pub(crate) fn code(&self) -> Option<&str> {
        code(&self.body)
    }
}

/// The code of the first error of a Forrst answer.
pub(crate) fn code(answer: &Value) -> Option<&str> {
    answer["errors"][0]["code"].as_str()
}

pub(crate) fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// A POST of JSON with these additional headers.
pub(crate) fn post_text(address: &str, path: &str, headers: &[&str], body: &str) -> String {
    let own: String = headers
        .iter()
        .map(|header| format!("{header}\r\n"))
        .collect();
    format!(
        "POST {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-type: application/json\r\n\
         {own}content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Sends a request that ends its connection, over any stream.
pub(crate) fn exchange(mut stream: impl Read + Write, text: &str) -> Reply {
    // A server that refuses a request does not read all of it. Its answer arrives all the same.
    let _ = stream.write_all(text.as_bytes());
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    Reply::read(&answer)
}

pub(crate) fn post(address: &str, path: &str, headers: &[&str], body: &Value) -> Reply {
    let text = post_text(address, path, headers, &body.to_string());
    exchange(connect(address), &text)
}

/// The transports for a Forrst request.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Transport {
    Http,
    Rpc,
    WebSocket,
}

impl Transport {
    pub(crate) const ALL: [Self; 3] = [Self::Http, Self::Rpc, Self::WebSocket];

    /// The Forrst answer. If a WebSocket is not opened, it is the body of the HTTP response.
    pub(crate) fn ask(self, address: &str, key: Option<&str>, request: &Value) -> Value {
        let header = key.map(|key| format!("authorization: Bearer {key}"));
        let headers: Vec<&str> = header.as_deref().into_iter().collect();
        let frame = json!({"jsonrpc": "2.0", "id": 1, "method": "forrst.call", "params": request});
        match self {
            Self::Http => post(address, "/forrst", &headers, request).body,
            Self::Rpc => post(address, "/rpc", &headers, &frame).body["result"].take(),
            Self::WebSocket => match open(address, key) {
                Ok(mut socket) => socket_ask(&mut socket, &frame)["result"].take(),
                Err(refusal) => refusal.body,
            },
        }
    }
}

/// Opens a WebSocket.
pub(crate) fn open(address: &str, key: Option<&str>) -> Result<WebSocket<TcpStream>, Reply> {
    let mut request = format!("ws://{address}/rpc").into_client_request().unwrap();
    if let Some(key) = key {
        let headers = request.headers_mut();
        headers.insert("authorization", format!("Bearer {key}").parse().unwrap());
    }
    match tungstenite::client(request, connect(address)) {
        Ok((socket, _)) => Ok(socket),
        Err(tungstenite::HandshakeError::Failure(tungstenite::Error::Http(response))) => {
            let headers = response.headers().iter();
            let head =
                headers.map(|(name, value)| format!("{name}: {}\n", value.to_str().unwrap()));
            let body = response.body().as_deref().unwrap_or_default();
            Err(Reply {
                status: response.status().as_u16(),
                head: head.collect::<String>().to_ascii_lowercase(),
                body: serde_json::from_slice(body).unwrap_or_default(),
            })
        }
        Err(error) => panic!("{error}"),
    }
}

pub(crate) fn socket_ask(socket: &mut WebSocket<TcpStream>, frame: &Value) -> Value {
    socket.send(Message::text(frame.to_string())).unwrap();
    loop {
        if let Message::Text(text) = socket.read().unwrap() {
            return serde_json::from_str(&text).unwrap();
        }
    }
}

/// A system function about locks.
pub(crate) fn lock(function: &str, arguments: Value) -> Value {
    let name = format!("urn:cline:forrst:ext:atomic-lock:fn:{function}");
    forrst_testkit::request(&name, arguments)
}

pub(crate) fn acquire(key: &str) -> Value {
    let ttl = json!({"value": 1, "unit": "minute"});
    lock("acquire", json!({"key": key, "ttl": ttl}))
}
