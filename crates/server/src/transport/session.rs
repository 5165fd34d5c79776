//! Many requests on one connection, answered in the order in which they are ready.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use forrst_protocol::ErrorObject;
use futures_util::{Sink, SinkExt, Stream, StreamExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::error::Elapsed;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::intake::Intake;
use crate::Server;
use crate::access::{Caller, Credential};
use crate::limits::{Pool, Refusal, Room, TakenBytes};
use crate::metrics::Metrics;

/// How long calls may take that were under way when the client broke the rules.
const LAST_ANSWERS: Duration = Duration::from_secs(5);

/// How many frames are read ahead of those that are under way, so that a client that goes is noticed.
const READ_AHEAD: usize = 16;

/// How much of a message is read before bytes are taken for it.
const FIRST_PART: u64 = 16 * 1024;

/// When a message that there was no room for is read on, if there is room then.
const NO_ROOM: Duration = Duration::from_millis(50);

/// How many answers go out in one write at most.
const WRITTEN_AT_ONCE: usize = 256;

/// How a connection is treated.
pub(super) struct Rules<M> {
    /// The requests that may be under way at once, from the moment they begin until the client has taken the answer. A few more
    /// are read and wait; then nothing is read.
    pub(super) in_flight: InFlight,
    /// Where the bytes of its requests are taken from.
    pub(super) account: SessionAccount,
    /// How long a client may stay silent, or not read its answers.
    pub(super) idle_timeout: Duration,
    /// Sent when a client has been silent for half of that time, to see whether it is there. Without it, a client may be silent
    /// while something is under way.
    pub(super) keep_alive: Option<M>,
    /// Sent last when the server ends.
    pub(super) goodbye: Option<M>,
    /// Sent last to a client that does not finish a message in time.
    pub(super) too_slow: M,
    /// The server ends: what is under way is answered, and nothing more is read.
    pub(super) draining: CancellationToken,
    pub(super) metrics: Arc<Metrics>,
}

/// The requests of one connection that may be under way at once.
#[derive(Debug, Clone)]
pub(super) struct InFlight {
    most: u32,
    places: Arc<Semaphore>,
}

impl InFlight {
    pub(super) fn new(most: usize) -> Self {
        let most = u32::try_from(most.max(1)).unwrap_or(u32::MAX);
        Self {
            most,
            places: Arc::new(Semaphore::new(most as usize)),
        }
    }

    /// Places for so many requests that came together; for more than there are, all of them.
    pub(super) async fn take(&self, count: usize) -> Option<OwnedSemaphorePermit> {
        let places = self.places.clone();
        places.acquire_many_owned(self.at_most(count)).await.ok()
    }

    fn try_take(&self, count: usize) -> Option<OwnedSemaphorePermit> {
        let places = self.places.clone();
        places.try_acquire_many_owned(self.at_most(count)).ok()
    }

    fn at_most(&self, count: usize) -> u32 {
        u32::try_from(count).unwrap_or(u32::MAX).min(self.most)
    }
}

/// Where the requests of a session take their bytes from.
pub(super) struct SessionAccount {
    server: Server,
    connection: Arc<Pool>,
    /// Its name, or its address where it has none.
    caller: Arc<str>,
    intake: Arc<Intake>,
}

impl SessionAccount {
    pub(super) fn new(
        server: &Server,
        credential: &Credential,
        from: Option<Arc<str>>,
        intake: Arc<Intake>,
    ) -> Self {
        let caller = server.core.access.caller(credential).ok();
        let name = caller.as_ref().and_then(Caller::name);
        let name = name.map(|name| name.as_str().into());
        Self {
            server: server.clone(),
            connection: server.listeners.budgets.connection(),
            caller: name.or(from).unwrap_or_default(),
            intake,
        }
    }

    fn take(&self, bytes: usize) -> Result<TakenBytes, ErrorObject> {
        let budgets = &self.server.listeners.budgets;
        budgets.take(Some(&self.connection), Some(&self.caller), bytes)
    }
}

/// A message that has arrived in part: its bytes count like those of a request, and no more is read while there is no room.
struct Unfinished<'a> {
    account: &'a SessionAccount,
    /// How many bytes were received before it.
    before: u64,
    /// Its bytes, and until when it may arrive; `None` as long as no more than its first part is read.
    taken: Option<(TakenBytes, Instant)>,
}

impl<'a> Unfinished<'a> {
    fn new(account: &'a SessionAccount) -> Self {
        let unfinished = Self {
            account,
            before: account.intake.received(),
            taken: None,
        };
        unfinished.allow();
        unfinished
    }

