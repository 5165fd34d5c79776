//! One message over its own WebSocket. The first message that arrives is the answer.

use futures_util::{SinkExt, StreamExt};
use hyper::header::AUTHORIZATION;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::{WebSocketStream, client_async};

use super::{Answer, ExchangeError, Server, Stream};

type Socket = WebSocketStream<Box<dyn Stream>>;

pub(super) async fn open(
    stream: Box<dyn Stream>,
    server: &Server,
) -> Result<Socket, ExchangeError> {
    // The stream is encrypted already where that is needed.
    let url = format!("ws://{}{}/rpc", server.authority, server.base_path);
    let mut request = url.into_client_request()?;
    if let Some(key) = &server.api_key {
        let key = key.header().map_err(hyper::http::Error::from)?;
        request.headers_mut().insert(AUTHORIZATION, key);
    }
    let (socket, _) = client_async(request, stream).await?;
    Ok(socket)
}

pub(super) async fn exchange(mut socket: Socket, text: String) -> Result<Answer, ExchangeError> {
    socket.send(Message::text(text)).await?;
    while let Some(message) = socket.next().await {
        match message? {
            Message::Text(text) => return Ok(answer(text.as_bytes())),
            Message::Binary(bytes) => return Ok(answer(&bytes)),
            Message::Close(_) => break,
            Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => {}
        }
    }
    Err(ExchangeError::Closed)
}

fn answer(body: &[u8]) -> Answer {
    Answer {
        body: body.to_vec(),
        ..Answer::default()
    }
}
