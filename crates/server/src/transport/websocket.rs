//! JSON-RPC over a WebSocket.

use std::sync::Arc;

use axum::extract::WebSocketUpgrade;
use axum::extract::ws::{CloseFrame, Message, WebSocket, close_code};
use axum::response::Response;
use bytes::Bytes;
use futures_util::StreamExt;

use super::rpc::{Rpc, Sender};
use super::serve::Place;
use super::session::{self, InFlight, Incoming, Rules};
use crate::Server;
use crate::limits::Refusal;

pub(super) fn accept(
    upgrade: WebSocketUpgrade,
    server: Server,
    rpc: Arc<Rpc>,
    sender: Sender,
    place: Option<Place>,
) -> Response {
    let max_body = server.core.limits.max_body;
    upgrade
        .max_message_size(max_body)
        .max_frame_size(max_body)
        .on_upgrade(move |socket| {
            let token = server.core.tasks.token();
            async move {
                run(socket, &server, &rpc, sender).await;
                drop((token, place));
            }
        })
}

async fn run(socket: WebSocket, server: &Server, rpc: &Arc<Rpc>, sender: Sender) {
    let limits = &server.core.limits;
    let goodbye = CloseFrame {
        code: close_code::AWAY,
        reason: "the server is shutting down".into(),
    };
    let rules = Rules {
        in_flight: InFlight::new(limits.max_in_flight),
        idle_timeout: limits.idle_timeout,
        keep_alive: Some(Message::Ping(Bytes::new())),
        goodbye: Some(Message::Close(Some(goodbye))),
        draining: server.core.draining.clone(),
        metrics: server.core.metrics.clone(),
    };
    let (outgoing, incoming) = socket.split();
    let incoming = incoming
        .take_while(|message| {
            let goes_on = match message {
                Ok(message) => !matches!(message, Message::Close(_)),
                Err(error) => is_too_large(error),
            };
            std::future::ready(goes_on)
        })
        .map(|message| match message {
            Ok(Message::Text(text)) => Incoming::Request(Bytes::from(text)),
            Ok(Message::Binary(bytes)) => Incoming::Request(bytes),
            Ok(_) => Incoming::Other,
            Err(_) => {
                server.core.metrics.refused(Refusal::Body);
                Incoming::Last(too_large())
            }
        });
    let count = |frame: &Bytes| Rpc::count(frame);
    let answer = |frame: Bytes| {
        let (rpc, sender) = (rpc.clone(), sender.clone());
        async move {
            let answer = rpc.answer(&frame, sender).await?;
            Some(Message::Text(answer.into()))
        }
    };
    session::run(incoming, outgoing, rules, count, answer).await;
}

/// Any other error is a connection that broke.
fn is_too_large(error: &axum::Error) -> bool {
    // The kind of the error is that of a crate of axum's, in a version of its choice.
    error.to_string().contains("too long")
}

fn too_large() -> Message {
    Message::Close(Some(CloseFrame {
        code: close_code::SIZE,
        reason: "the message is too large".into(),
    }))
}