    /// Waits for the next message.
    ///
    /// # Errors
    ///
    /// When one has begun and does not arrive in time. Others, such as pongs, may arrive meanwhile.
    async fn next<R, M>(
        &mut self,
        incoming: &mut (impl Stream<Item = Incoming<R, M>> + Unpin),
    ) -> Result<Option<Incoming<R, M>>, Elapsed> {
        let intake = &self.account.intake;
        loop {
            let next = poll_fn(|cx| match incoming.poll_next_unpin(cx) {
                Poll::Pending if intake.left() == 0 => Poll::Ready(None),
                next => next.map(Some),
            });
            let next = match &self.taken {
                Some((_, until)) => timeout_at(*until, next).await?,
                None => next.await,
            };
            if let Some(next) = next {
                self.has_arrived(next.as_ref());
                return Ok(next);
            }
            if !self.has_room() {
                self.account.server.core.metrics.refused(Refusal::Bytes);
                while !self.has_room() {
                    sleep(NO_ROOM).await;
                }
            }
        }
    }

    /// Takes the bytes of the rest; whether there are as many. All at once: frames that wait for each other's last bytes would
    /// wait for ever.
    fn has_room(&mut self) -> bool {
        let server = &self.account.server;
        let budgets = &server.listeners.budgets;
        let taken = budgets.take_for_frame(&self.account.caller, server.core.limits.max_body);
        let has_room = taken.is_some();
        let until = Instant::now() + server.core.limits.body_timeout;
        self.taken = taken.map(|taken| (taken, until));
        self.allow();
        has_room
    }

    fn has_arrived<R, M>(&mut self, message: Option<&Incoming<R, M>>) {
        let received = self.account.intake.received();
        match message {
            // It may stand between two parts of a message.
            Some(Incoming::Other(length)) => {
                self.before = received.min(self.before + *length as u64);
            }
            _ => {
                self.before = received;
                self.taken = None;
            }
        }
        self.allow();
    }

    fn allow(&self) {
        let limit = match self.taken {
            Some(_) => u64::MAX,
            None => self.before + FIRST_PART,
        };
        self.account.intake.limit(limit);
    }
}

/// Something that a client sent.
pub(super) enum Incoming<R, M> {
    Request(R),
    /// A sign of life, of so many bytes.
    Other(usize),
    /// Something that nothing can be read after. What is under way is answered, and then this is said.
    Last(M),
}

/// A frame that was read and waits for its turn.
struct Received<R> {
    count: usize,
    request: R,
    room: Room,
}

/// What is sent to a client.
pub(super) trait Message: Clone + Send + 'static {
    /// How many bytes it has.
    fn length(&self) -> usize;
}

impl Message for Bytes {
    fn length(&self) -> usize {
        self.len()
    }
}

