//! An HTTP/1.1 client that sends whatever bytes it is given.

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use crate::transports::host::{Host, soon};
use crate::wire::{Ask, expect};

pub(crate) struct Http1 {
    stream: BufReader<TcpStream>,
}

/// A complete answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(n, _)| n == name);
        found.map(|(_, value)| value.as_str())
    }

    pub(crate) fn json(&self) -> Value {
        let body = serde_json::from_slice(&self.body);
        body.unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// The text of a POST.
pub(crate) fn post(path: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

impl Http1 {
    pub(crate) async fn connect(host: &Host) -> Self {
        let stream = soon(TcpStream::connect(host.address)).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self {
            stream: BufReader::new(stream),
        }
    }

    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        soon(self.stream.write_all(bytes.as_ref())).await.unwrap();
    }

    /// Sends bytes that the server may refuse to read; whether it took them.
    pub(crate) async fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        soon(self.stream.write_all(bytes.as_ref())).await.is_ok()
    }

    pub(crate) async fn ask(&mut self, request: &Ask) {
        self.send(post("/forrst", &request.text())).await;
    }

    pub(crate) async fn answer(&mut self) -> Answer {
        soon(self.read_answer(false)).await
    }

    /// The answer to a HEAD, which has no body whatever its length says.
    pub(crate) async fn answer_to_head(&mut self) -> Answer {
        soon(self.read_answer(true)).await
    }

    async fn read_answer(&mut self, is_head: bool) -> Answer {
        let first = self.line().await;
        let status = first
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok());
        let status = status.unwrap_or_else(|| panic!("not a status line: {first:?}"));
        let mut headers = Vec::new();
        loop {
            let line = self.line().await;
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(':').expect("a header has a colon");
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let mut answer = Answer {
            status,
            headers,
            body: Vec::new(),
        };
        let length = answer
            .header("content-length")
            .map(|length| length.parse().unwrap());
        if !is_head {
            answer.body = vec![0; length.unwrap_or(0)];
            self.stream.read_exact(&mut answer.body).await.unwrap();
        }
        answer
    }

    /// Reads a complete answer; whether there was one.
    pub(crate) async fn try_answer(&mut self) -> bool {
        let mut length = 0;
        loop {
            let mut line = String::new();
            let read = soon(self.stream.read_line(&mut line)).await;
            if !read.is_ok_and(|count| count > 0) {
                return false;
            }
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            if line == "\r\n" {
                break;
            }
        }
        let mut body = vec![0; length];
        soon(self.stream.read_exact(&mut body)).await.is_ok()
    }

    async fn line(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).await.unwrap();
        assert!(line.ends_with("\r\n"), "the connection ended at {line:?}");
        line.truncate(line.len() - 2);
        line
    }

    /// All bytes until the server closes the connection, which it must do.
    pub(crate) async fn rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        // A reset is as valid as a close.
        let _ = soon(self.stream.read_to_end(&mut rest)).await;
        rest
    }

    /// Sends a request, and returns the answer, which must match.
    pub(crate) async fn check(&mut self, request: &str, status: u16, expected: &Value) -> Answer {
        self.send(request).await;
        let answer = self.answer().await;
        assert_eq!(answer.status, status, "{request}\n{answer:?}");
        expect(&answer.json(), expected);
        answer
    }

    /// Panics unless the connection still serves requests.
    pub(crate) async fn expect_alive(&mut self) {
        let ping = crate::wire::ask("urn:cline:forrst:fn:ping").text();
        let healthy = json!({"result": {"status": "healthy"}});
        self.check(&post("/forrst", &ping), 200, &healthy).await;
    }
}
