//! One connection with many calls under way.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forrst_protocol::Request;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout};

use super::wire::{Answer, End, Incoming, Reader, Wire, Writer};
use crate::{Error, Failure};

/// A server that has been silent for this long is pinged.
const SILENCE: Duration = Duration::from_secs(15);
/// And it is given up when it has been silent for this long, or has not read what was sent.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long answers are read that were on their way when the server stopped reading.
const LAST_ANSWERS: Duration = Duration::from_secs(1);
/// So many calls wait to be written; further ones wait before that.
const QUEUE: usize = 256;

/// A handle to the connection. When it is dropped, the connection is closed.
#[derive(Debug)]
pub(super) struct Connection {
    calls: mpsc::Sender<Outgoing>,
    last_number: AtomicU64,
}

#[derive(Debug)]
struct Outgoing {
    frame: String,
    waiting: Waiting,
}

/// A call that waits for its answer.
#[derive(Debug)]
struct Waiting {
    number: u64,
    answer: oneshot::Sender<Answer>,
}

impl Connection {
    pub(super) fn start<W: Wire>(reader: W::Reader, writer: W::Writer) -> Self {
        let (sender, calls) = mpsc::channel(QUEUE);
        tokio::spawn(run::<W>(reader, writer, calls));
        Self {
            calls: sender,
            last_number: AtomicU64::new(0),
        }
    }

    pub(super) fn is_open(&self) -> bool {
        !self.calls.is_closed()
    }

    pub(super) async fn call<W: Wire>(&self, request: Request<'_>) -> Answer {
        let number = self.last_number.fetch_add(1, Ordering::Relaxed);
        let frame = W::encode(number, request)?;
        let (answer, answered) = oneshot::channel();
        let waiting = Waiting { number, answer };
        if self.calls.send(Outgoing { frame, waiting }).await.is_err() {
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

/// What reading and writing share. Both are in one task, so that neither waits for the lock.
struct Shared(Mutex<State>);

struct State {
    /// The calls that were written, or began to be.
    under_way: HashMap<u64, oneshot::Sender<Answer>>,
    heard: Instant,
    /// The last failure that names no call.
    complaint: Option<String>,
}

impl Shared {
    fn new() -> Self {
        Self(Mutex::new(State {
            under_way: HashMap::new(),
            heard: Instant::now(),
            complaint: None,
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn heard(&self) -> Instant {
        self.state().heard
    }

    fn expect(&self, begun: &mut Vec<Waiting>) {
        let begun = begun.drain(..).map(|call| (call.number, call.answer));
        self.state().under_way.extend(begun);
    }
}

impl State {
    /// Hands an answer to its call. One that names no call is about the only one, if there is only one.
    fn hand_out(&mut self, number: Option<u64>, answer: Answer) {
        let number = number.or_else(|| match self.under_way.len() {
            1 => self.under_way.keys().next().copied(),
            _ => None,
        });
        if let Some(waiting) = number.and_then(|number| self.under_way.remove(&number)) {
            // A caller that has gone does not need it any more.
            let _ = waiting.send(answer);
            return;
        }
        tracing::warn!(?number, "a server answered a request that nobody made");
        let complaint = answer.and_then(|response| Ok(Failure::check(response)?));
        self.complaint = complaint.err().map(|error| error.to_string());
    }
}

async fn run<W: Wire>(reader: W::Reader, writer: W::Writer, mut calls: mpsc::Receiver<Outgoing>) {
    let shared = Shared::new();
    let mut unsent = Vec::new();
    let end = {
        let mut read = pin!(read(reader, &shared));
        let ended = tokio::select! {
            end = &mut read => Ok(end),
            end = silent(&shared), if W::PINGS => Ok(end),
            why = write::<W>(writer, &mut calls, &mut unsent, &shared) => Err(why),
        };
        // From now on, callers open another connection.
        calls.close();
        match ended {
            Ok(end) => end,
            Err(None) => End::Broken("nobody needs it any more".to_owned()),
            Err(Some(why)) => {
                let rest = timeout(LAST_ANSWERS, read).await;
                rest.unwrap_or(End::Broken(why))
            }
        }
    };
    tracing::debug!(?end, "a connection ended");
    for call in unsent {
        let _ = call.answer.send(Err(not_sent()));
    }
    while let Some(call) = calls.recv().await {
        let _ = call.waiting.answer.send(Err(not_sent()));
    }
    let state = shared.0.into_inner();
    let state = state.unwrap_or_else(PoisonError::into_inner);
    for answer in state.under_way.into_values() {
        let _ = answer.send(Err(match (&end, &state.complaint) {
            (End::TurnedAway(why), _) => Error::Unreachable(why.clone().into()),
            (End::Broken(why), None) => interrupted(why),
            (End::Broken(why), Some(said)) => interrupted(&format!("{why}, after: {said}")),
        }));
    }
}

/// Hands out answers until the connection ends.
async fn read(mut reader: impl Reader, shared: &Shared) -> End {
    loop {
        let incoming = match reader.next().await {
            Ok(incoming) => incoming,
            Err(end) => return end,
        };
        let mut state = shared.state();
        state.heard = Instant::now();
        if let Incoming::Answer { number, answer } = incoming {
            state.hand_out(number, answer);
        }
    }
}

/// Returns when nothing was heard for too long.
async fn silent(shared: &Shared) -> End {
    loop {
        let until = shared.heard() + PATIENCE;
        sleep_until(until).await;
        if shared.heard() + PATIENCE <= until {
            return End::Broken(format!("the server was silent for {PATIENCE:?}"));
        }
    }
}

/// Writes what is ready in one go, until that fails, and says why; or until nobody needs the connection any more.
///
/// What is `unsent` in the end was certainly not sent.
async fn write<W: Wire>(
    mut writer: W::Writer,
    calls: &mut mpsc::Receiver<Outgoing>,
    unsent: &mut Vec<Waiting>,
    shared: &Shared,
) -> Option<String> {
    let mut ready = Vec::new();
    let mut frames = Vec::new();
    let mut silence = pin!(sleep_until(shared.heard() + SILENCE));
    loop {
        tokio::select! {
            count = calls.recv_many(&mut ready, QUEUE) => {
                if count == 0 {
                    let _ = timeout(LAST_ANSWERS, writer.close()).await;
                    return None;
                }
            }
            () = &mut silence, if W::PINGS => {
                let due = shared.heard() + SILENCE;
                if Instant::now() < due {
                    silence.as_mut().reset(due);
                    continue;
                }
                // One ping is enough: without an answer, the connection ends before that.
                silence.as_mut().reset(Instant::now() + PATIENCE);
            }
        }
        let written = if ready.is_empty() {
            timeout(PATIENCE, writer.ping()).await
        } else {
            for call in ready.drain(..) {
                frames.push(call.frame);
                unsent.push(call.waiting);
            }
            let begun = || shared.expect(unsent);
            timeout(PATIENCE, writer.write(&mut frames, begun)).await
        };
        match written {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Some(format!("the connection broke: {error}")),
            Err(_) => return Some(format!("the server read nothing for {PATIENCE:?}")),
        }
    }
}

#[cfg(all(test, unix))]
mod tests;
