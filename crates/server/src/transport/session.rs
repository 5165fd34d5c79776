//! A session: many requests on one connection, answered in the order in which they are ready.
//!
//! One task reads, runs calls and writes. So a call that is ready at once costs no task, no channel and no wake-up, and
//! requests that arrive together are answered in one write. Many calls at once are spread over the threads, and only a call
//! that has to wait gets a task of its own.

mod calls;
mod silence;
mod writer;

use std::collections::VecDeque;
use std::future::{poll_fn, ready};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use forrst_protocol::ErrorObject;
use futures_util::stream::BoxStream;
use futures_util::{FutureExt, Sink, Stream, StreamExt};
use tokio::time::error::Elapsed;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

use self::calls::{Calls, Done, Panicked};
use self::silence::{IdleAction, Silence};
use self::writer::Writer;
use super::intake::Intake;
use crate::Server;
use crate::access::{Caller, Credential};
use crate::limits::{Payer, Refusal, Room, SMALLEST_REQUEST, TakenBytes};
use crate::metrics::Metrics;

/// How long calls that are under way may still take when the client has broken the rules.
const LAST_ANSWERS: Duration = Duration::from_secs(5);

/// How many frames are read ahead of those that are under way, so that a disconnect is noticed.
const READ_AHEAD: usize = 16;

/// After reading this many messages, the loop does everything else first, so that a client cannot starve it.
const READS_IN_A_ROW: usize = 64;

/// How much of a message is read before its bytes are taken from the budget.
const FIRST_PART: u64 = 16 * 1024;

/// How long a message waits before it is checked again whether there is room for it.
const ROOM_CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// The limits of a session, and the messages that it sends by itself.
pub(super) struct Rules<M> {
    /// How many requests may be under way at once, from their start until the client has taken the answer. A few more are read
    /// ahead and wait; then nothing is read.
    pub(super) max_in_flight: usize,
    /// The budget that the bytes of its requests are taken from.
    pub(super) account: SessionAccount,
    /// Messages that answer no request. They wait while the client does not read.
    pub(super) notifications: BoxStream<'static, M>,
    /// How long a client may stay silent, or not read its answers.
    pub(super) idle_timeout: Duration,
    /// A ping, sent when a client has been silent for half of the idle timeout. Without it, a client may be silent while a call
    /// is under way.
    pub(super) keep_alive: Option<M>,
    /// Sent last when the server shuts down.
    pub(super) close: Option<M>,
    /// Sent last to a client that does not complete a message in time.
    pub(super) too_slow: M,
    /// Cancelled when the server shuts down: calls under way are answered, and nothing more is read.
    pub(super) draining: CancellationToken,
    pub(super) metrics: Arc<Metrics>,
}

/// The budget of a session.
pub(super) struct SessionAccount {
    server: Server,
    /// The caller's name, or its address if it has none.
    caller: Arc<str>,
    payer: Payer,
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
        let caller: Arc<str> = name.or(from).unwrap_or_default();
        let budgets = &server.listeners.budgets;
        Self {
            server: server.clone(),
            payer: budgets.payer(Some(&budgets.connection()), Some(&caller)),
            caller,
            intake,
        }
    }

    fn take(&self, bytes: usize) -> Result<TakenBytes, ErrorObject> {
        let bytes = bytes.max(SMALLEST_REQUEST);
        self.server.listeners.budgets.take(&self.payer, bytes)
    }
}

/// Reads messages within the budget. A message that has arrived in part takes its bytes like a request, and no more of it is
/// read while there is no room.
struct MessageReader<'a> {
    account: &'a SessionAccount,
    /// How many bytes were received before the message.
    before: u64,
    /// The bytes of the message, and its deadline; `None` while no more than its first part is read.
    taken: Option<(TakenBytes, Instant)>,
}

impl<'a> MessageReader<'a> {
    fn new(account: &'a SessionAccount) -> Self {
        let reader = Self {
            account,
            before: account.intake.received(),
            taken: None,
        };
        reader.allow();
        reader
    }

