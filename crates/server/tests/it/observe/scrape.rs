//! A client of `GET /metrics` and other paths, for tests.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::transports::host::soon;

/// The head and the body of an answer to a GET.
pub(crate) async fn get(address: SocketAddr, path: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    soon(stream.read_to_string(&mut answer)).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_lowercase(), body.to_owned())
}

/// The metrics of one scrape.
pub(crate) struct Scrape(pub(crate) String);

impl Scrape {
    pub(crate) async fn fetch(address: SocketAddr) -> Self {
        let (head, body) = get(address, "/metrics").await;
        assert!(head.starts_with("http/1.1 200"), "{head}");
        assert!(
            head.contains("content-type: application/openmetrics-text"),
            "{head}"
        );
        assert!(body.ends_with("# EOF\n"), "{body}");
        Self(body)
    }

    /// The value of one series, such as `lock_acquire_total{result="granted"}`; `None` if it is missing.
    pub(crate) fn value(&self, series: &str) -> Option<f64> {
        let line = self.0.lines().find_map(|line| line.strip_prefix(series));
        let value = line.and_then(|rest| rest.strip_prefix(' '));
        value.map(|value| value.parse().unwrap())
    }

    #[track_caller]
    pub(crate) fn expect(&self, series: &str, value: f64) {
        let found = self.value(series);
        assert_eq!(found, Some(value), "{series} in\n{}", self.0);
    }
}
