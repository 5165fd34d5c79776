//! Calls over a WebSocket, as JSON-RPC frames.

mod frame;
mod open;

use forrst_protocol::Request;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use tokio_tungstenite::tungstenite::{Bytes, Message};

use self::open::Socket;
pub(crate) use self::open::WebSocket;
use super::wire::{End, Incoming, Reader, Wire, Writer};
use crate::{Cause, Error};

impl Wire for WebSocket {
    type Reader = SplitStream<Socket>;
    type Writer = SplitSink<Socket, Message>;

    const PINGS: bool = true;

    async fn open(&self) -> Result<(Self::Reader, Self::Writer), Error> {
        let (writer, reader) = Self::open(self).await?.split();
        Ok((reader, writer))
    }

    fn encode(number: u64, request: Request<'_>) -> Result<String, Error> {
        frame::write(number, &request).map_err(|why| Error::InvalidRequest(why.into()))
    }
}

impl Reader for SplitStream<Socket> {
    async fn next(&mut self) -> Result<Incoming, End> {
        match StreamExt::next(self).await {
            Some(Ok(Message::Text(text))) => Ok(frame::read(&text)),
            Some(Ok(Message::Close(frame))) => {
                let reason = frame.map(|frame| frame.to_string()).unwrap_or_default();
                let why = format!("the server closed the connection: {reason}");
                Err(End::Broken(why))
            }
            Some(Ok(_)) => Ok(Incoming::Other),
            Some(Err(error)) => Err(End::Broken(format!("the connection broke: {error}"))),
            None => Err(End::Broken("the connection ended".to_owned())),
        }
    }
}

impl Writer for SplitSink<Socket, Message> {
    async fn write(
        &mut self,
        frames: &mut Vec<String>,
        begun: impl FnOnce() + Send,
    ) -> Result<(), Cause> {
        begun();
        for frame in frames.drain(..) {
            self.feed(Message::text(frame)).await?;
        }
        Ok(self.flush().await?)
    }

    async fn ping(&mut self) -> Result<(), Cause> {
        Ok(self.send(Message::Ping(Bytes::new())).await?)
    }

    async fn close(&mut self) -> Result<(), Cause> {
        Ok(SinkExt::close(self).await?)
    }
}
