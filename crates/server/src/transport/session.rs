//! Many requests on one connection, answered in the order in which they are ready.

use std::collections::VecDeque;
use std::time::Duration;

use futures_util::{Sink, SinkExt, Stream, StreamExt};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

/// How long calls may take that were under way when the client broke the rules.
const LAST_ANSWERS: Duration = Duration::from_secs(5);

/// How a connection is treated.
pub(super) struct Rules<M> {
    /// How many requests may be under way at once. As many more are read and wait; then nothing is read.
    pub(super) max_in_flight: usize,
    /// How long a client may stay silent, or not read its answers.
    pub(super) idle_timeout: Duration,
    /// Sent when a client has been silent for half of that time, to see whether it is there. Without it, a client may be silent
    /// while something is under way.
    pub(super) keep_alive: Option<M>,
    /// Sent last when the server ends.
    pub(super) goodbye: Option<M>,
    /// The server ends: what is under way is answered, and nothing more is read.
    pub(super) draining: CancellationToken,
}

/// Something that a client sent.
pub(super) enum Incoming<R, M> {
    Request(R),
    /// A sign of life.
    Other,
    /// Something that nothing can be read after. What is under way is answered, and then this is said.
    Last(M),
}

/// Reads requests and writes answers until the client or the server ends.
///
/// Each request runs in a task. When the client goes, the tasks are dropped: waiting calls leave their queues.
pub(super) async fn run<R, M, In, Out, F, Fut>(
    mut incoming: In,
    outgoing: Out,
    rules: Rules<M>,
    answer: F,
) where
    M: Clone + Send + 'static,
    In: Stream<Item = Incoming<R, M>> + Unpin,
    Out: Sink<M> + Unpin + Send + 'static,
    F: Fn(R) -> Fut,
    Fut: Future<Output = Option<M>> + Send + 'static,
{
    let max_in_flight = rules.max_in_flight.max(1);
    let (sender, answers) = mpsc::channel::<M>(max_in_flight);
    let mut writer = tokio::spawn(write(outgoing, answers, rules.idle_timeout));
    let mut under_way = JoinSet::new();
    let mut backlog = VecDeque::new();
    let mut heard = Instant::now();
    let mut has_asked = false;
    let last_word = loop {
        while under_way.len() < max_in_flight
            && let Some(request) = backlog.pop_front()
        {
            let (answer, sender) = (answer(request), sender.clone());
            under_way.spawn(async move {
                if let Some(answer) = answer.await {
                    // The writer is gone when the client is.
                    let _ = sender.send(answer).await;
                }
            });
        }
        let is_idle = under_way.is_empty();
        let is_reading = backlog.len() < max_in_flight;
        let is_asking = rules.keep_alive.is_some();
        tokio::select! {
            next = incoming.next(), if is_reading => {
                match next {
                    None => return,
                    Some(Incoming::Other) => {}
                    Some(Incoming::Request(request)) => backlog.push_back(request),
                    Some(Incoming::Last(word)) => break Some(word),
                }
                heard = Instant::now();
                has_asked = false;
            }
            _ = under_way.join_next(), if !is_idle => {}
            () = sleep_until(heard + rules.idle_timeout / 2), if is_asking && !has_asked => {
                has_asked = true;
                // A full channel means that the client does not read: the writer will give it up.
                let _ = rules.keep_alive.clone().map(|ping| sender.try_send(ping));
            }
            () = sleep_until(heard + rules.idle_timeout), if is_reading && (is_asking || is_idle) => return,
            () = rules.draining.cancelled() => break rules.goodbye.clone(),
            _ = &mut writer => return,
        }
    };
    let finish = async {
        for request in backlog {
            if let Some(answer) = answer(request).await {
                let _ = sender.send(answer).await;
            }
        }
        while under_way.join_next().await.is_some() {}
        if let Some(word) = last_word {
            let _ = sender.send(word).await;
        }
        drop(sender);
        let _ = writer.await;
    };
    // A server that ends waits as long as its own drain timeout. Whether a client that broke the rules is still there cannot be
    // seen any more, so it is not waited for so long.
    if rules.draining.is_cancelled() {
        finish.await;
    } else {
        let _ = timeout(rules.idle_timeout.min(LAST_ANSWERS), finish).await;
    }
}

/// Whatever is ready together goes out in one write.
async fn write<M, Out: Sink<M> + Unpin>(
    mut outgoing: Out,
    mut answers: mpsc::Receiver<M>,
    patience: Duration,
) {
    let mut ready = Vec::new();
    while answers.recv_many(&mut ready, 256).await > 0 {
        let write = async {
            for answer in ready.drain(..) {
                outgoing.feed(answer).await?;
            }
            outgoing.flush().await
        };
        match timeout(patience, write).await {
            Ok(Ok(())) => {}
            _ => return,
        }
    }
    let _ = timeout(patience, outgoing.close()).await;
}