    /// Waits for the next message.
    ///
    /// # Errors
    ///
    /// If a message has begun and does not arrive in time. Control messages, such as pongs, may arrive in between.
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
                    sleep(ROOM_CHECK_INTERVAL).await;
                }
            }
        }
    }

    /// Takes the bytes of the rest, and returns whether there was room. All at once: frames that each hold a part would wait
    /// for each other forever.
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
            // It may be between two fragments of a message.
            Some(Incoming::Control(length)) => {
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

/// A message of the client.
pub(super) enum Incoming<R, M> {
    Request(R),
    /// A control message, such as a pong, with its length in bytes.
    Control(usize),
    /// A violation of the protocol, after which nothing can be read. Calls under way are answered, and then this message is sent.
    Violation(M),
}

/// A frame that was read and waits to be run.
struct Received<R> {
    permits: usize,
    request: R,
    room: Room,
}

/// What a frame holds until the client has taken its answer.
#[derive(Debug)]
struct FrameHold {
    permits: usize,
    _room: Room,
}

/// The state of a session that reads no more, but still answers the calls under way.
struct Ending<M> {
    last_message: Option<M>,
    /// How long that may take; `None` in a shutdown, which has its own drain timeout.
    until: Option<Instant>,
}

impl<M> Ending<M> {
    /// After a violation. Nothing is read any more, so a disconnect would not be noticed, and the time is short.
    fn soon(last_message: M, idle_timeout: Duration) -> Self {
        Self {
            last_message: Some(last_message),
            until: Some(Instant::now() + LAST_ANSWERS.min(idle_timeout)),
        }
    }
}

/// A message to the client.
pub(super) trait Message: Clone + Send + 'static {
    /// Its length in bytes.
    fn length(&self) -> usize;
}

impl Message for Bytes {
    fn length(&self) -> usize {
        self.len()
    }
}

/// Reads requests and writes answers until the client disconnects or the server shuts down.
///
/// A call is polled once in place; if it has to wait, it goes on in a task. When the client disconnects, the tasks are dropped,
/// and waiting calls leave their queues. `count` returns how many requests a frame has; `answer` gets room for the answer, or
/// the refusal of the frame.
pub(super) async fn run<R, M, In, Out, F, Fut>(
    mut incoming: In,
    outgoing: Out,
    mut rules: Rules<M>,
    count: impl Fn(&R) -> usize,
    answer: F,
) where
    R: AsRef<[u8]>,
    M: Message,
    In: Stream<Item = Incoming<R, M>> + Unpin,
    Out: Sink<M> + Unpin,
    F: Fn(R, Result<Room, ErrorObject>) -> Fut,
    Fut: Future<Output = Option<M>> + Send + 'static,
{
    let mut reader = MessageReader::new(&rules.account);
    let mut writer = Writer::new(outgoing, rules.idle_timeout);
    let most = rules.max_in_flight.max(1);
    let mut calls = Calls::new(most);
    let mut backlog: VecDeque<Received<R>> = VecDeque::new();
    let mut ending: Option<Ending<M>> = None;
    let mut silence = Silence::new(rules.idle_timeout, rules.keep_alive.is_some());
    let mut draining = pin!(rules.draining.cancelled());
    let mut reads = 0;
    // One timer for all deadlines. Only `ending` can be due before what the timer was set for.
    let mut timer = pin!(sleep_until(silence.due(Instant::now())));
    loop {
        // While a client does not read, no further calls are run.
        while !writer.is_full()
            && let Some(next) = backlog.pop_front_if(|next| calls.take(next))
        {
            calls.begin(next, &answer);
        }
        let is_idle = !calls.are_running();
        let has_begun = calls.begun() > 0;
        if let Some(Ending {
            last_message,
            until,
        }) = &mut ending
        {
            if is_idle && !has_begun && backlog.is_empty() {
                while let Some(Some(message)) = rules.notifications.next().now_or_never() {
                    writer.push(message, None);
                }
                last_message
                    .take()
                    .into_iter()
                    .for_each(|message| writer.push(message, None));
                return writer.finish().await;
            }
            if let Some(until) = until.filter(|until| *until < timer.deadline()) {
                timer.as_mut().reset(until);
            }
        }
        let is_reading = ending.is_none()
            && backlog.len() < READ_AHEAD
            && !writer.is_full()
            && reads < READS_IN_A_ROW;
        tokio::select! {
            biased;
            Some(done) = calls.next(), if !is_idle => match done {
                Ok(done) => settle(done, &mut calls, &mut writer),
                Err(Panicked) => return,
            },
            // Before calls are run, so that requests that arrived together run together, and are answered in one write.
            next = reader.next(&mut incoming), if is_reading => {
                reads += 1;
                silence.ends();
                match next {
                    Err(_) => {
                        rules.metrics.refused(Refusal::BodyTime);
                        ending = Some(Ending::soon(rules.too_slow.clone(), rules.idle_timeout));
                    }
                    Ok(None) => {
                        drop(calls);
                        return writer.finish().await;
                    }
                    Ok(Some(Incoming::Control(_))) => {}
                    Ok(Some(Incoming::Request(request))) => {
                        let permits = count(&request).clamp(1, most);
                        if backlog.front().is_some_and(|next| calls.lack_permits_for(next)) {
                            rules.metrics.refused(Refusal::InFlight);
                        }
                        match rules.account.take(request.as_ref().len()) {
                            Ok(bytes) => {
                                let room = Room::new(bytes);
                                backlog.push_back(Received { permits, request, room });
                            }
                            // At once, and not in its turn, because there is no room to keep it.
                            Err(refusal) => {
                                let refused = answer(request, Err(refusal)).await;
                                refused.into_iter().for_each(|answer| writer.push(answer, None));
                            }
                        }
                    }
                    Ok(Some(Incoming::Violation(message))) => {
                        ending = Some(Ending::soon(message, rules.idle_timeout));
                    }
                }
            }
            () = ready(()), if has_begun => {
                reads = 0;
                let done = calls.advance().await;
                settle(done, &mut calls, &mut writer);
            }
            written = writer.write(), if !writer.is_idle() => match written {
                Ok(permits) => calls.give_back(permits),
                Err(_) => return,
            },
            () = &mut draining, if ending.is_none() => {
                ending = Some(Ending { last_message: rules.close.clone(), until: None });
            }
            () = &mut timer => {
                let now = Instant::now();
                let end = ending.as_ref().and_then(|ending| ending.until);
                if [writer.due(), end].into_iter().flatten().any(|due| due <= now) {
                    return;
                }
                match silence.at(now) {
                    Some(IdleAction::Close) if is_reading && (silence.sends_pings || is_idle) => {
                        drop(calls);
                        return writer.finish().await;
                    }
                    // The writer times out on a client that does not read its answers.
                    Some(IdleAction::Ping) if !writer.is_full() => {
                        silence.pinged();
                        rules.keep_alive.iter().for_each(|ping| writer.push(ping.clone(), None));
                    }
                    _ => {}
                }
                let due = silence.due(now);
                timer.as_mut().reset(writer.due().map_or(due, |other| other.min(due)));
            }
            Some(message) = rules.notifications.next(), if !writer.is_full() => {
                writer.push(message, None);
            }
            // Nothing else was ready: read on.
            () = ready(()), if reads >= READS_IN_A_ROW => reads = 0,
        }
    }
}

