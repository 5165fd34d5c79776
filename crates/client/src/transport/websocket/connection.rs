//! One WebSocket with many calls under way.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use forrst_protocol::Request;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use serde_json::value::RawValue;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_tungstenite::tungstenite::{Bytes, Message};

use super::frame::{self, Incoming};
use super::open::Socket;
use crate::Error;

/// A server that has been silent for this long is asked whether it is there.
const SILENCE: Duration = Duration::from_secs(15);
/// And it is given up when it has said nothing for this long, or not read what was sent.
const PATIENCE: Duration = Duration::from_secs(30);
/// So many calls wait to be written; whoever comes then waits before that.
const QUEUE: usize = 256;

type Answer = Result<Box<RawValue>, Error>;

/// A handle to the connection. When the last one is gone, it is closed.
#[derive(Debug, Clone)]
pub(super) struct Connection {
    calls: mpsc::Sender<Outgoing>,
    last_id: Arc<AtomicU64>,
}

#[derive(Debug)]
struct Outgoing {
    id: u64,
    frame: String,
    answer: oneshot::Sender<Answer>,
}

impl Connection {
    pub(super) fn start(socket: Socket) -> Self {
        let (sender, calls) = mpsc::channel(QUEUE);
        tokio::spawn(run(socket, calls));
        Self {
            calls: sender,
            last_id: Arc::default(),
        }
    }

    pub(super) fn is_open(&self) -> bool {
        !self.calls.is_closed()
    }

    pub(super) async fn call(&self, request: &Request<'_>) -> Answer {
        let id = self.last_id.fetch_add(1, Ordering::Relaxed);
        let frame = frame::write(id, request).map_err(|why| Error::InvalidRequest(why.into()))?;
        let (answer, answered) = oneshot::channel();
        let call = Outgoing { id, frame, answer };
        if self.calls.send(call).await.is_err() {
            return Err(not_sent());
        }
        answered
            .await
            .unwrap_or_else(|_| Err(interrupted("the connection broke")))
    }
}

fn not_sent() -> Error {
    Error::Unreachable("the connection was closed before the request was sent".into())
}

fn interrupted(why: &str) -> Error {
    Error::Interrupted(why.to_owned().into())
}

/// What reading and writing share.
struct Shared {
    /// The calls that were written, or began to be.
    under_way: Mutex<HashMap<u64, oneshot::Sender<Answer>>>,
    heard: Mutex<Instant>,
}

impl Shared {
    fn heard(&self) -> Instant {
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hear(&self) {
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    fn expect(&self, id: u64, answer: oneshot::Sender<Answer>) {
        let mut under_way = self
            .under_way
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        under_way.insert(id, answer);
    }

    fn expected(&self, id: u64) -> Option<oneshot::Sender<Answer>> {
        let mut under_way = self
            .under_way
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        under_way.remove(&id)
    }
}

async fn run(socket: Socket, mut calls: mpsc::Receiver<Outgoing>) {
    let shared = Shared {
        under_way: Mutex::default(),
        heard: Mutex::new(Instant::now()),
    };
    let (sink, stream) = socket.split();
    let why = tokio::select! {
        why = read(stream, &shared) => why,
        why = write(sink, &mut calls, &shared) => why,
    };
    tracing::debug!(why, "a WebSocket ended");
    // Whoever comes from now on opens another connection.
    calls.close();
    while let Some(call) = calls.recv().await {
        let _ = call.answer.send(Err(not_sent()));
    }
    let under_way = shared
        .under_way
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    for answer in under_way.into_values() {
        let _ = answer.send(Err(interrupted(&why)));
    }
}

/// Hands out answers until the connection ends, and says why it did.
async fn read(mut stream: SplitStream<Socket>, shared: &Shared) -> String {
    loop {
        let message = tokio::select! {
            message = stream.next() => message,
            () = sleep_until(shared.heard() + PATIENCE) => {
                // Something may have been heard while it slept.
                if shared.heard().elapsed() < PATIENCE {
                    continue;
                }
                return format!("the server was silent for {PATIENCE:?}");
            }
        };
        shared.hear();
        match message {
            Some(Ok(Message::Text(text))) => hand_out(&text, shared),
            Some(Ok(Message::Close(frame))) => {
                let reason = frame.map(|frame| frame.to_string()).unwrap_or_default();
                return format!("the server closed the connection: {reason}");
            }
            Some(Ok(_)) => {}
            Some(Err(error)) => return format!("the connection broke: {error}"),
            None => return "the connection ended".to_owned(),
        }
    }
}

fn hand_out(text: &str, shared: &Shared) {
    match Incoming::read(text) {
        Ok(frame) => {
            let id = frame.id;
            let answer = frame
                .into_answer()
                .map_err(|why| Error::Protocol(why.into()));
            match id.and_then(|id| shared.expected(id)) {
                // A caller who has gone does not need it any more.
                Some(waiting) => drop(waiting.send(answer)),
                None => tracing::warn!(?id, "a server answered a request that nobody made"),
            }
        }
        Err(error) => tracing::warn!(%error, "a server sent something that is no JSON-RPC"),
    }
}

/// Writes what is there together in one go, until the connection ends or nobody needs it any more.
async fn write(
    mut sink: SplitSink<Socket, Message>,
    calls: &mut mpsc::Receiver<Outgoing>,
    shared: &Shared,
) -> String {
    let mut ready = Vec::new();
    let mut asked = None;
    loop {
        let heard = shared.heard();
        tokio::select! {
            count = calls.recv_many(&mut ready, QUEUE) => {
                if count == 0 {
                    let _ = timeout(Duration::from_secs(1), sink.close()).await;
                    return "nobody needs it any more".to_owned();
                }
            }
            () = sleep_until(heard + SILENCE), if asked != Some(heard) => {
                asked = Some(heard);
            }
        }
        let write = async {
            if ready.is_empty() {
                sink.feed(Message::Ping(Bytes::new())).await?;
            }
            for Outgoing { id, frame, answer } in ready.drain(..) {
                shared.expect(id, answer);
                sink.feed(Message::text(frame)).await?;
            }
            sink.flush().await
        };
        match timeout(PATIENCE, write).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return format!("the connection broke: {error}"),
            Err(_) => return format!("the server read nothing for {PATIENCE:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;
    use tokio::task::yield_now;
    use tokio_tungstenite::WebSocketStream;
    use tokio_tungstenite::tungstenite::protocol::Role;

    use super::*;
    use crate::transport::websocket::open;

    async fn many_turns() {
        for _ in 0..100 {
            yield_now().await;
        }
    }

    #[tokio::test]
    async fn only_what_was_written_may_have_run() {
        // A server that reads one byte and no more holds up whoever writes.
        let (here, there) = duplex(1);
        let here: Box<dyn open::Bytes> = Box::new(here);
        let socket = WebSocketStream::from_raw_socket(here, Role::Client, None).await;
        let connection = Connection::start(socket);
        let call = || {
            let connection = connection.clone();
            tokio::spawn(async move {
                let request = Request::new("r".parse().unwrap(), "a.b".parse().unwrap());
                connection.call(&request).await.unwrap_err()
            })
        };
        let written = call();
        many_turns().await;
        let queued = call();
        many_turns().await;
        drop(there);
        let (written, queued) = (written.await.unwrap(), queued.await.unwrap());
        assert!(matches!(written, Error::Interrupted(_)), "{written}");
        assert!(matches!(queued, Error::Unreachable(_)), "{queued}");
        assert!(!connection.is_open());
    }
}
