//! Many requests on one connection, answered in the order in which they are ready.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{Sink, SinkExt, Stream, StreamExt};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

/// How a connection is treated.
pub(super) struct Rules<M> {
    /// How many requests may be under way at once. A client who sends more is not read from.
    pub(super) max_in_flight: usize,
    /// How long a client may stay silent while nothing is under way.
    pub(super) idle_timeout: Duration,
    /// Sent when a client has been silent for half of that time, to see whether it is there.
    pub(super) keep_alive: Option<M>,
    /// Sent last when the server ends.
    pub(super) goodbye: Option<M>,
    /// The server ends: what is under way is answered, and nothing more is read.
    pub(super) draining: CancellationToken,
}

/// Something that a client sent.
pub(super) enum Incoming<R> {
    Request(R),
    /// A sign of life.
    Other,
}

/// Reads requests and writes answers until the client or the server ends.
///
/// Each request runs in a task. When the client goes, the tasks are dropped: waiting calls leave their queues.
pub(super) async fn run<R, M, In, Out, F, Fut>(
    mut incoming: In,
    mut outgoing: Out,
    rules: Rules<M>,
    answer: F,
) where
    M: Clone + Send + 'static,
    In: Stream<Item = Incoming<R>> + Unpin,
    Out: Sink<M> + Unpin + Send + 'static,
    F: Fn(R) -> Fut,
    Fut: Future<Output = Option<M>> + Send + 'static,
{
    let (sender, mut answers) = mpsc::channel::<M>(rules.max_in_flight.max(1));
    let mut writer = tokio::spawn(async move {
        let mut ready = Vec::new();
        // Whatever is ready together goes out in one write.
        while answers.recv_many(&mut ready, 256).await > 0 {
            for answer in ready.drain(..) {
                if outgoing.feed(answer).await.is_err() {
                    return;
                }
            }
            if outgoing.flush().await.is_err() {
                return;
            }
        }
        let _ = outgoing.close().await;
    });
    let places = Arc::new(Semaphore::new(rules.max_in_flight));
    let mut under_way = JoinSet::new();
    let mut heard = Instant::now();
    let mut has_asked = false;
    loop {
        let is_idle = under_way.is_empty();
        let ask_at = heard + rules.idle_timeout / 2;
        let give_up_at = heard + rules.idle_timeout;
        tokio::select! {
            place = places.clone().acquire_owned(), if places.available_permits() == 0 => drop(place),
            next = incoming.next(), if places.available_permits() > 0 => match next {
                None => break,
                Some(Incoming::Other) => {
                    heard = Instant::now();
                    has_asked = false;
                }
                Some(Incoming::Request(request)) => {
                    heard = Instant::now();
                    has_asked = false;
                    let place = places.clone().try_acquire_owned();
                    let (answer, sender) = (answer(request), sender.clone());
                    under_way.spawn(async move {
                        if let Some(answer) = answer.await {
                            // The writer is gone when the client is.
                            let _ = sender.send(answer).await;
                        }
                        drop(place);
                    });
                }
            },
            () = sleep_until(ask_at), if !has_asked && rules.keep_alive.is_some() => {
                has_asked = true;
                // A full channel means that the client does not read: it will be given up soon enough.
                let _ = rules.keep_alive.clone().map(|ping| sender.try_send(ping));
            }
            () = sleep_until(give_up_at), if is_idle || rules.keep_alive.is_some() => break,
            _ = under_way.join_next(), if !is_idle => {}
            () = rules.draining.cancelled() => {
                while under_way.join_next().await.is_some() {}
                if let Some(goodbye) = rules.goodbye {
                    let _ = sender.send(goodbye).await;
                }
                break;
            }
            _ = &mut writer => return,
        }
    }
    drop(under_way);
    drop(sender);
    let _ = tokio::time::timeout(Duration::from_secs(1), writer).await;
}