/// Passes the answers of calls to the writer.
fn settle<M: Message, Out: Sink<M> + Unpin>(
    done: Vec<Done<M>>,
    calls: &mut Calls<M>,
    writer: &mut Writer<M, Out>,
) {
    for Done { answer, hold } in done {
        match answer {
            Some(answer) => writer.push(answer, Some(hold)),
            None => calls.give_back(hold.permits),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Context;

    use forrst_stores::MemoryStore;
    use futures_util::stream;
    use tokio::time::timeout;

    use super::*;

    /// A client that reads nothing. The token is cancelled when the connection to it is closed.
    struct NonReadingClient(#[expect(dead_code, reason = "only held")] tokio_util::sync::DropGuard);

    impl Sink<Bytes> for NonReadingClient {
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

    fn rules(max_in_flight: usize) -> Rules<Bytes> {
        let server = Server::builder()
            .store(Arc::new(MemoryStore::new()))
            .build()
            .unwrap();
        Rules {
            max_in_flight,
            account: SessionAccount::new(&server, &Credential::Local, None, Arc::default()),
            idle_timeout: Duration::from_secs(60 * 60),
            notifications: stream::pending().boxed(),
            keep_alive: None,
            close: None,
            too_slow: Bytes::new(),
            draining: CancellationToken::new(),
            metrics: server.core.metrics.clone(),
        }
    }

    /// A client that reads everything at once.
    #[derive(Clone, Default)]
    struct FastClient(Arc<Mutex<Taken>>);

    #[derive(Default)]
    struct Taken {
        messages: Vec<Bytes>,
        flushes: usize,
    }

    impl Sink<Bytes> for FastClient {
        type Error = ();

        fn poll_ready(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), ()>> {
            Poll::Ready(Ok(()))
        }

        fn start_send(self: Pin<&mut Self>, message: Bytes) -> Result<(), ()> {
            self.0.lock().unwrap().messages.push(message);
            Ok(())
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), ()>> {
            self.0.lock().unwrap().flushes += 1;
            Poll::Ready(Ok(()))
        }

        fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), ()>> {
            Poll::Ready(Ok(()))
        }
    }

    /// Answers with the request; for `wait`, later than for all others, and for `never`, not at all.
    async fn echo(request: Bytes) -> Option<Bytes> {
        match &*request {
            b"never" => std::future::pending().await,
            b"wait" => sleep(Duration::from_millis(50)).await,
            _ => {}
        }
        Some(request)
    }

    /// Sends requests together, and waits until all but `never` are answered.
    async fn answered(requests: Vec<Bytes>, max_in_flight: usize) -> FastClient {
        let client = FastClient::default();
        let expected = requests.iter().filter(|r| **r != "never").count();
        let incoming = stream::iter(requests.into_iter().map(Incoming::Request));
        let incoming = incoming.chain(stream::pending());
        let answer = |request, _| echo(request);
        let session = run(
            incoming,
            client.clone(),
            rules(max_in_flight),
            |_| 1,
            answer,
        );
        let is_answered = async {
            while client.0.lock().unwrap().messages.len() < expected {
                sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::select! {
            () = session => panic!("the session ended"),
            done = timeout(Duration::from_secs(20), is_answered) => done.unwrap(),
        }
        client
    }

    fn numbered(count: usize) -> Vec<Bytes> {
        (0..count).map(|number| number.to_string().into()).collect()
    }

    #[tokio::test]
    async fn requests_that_arrive_together_are_answered_in_one_write() {
        let client = answered(numbered(100), 1000).await;
        let taken = client.0.lock().unwrap();
        assert_eq!(taken.messages, numbered(100));
        assert_eq!(taken.flushes, 1);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn many_calls_together_are_all_answered_whichever_thread_runs_them() {
        let mut requests = numbered(500);
        requests[17] = "wait".into();
        requests[18] = "never".into();
        // With fewer permits than requests, each permit is given back and taken again many times.
        for max_in_flight in [1000, 40] {
            let client = answered(requests.clone(), max_in_flight).await;
            let taken = client.0.lock().unwrap();
            let mut expected = requests.clone();
            expected.remove(18);
            let (mut answers, last) = (taken.messages.clone(), taken.messages.last());
            if max_in_flight == 1000 {
                assert_eq!(last.unwrap(), "wait", "a call that waits delays no other");
            }
            answers.sort();
            expected.sort();
            assert_eq!(answers, expected);
        }
    }

    /// Control messages do not fill the backlog, so only the turns of the loop bound them.
    #[tokio::test]
    async fn a_client_that_sends_without_pause_is_answered_and_does_not_delay_the_shutdown() {
        let rules = rules(1000);
        let (client, draining) = (FastClient::default(), rules.draining.clone());
        let pongs = stream::repeat(()).then(|()| async {
            tokio::task::coop::consume_budget().await;
            Incoming::Control(1)
        });
        let request = stream::iter([Incoming::Request(Bytes::from_static(b"1"))]);
        let incoming = request.chain(Box::pin(pongs));
        let session = run(
            incoming,
            client.clone(),
            rules,
            |_| 1,
            |request, _| echo(request),
        );
        let drain = async {
            while client.0.lock().unwrap().messages.is_empty() {
                tokio::task::yield_now().await;
            }
            draining.cancel();
            std::future::pending::<()>().await;
        };
        let ended = timeout(Duration::from_secs(20), async {
            tokio::select! {
                () = session => {}
                () = drain => {}
            }
        });
        assert!(ended.await.is_ok(), "the session only reads");
    }

    #[tokio::test]
    async fn notifications_wait_while_the_client_does_not_read() {
        let mut rules = rules(1);
        let taken = Arc::new(AtomicUsize::new(0));
        let count = taken.clone();
        let notifications = stream::repeat(Bytes::from_static(b"news"));
        let counted = notifications.inspect(move |_| _ = count.fetch_add(1, Ordering::Relaxed));
        rules.notifications = counted.boxed();
        let client = NonReadingClient(CancellationToken::new().drop_guard());
        let incoming = stream::pending::<Incoming<Bytes, Bytes>>();
        let session = run(incoming, client, rules, |_| 1, |request, _| echo(request));
        assert!(timeout(Duration::from_millis(50), session).await.is_err());
        let taken = taken.load(Ordering::Relaxed);
        assert!((1..1_000).contains(&taken), "{taken}");
    }

    #[tokio::test]
    async fn a_session_that_is_dropped_closes_its_connection() {
        let rules = rules(1);
        let requests = stream::iter([Incoming::Request(Bytes::new())]);
        let incoming = requests.chain(stream::pending());
        let closed = CancellationToken::new();
        let outgoing = NonReadingClient(closed.clone().drop_guard());
        let answer = |_, _| std::future::ready(Some(Bytes::from_static(b"answer")));
        let session = run(incoming, outgoing, rules, |_| 1, answer);
        // The answer is on its way by then.
        assert!(timeout(Duration::from_millis(50), session).await.is_err());
        let closed = timeout(Duration::from_secs(20), closed.cancelled()).await;
        assert!(closed.is_ok(), "the connection outlives its session");
    }
}