/// Reads requests and writes answers until the client or the server ends.
///
/// Each request runs in a task. When the client disconnects, the tasks are dropped: waiting calls leave their queues. `count` says
/// how many requests a frame has; `answer` is given room for the answer, or why the frame is refused.
pub(super) async fn run<R, M, In, Out, F, Fut>(
    mut incoming: In,
    outgoing: Out,
    rules: Rules<M>,
    count: impl Fn(&R) -> usize,
    answer: F,
) where
    R: AsRef<[u8]>,
    M: Message,
    In: Stream<Item = Incoming<R, M>> + Unpin,
    Out: Sink<M> + Unpin + Send + 'static,
    F: Fn(R, Result<Room, ErrorObject>) -> Fut,
    Fut: Future<Output = Option<M>> + Send + 'static,
{
    let in_flight = &rules.in_flight;
    let mut unfinished = Unfinished::new(&rules.account);
    let (sender, answers) = mpsc::channel(WRITTEN_AT_ONCE);
    let writer = tokio::spawn(write(outgoing, answers, rules.idle_timeout));
    // A session that is dropped must not leave the connection to a writer that nobody reads from.
    let mut writer = AbortOnDropHandle::new(writer);
    let mut under_way = JoinSet::new();
    let mut backlog = VecDeque::new();
    let mut heard = Instant::now();
    let mut has_asked = false;
    let last_word = loop {
        let mut awaited = None;
        while let Some(count) = backlog.front().map(|next: &Received<R>| next.count) {
            let Some(place) = in_flight.try_take(count) else {
                awaited = Some(count);
                break;
            };
            let Some(Received { request, room, .. }) = backlog.pop_front() else {
                break;
            };
            let (answer, sender) = (answer(request, Ok(room.clone())), sender.clone());
            under_way.spawn(async move {
                if let Some(answer) = answer.await {
                    room.answered(answer.length());
                    // The writer is gone when the client is.
                    let _ = sender.send((answer, Some((place, room)))).await;
                }
            });
        }
        let is_idle = under_way.is_empty();
        let is_reading = backlog.len() < READ_AHEAD;
        let is_asking = rules.keep_alive.is_some();
        tokio::select! {
            // There is room for the next one.
            _ = in_flight.take(awaited.unwrap_or_default()), if awaited.is_some() => {}
            next = unfinished.next(&mut incoming), if is_reading => {
                match next {
                    Err(_) => {
                        rules.metrics.refused(Refusal::BodyTime);
                        break Some(rules.too_slow.clone());
                    }
                    Ok(None) => return close(under_way, sender, writer).await,
                    Ok(Some(Incoming::Other(_))) => {}
                    Ok(Some(Incoming::Request(request))) => {
                        if awaited.is_some() {
                            rules.metrics.refused(Refusal::InFlight);
                        }
                        match rules.account.take(request.as_ref().len()) {
                            Ok(bytes) => {
                                let (count, room) = (count(&request), Room::new(bytes));
                                backlog.push_back(Received { count, request, room });
                            }
                            // Now, and not in its turn: there is no room to keep it.
                            Err(refusal) => {
                                if let Some(answer) = answer(request, Err(refusal)).await {
                                    let _ = sender.send((answer, None)).await;
                                }
                            }
                        }
                    }
                    Ok(Some(Incoming::Last(word))) => break Some(word),
                }
                heard = Instant::now();
                has_asked = false;
            }
            _ = under_way.join_next(), if !is_idle => {}
            () = sleep_until(heard + rules.idle_timeout / 2), if is_asking && !has_asked => {
                has_asked = true;
                // A full channel means that the client does not read: the writer will give it up.
                let _ = rules.keep_alive.clone().map(|ping| sender.try_send((ping, None)));
            }
            () = sleep_until(heard + rules.idle_timeout), if is_reading && (is_asking || is_idle) => {
                return close(under_way, sender, writer).await;
            }
            () = rules.draining.cancelled() => break rules.goodbye.clone(),
            _ = &mut writer => return,
        }
    };
    let finish = async {
        for Received { request, room, .. } in backlog {
            if let Some(answer) = answer(request, Ok(room)).await {
                let _ = sender.send((answer, None)).await;
            }
        }
        while under_way.join_next().await.is_some() {}
        if let Some(word) = last_word {
            let _ = sender.send((word, None)).await;
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

/// Ends what is under way, and the connection as its protocol wants it.
async fn close<T>(under_way: JoinSet<()>, answers: mpsc::Sender<T>, writer: AbortOnDropHandle<()>) {
    drop((under_way, answers));
    let _ = timeout(LAST_ANSWERS, writer).await;
}

/// Whatever is ready together goes out in one write.
async fn write<M, Out: Sink<M> + Unpin>(
    mut outgoing: Out,
    mut answers: mpsc::Receiver<(M, Option<(OwnedSemaphorePermit, Room)>)>,
    patience: Duration,
) {
    let mut ready = Vec::new();
    while answers.recv_many(&mut ready, WRITTEN_AT_ONCE).await > 0 {
        let (messages, places): (Vec<M>, Vec<_>) = ready.drain(..).unzip();
        let write = async {
            for message in messages {
                outgoing.feed(message).await?;
            }
            outgoing.flush().await
        };
        match timeout(patience, write).await {
            Ok(Ok(())) => drop(places),
            _ => return,
        }
    }
    let _ = timeout(patience, outgoing.close()).await;
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::Context;

    use forrst_stores::MemoryStore;
    use futures_util::stream;

    use super::*;

    /// A client that reads nothing. The token is cancelled when the connection to it is closed.
    struct Deaf(#[expect(dead_code, reason = "only held")] tokio_util::sync::DropGuard);

    impl Sink<Bytes> for Deaf {
        type Error = ();

        fn poll_ready(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), ()>> {
            Poll::Pending
        }

        fn start_send(self: Pin<&mut Self>, _: Bytes) -> Result<(), ()> {
            Ok(())
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), ()>> {
            Poll::Pending
        }

        fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), ()>> {
            Poll::Pending
        }
    }

    #[tokio::test]
    async fn a_session_that_is_dropped_closes_its_connection() {
        let server = Server::builder()
            .store(Arc::new(MemoryStore::new()))
            .build()
            .unwrap();
        let rules = Rules {
            in_flight: InFlight::new(1),
            account: SessionAccount::new(&server, &Credential::Local, None, Arc::default()),
            idle_timeout: Duration::from_secs(60 * 60),
            keep_alive: None,
            goodbye: None,
            too_slow: Bytes::new(),
            draining: CancellationToken::new(),
            metrics: server.core.metrics.clone(),
        };
        let requests = stream::iter([Incoming::Request(Bytes::new())]);
        let incoming = requests.chain(stream::pending());
        let closed = CancellationToken::new();
        let outgoing = Deaf(closed.clone().drop_guard());
        let answer = |_, _| std::future::ready(Some(Bytes::from_static(b"answer")));
        let session = run(incoming, outgoing, rules, |_| 1, answer);
        // The answer is on its way by then.
        assert!(timeout(Duration::from_millis(50), session).await.is_err());
        let closed = timeout(Duration::from_secs(20), closed.cancelled()).await;
        assert!(closed.is_ok(), "the connection outlives its session");
    }
}
