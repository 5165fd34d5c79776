//! JSON-RPC over a WebSocket: a [`session`] whose frames are messages. It is closed when its credential is revoked.

use std::error::Error;
use std::sync::Arc;

use axum::extract::WebSocketUpgrade;
use axum::extract::ws::{CloseFrame, Message, WebSocket, close_code};
use axum::response::Response;
use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use tokio::time::sleep;
use tokio_tungstenite::tungstenite;

use super::connection::Connection;
use super::interrupt::run_until;
use super::rpc::{Frame, Rpc, Sender};
use super::serve::LAST_ANSWERS;
use super::session::{self, Incoming, Rules, SessionAccount};
use crate::Server;
use crate::limits::Refusal;

/// The length of the header of a masked control frame.
const CONTROL_HEADER: usize = 6;

/// The read buffer of each WebSocket.
const READ_BUFFER: usize = 8 * 1024;

pub(super) fn accept(
    upgrade: WebSocketUpgrade,
    server: Server,
    sender: Sender,
    connection: Option<Arc<Connection>>,
) -> Response {
    let max_body = server.core.limits.max_body;
    upgrade
        .read_buffer_size(READ_BUFFER)
        .max_message_size(max_body)
        .max_frame_size(max_body)
        .on_upgrade(move |socket| {
            let token = server.core.tasks.token();
            async move {
                run(socket, &server, sender, connection).await;
                drop(token);
            }
        })
}

async fn run(
    socket: WebSocket,
    server: &Server,
    sender: Sender,
    connection: Option<Arc<Connection>>,
) {
    let limits = &server.core.limits;
    let draining = server.core.draining.child_token();
    let close = CloseFrame {
        code: close_code::AWAY,
        reason: "the server is shutting down".into(),
    };
    let intake = connection
        .as_ref()
        .map(|connection| connection.intake.clone());
    let (subscriptions, notifications) = Rpc::subscriptions();
    let sender = Sender {
        subscriptions: Some(subscriptions),
        ..sender
    };
    let rules = Rules {
        max_in_flight: limits.max_in_flight,
        account: SessionAccount::new(
            server,
            &sender.credential,
            sender.from.clone(),
            intake.unwrap_or_default(),
        ),
        idle_timeout: limits.idle_timeout,
        notifications: notifications.map(|text| Message::Text(text.into())).boxed(),
        keep_alive: Some(Message::Ping(Bytes::new())),
        close: Some(Message::Close(Some(close))),
        too_slow: too_slow(),
        draining: draining.clone(),
        metrics: server.core.metrics.clone(),
    };
    let (outgoing, incoming) = socket.split();
    let is_shutting_down = server.core.draining.clone();
    let outgoing = outgoing.with(move |message| {
        // The session has one close message; whether it ends by a shutdown or a revocation is known only here.
        let message = match message {
            Message::Close(Some(frame))
                if frame.code == close_code::AWAY && !is_shutting_down.is_cancelled() =>
            {
                revoked()
            }
            message => message,
        };
        std::future::ready(Ok::<_, axum::Error>(message))
    });
    let incoming = incoming
        .take_while(|message| {
            let goes_on = match message {
                Ok(message) => !matches!(message, Message::Close(_)),
                Err(error) => is_too_large(error),
            };
            std::future::ready(goes_on)
        })
        .map(|message| match message {
            Ok(Message::Text(text)) => Incoming::Request(Frame::read(Bytes::from(text))),
            Ok(Message::Binary(bytes)) => Incoming::Request(Frame::read(bytes)),
            Ok(control) => Incoming::Control(CONTROL_HEADER + session::Message::length(&control)),
            Err(_) => {
                server.core.metrics.refused(Refusal::Body);
                Incoming::Violation(too_large())
            }
        });
    let answer = |frame: Frame, room| {
        let (server, mut sender) = (server.clone(), sender.clone());
        match room {
            Ok(room) => sender.room = room,
            Err(refusal) => sender.refusal = Some(refusal),
        }
        async move {
            let answer = server
                .rpc()
                .answer(&server.core, frame.parse(), sender)
                .await?;
            Some(Message::Text(answer.into()))
        }
    };
    let disconnected = async {
        match &connection {
            Some(connection) => connection.disconnected().await,
            None => std::future::pending().await,
        }
    };
    let ended = async {
        sender.revoked(&server.core).await;
        // Calls that wait are refused, and the client gets to read that.
        draining.cancel();
        sleep(LAST_ANSWERS).await;
    };
    let session = session::run(incoming, outgoing, rules, Frame::count, answer);
    run_until(session, async {
        tokio::select! {
            () = disconnected => {}
            () = ended => {}
        }
    })
    .await;
}

impl session::Message for Message {
    fn length(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Binary(bytes) | Self::Ping(bytes) | Self::Pong(bytes) => bytes.len(),
            Self::Close(_) => 0,
        }
    }
}

fn revoked() -> Message {
    Message::Close(Some(CloseFrame {
        code: close_code::POLICY,
        reason: "the key or certificate was revoked".into(),
    }))
}

fn too_slow() -> Message {
    Message::Close(Some(CloseFrame {
        code: close_code::POLICY,
        reason: "the message did not arrive in time".into(),
    }))
}

/// Whether the client sent too large a message. Any other error is a failed connection.
fn is_too_large(error: &axum::Error) -> bool {
    // Downcast works because the workspace uses the same version of tungstenite as axum.
    let error = error.source().and_then(<dyn Error>::downcast_ref);
    matches!(error, Some(tungstenite::Error::Capacity(_)))
}

fn too_large() -> Message {
    Message::Close(Some(CloseFrame {
        code: close_code::SIZE,
        reason: "the message is too large".into(),
    }))
}
