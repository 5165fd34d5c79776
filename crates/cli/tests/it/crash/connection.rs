//! One HTTP/1.1 connection of a caller, with one request after another.

use std::io;
use std::net::SocketAddr;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufStream};
use tokio::net::TcpStream;

use forrst_testkit::Answer;

pub(crate) struct Connection(BufStream<TcpStream>);

impl Connection {
    pub(crate) async fn open(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self(BufStream::new(stream)))
    }

    /// Sends a request to `/forrst`. An incomplete answer is an error.
    pub(crate) async fn call(&mut self, request: &Value) -> io::Result<Answer> {
        let body = request.to_string();
        let head = format!(
            "POST /forrst HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        self.exchange(&[head, body]).await
    }

    pub(crate) async fn get(&mut self, path: &str) -> io::Result<Answer> {
        let head = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
        self.exchange(&[head]).await
    }

    /// Waits until the server has closed the connection.
    pub(crate) async fn wait_for_end(&mut self) {
        // No request was sent, so there is nothing to read.
        let _ = self.0.read_u8().await;
    }

    async fn exchange(&mut self, request: &[String]) -> io::Result<Answer> {
        for part in request {
            self.0.write_all(part.as_bytes()).await?;
        }
        self.0.flush().await?;
        let status = self.read_line().await?;
        let status = status.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status = status.ok_or_else(|| io::Error::other("no status"))?;
        let mut length = 0;
        loop {
            let line = self.read_line().await?.to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().map_err(io::Error::other)?;
            }
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).await?;
        let body = serde_json::from_slice(&body)?;
        Ok(Answer { status, body })
    }

    async fn read_line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.0.read_line(&mut line).await?;
        match line.strip_suffix("\r\n") {
            Some(line) => Ok(line.to_owned()),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}
