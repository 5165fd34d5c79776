//! One connection with many calls under way.
//!
//! A single task reads and writes it. It matches answers to calls by number. When the connection ends, it knows which calls were
//! certainly not sent and which may have run.

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
const PING_AFTER: Duration = Duration::from_secs(15);
/// The connection is given up when the server has been silent for this long, or has not read what was sent.
const GIVE_UP_AFTER: Duration = Duration::from_secs(30);
/// How long answers are still read after a write has failed: they may have been on their way.
const LAST_ANSWERS: Duration = Duration::from_secs(1);
/// How many calls may be queued to be written; more calls wait to enter the queue.
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
    pending: PendingCall,
}

/// A call whose answer is awaited.
#[derive(Debug)]
struct PendingCall {
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
        let pending = PendingCall { number, answer };
        if self.calls.send(Outgoing { frame, pending }).await.is_err() {
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

/// What reading and writing share. Both are in one task, so the mutex is never contended.
struct Shared(Mutex<ConnectionState>);

struct ConnectionState {
    /// The calls whose frames were written, or began to be.
    under_way: HashMap<u64, oneshot::Sender<Answer>>,
    last_received: Instant,
    /// The last failure that could not be assigned to a call.
    unassigned_failure: Option<String>,
}

impl Shared {
    fn new() -> Self {
        Self(Mutex::new(ConnectionState {
            under_way: HashMap::new(),
            last_received: Instant::now(),
            unassigned_failure: None,
        }))
    }

    fn state(&self) -> MutexGuard<'_, ConnectionState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn last_received(&self) -> Instant {
        self.state().last_received
    }

    fn mark_sent(&self, begun: &mut Vec<PendingCall>) {
        let begun = begun.drain(..).map(|call| (call.number, call.answer));
        self.state().under_way.extend(begun);
    }
}

impl ConnectionState {
    /// Passes an answer to its call. One without a number belongs to the only call, if there is only one.
    fn dispatch(&mut self, number: Option<u64>, answer: Answer) {
        let number = number.or_else(|| match self.under_way.len() {
            1 => self.under_way.keys().next().copied(),
            _ => None,
        });
        if let Some(caller) = number.and_then(|number| self.under_way.remove(&number)) {
            // This fails when the caller has stopped waiting.
            let _ = caller.send(answer);
            return;
        }
        tracing::warn!(?number, "a server answered a request that was not sent");
        let unassigned_failure = answer.and_then(|response| Ok(Failure::check(response)?));
        self.unassigned_failure = unassigned_failure.err().map(|error| error.to_string());
    }
}

async fn run<W: Wire>(reader: W::Reader, writer: W::Writer, mut calls: mpsc::Receiver<Outgoing>) {
    let shared = Shared::new();
    let mut unsent = Vec::new();
    let end = {
        let mut read = pin!(read(reader, &shared));
        let ended = tokio::select! {
            end = &mut read => Ok(end),
            end = until_silent(&shared), if W::PINGS => Ok(end),
            why = write::<W>(writer, &mut calls, &mut unsent, &shared) => Err(why),
        };
        // From now on, callers open another connection.
        calls.close();
        match ended {
            Ok(end) => end,
            Err(None) => End::Broken("the connection is no longer needed".to_owned()),
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
        let _ = call.pending.answer.send(Err(not_sent()));
    }
    let state = shared.0.into_inner();
    let state = state.unwrap_or_else(PoisonError::into_inner);
    for answer in state.under_way.into_values() {
        let _ = answer.send(Err(match (&end, &state.unassigned_failure) {
            (End::Refused(why), _) => Error::Unreachable(why.clone().into()),
            (End::Broken(why), None) => interrupted(why),
            (End::Broken(why), Some(failure)) => interrupted(&format!("{why}, after: {failure}")),
        }));
    }
}

/// Passes answers to their calls until the connection ends.
async fn read(mut reader: impl Reader, shared: &Shared) -> End {
    loop {
        let incoming = match reader.next().await {
            Ok(incoming) => incoming,
            Err(end) => return end,
        };
        let mut state = shared.state();
        state.last_received = Instant::now();
        if let Incoming::Answer { number, answer } = incoming {
            state.dispatch(number, answer);
        }
    }
}

/// Returns when the server was silent for too long.
async fn until_silent(shared: &Shared) -> End {
    loop {
        let until = shared.last_received() + GIVE_UP_AFTER;
        sleep_until(until).await;
        if shared.last_received() + GIVE_UP_AFTER <= until {
            return End::Broken(format!("the server was silent for {GIVE_UP_AFTER:?}"));
        }
    }
}

/// Writes queued calls, as many as are ready in one write. Returns why a write failed, or `None` when the connection is no longer
/// needed.
///
/// The calls that are left in `unsent` were certainly not sent.
async fn write<W: Wire>(
    mut writer: W::Writer,
    calls: &mut mpsc::Receiver<Outgoing>,
    unsent: &mut Vec<PendingCall>,
    shared: &Shared,
) -> Option<String> {
    let mut ready = Vec::new();
    let mut frames = Vec::new();
    let mut ping_timer = pin!(sleep_until(shared.last_received() + PING_AFTER));
    loop {
        tokio::select! {
            count = calls.recv_many(&mut ready, QUEUE) => {
                if count == 0 {
                    let _ = timeout(LAST_ANSWERS, writer.close()).await;
                    return None;
                }
            }
            () = &mut ping_timer, if W::PINGS => {
                let due = shared.last_received() + PING_AFTER;
                if Instant::now() < due {
                    ping_timer.as_mut().reset(due);
                    continue;
                }
                // One ping is enough: without an answer, the connection is given up before the next.
                ping_timer.as_mut().reset(Instant::now() + GIVE_UP_AFTER);
            }
        }
        let written = if ready.is_empty() {
            timeout(GIVE_UP_AFTER, writer.ping()).await
        } else {
            for call in ready.drain(..) {
                frames.push(call.frame);
                unsent.push(call.pending);
            }
            let begun = || shared.mark_sent(unsent);
            timeout(GIVE_UP_AFTER, writer.write(&mut frames, begun)).await
        };
        match written {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Some(format!("the connection broke: {error}")),
            Err(_) => return Some(format!("the server read nothing for {GIVE_UP_AFTER:?}")),
        }
    }
}

#[cfg(all(test, unix))]
mod tests;
