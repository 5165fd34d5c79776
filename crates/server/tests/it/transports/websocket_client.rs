//! A client of JSON-RPC over a WebSocket.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use futures_util::{SinkExt, StreamExt};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::{Error, Message};

use crate::transports::host::{Host, soon};

pub(crate) struct Socket(pub(crate) WebSocketStream<TcpStream>);

/// How a connection ended.
#[derive(Debug)]
pub(crate) enum End {
    Close(Option<CloseFrame>),
    Broken,
}

impl Socket {
    pub(crate) async fn connect(host: &Host) -> Self {
        let stream = soon(TcpStream::connect(host.address)).await.unwrap();
        let url = format!("ws://{}/rpc", host.address);
        let connected = soon(tokio_tungstenite::client_async(url, stream)).await;
        Self(connected.unwrap().0)
    }

    /// With an API key.
    pub(crate) async fn open(address: SocketAddr, key: &str) -> Self {
        let mut request = format!("ws://{address}/rpc").into_client_request().unwrap();
        request
            .headers_mut()
            .insert("x-api-key", key.parse().unwrap());
        let stream = soon(TcpStream::connect(address)).await.unwrap();
        let opened = soon(tokio_tungstenite::client_async(request, stream)).await;
        Self(opened.unwrap().0)
    }

    pub(crate) async fn send(&mut self, text: impl ToString) {
        let message = Message::text(text.to_string());
        soon(self.0.send(message)).await.unwrap();
    }

    /// The next message that is not a ping or a pong.
    pub(crate) async fn next(&mut self) -> Result<Value, End> {
        loop {
            match soon(self.0.next()).await {
                Some(Ok(Message::Text(text))) => return Ok(serde_json::from_str(&text).unwrap()),
                Some(Ok(Message::Close(frame))) => return Err(End::Close(frame)),
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                Some(Ok(other)) => panic!("{other:?}"),
                Some(Err(Error::ConnectionClosed)) | None => return Err(End::Close(None)),
                Some(Err(_)) => return Err(End::Broken),
            }
        }
    }

    pub(crate) async fn answer(&mut self) -> Value {
        self.next().await.expect("the connection ended")
    }

    /// The next `count` answers, by their ids.
    pub(crate) async fn answers(&mut self, count: usize) -> BTreeMap<String, Value> {
        let mut answers = BTreeMap::new();
        while answers.len() < count {
            let answer = self.answer().await;
            answers.insert(answer["id"].to_string(), answer);
        }
        answers
    }

    /// All messages until the server closes the connection, and how it was closed.
    pub(crate) async fn rest(&mut self) -> (Vec<Value>, End) {
        let mut answers = Vec::new();
        loop {
            match self.next().await {
                Ok(answer) => answers.push(answer),
                Err(end) => return (answers, end),
            }
        }
    }
}
