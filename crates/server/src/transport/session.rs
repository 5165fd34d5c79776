//! Many requests on one connection, answered in the order in which they are ready.
//!
//! One task reads and writes, and runs the calls, so that one that need not wait costs no task, no channel and no wake-up, and all
//! answers to what came in together go out together. Only many calls together are shared among the threads, and only what has
//! to wait gets a task of its own.

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
use futures_util::{Sink, Stream, StreamExt};
use tokio::time::error::Elapsed;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

use self::calls::{Calls, Done, Panicked};
use self::silence::{Silence, Silent};
use self::writer::Writer;
use super::intake::Intake;
use crate::Server;
use crate::access::{Caller, Credential};
use crate::limits::{Payer, Refusal, Room, SMALLEST_REQUEST, TakenBytes};
use crate::metrics::Metrics;

/// How long calls may take that were under way when the client broke the rules.
const LAST_ANSWERS: Duration = Duration::from_secs(5);

/// How many frames are read ahead of those that are under way, so that a client that goes is noticed.
const READ_AHEAD: usize = 16;

/// After so many messages everything else has a turn, whatever a client sends.
const READS_IN_A_ROW: usize = 64;

/// How much of a message is read before bytes are taken for it.
const FIRST_PART: u64 = 16 * 1024;

/// When a message that there was no room for is read on, if there is room then.
const NO_ROOM: Duration = Duration::from_millis(50);

/// How a connection is treated.
pub(super) struct Rules<M> {
    /// The requests that may be under way at once, from the moment they begin until the client has taken the answer. A few more
    /// are read and wait; then nothing is read.
    pub(super) max_in_flight: usize,
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

/// Where the requests of a session take their bytes from.
pub(super) struct SessionAccount {
    server: Server,
    /// Its name, or its address where it has none.
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
    permits: usize,
    request: R,
    room: Room,
}

/// What a frame holds until the client has taken the answer to it.
#[derive(Debug)]
struct Held {
    permits: usize,
    _room: Room,
}

/// A session that reads no more: what is under way is still answered.
struct Ending<M> {
    last_word: Option<M>,
    /// Until when that may take. A server that ends waits as long as its own drain timeout.
    until: Option<Instant>,
}

impl<M> Ending<M> {
    /// After a client has broken the rules. Whether it is still there cannot be seen any more, so it is not waited for long.
    fn soon(last_word: M, idle_timeout: Duration) -> Self {
        Self {
            last_word: Some(last_word),
            until: Some(Instant::now() + LAST_ANSWERS.min(idle_timeout)),
        }
    }
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
/// A call runs as far as it gets without waiting; the rest of it, if there is any, runs in a task. When the client disconnects,
/// the tasks are dropped: waiting calls leave their queues. `count` says how many requests a frame has; `answer` is given room for
/// the answer, or why the frame is refused.
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
    Out: Sink<M> + Unpin,
    F: Fn(R, Result<Room, ErrorObject>) -> Fut,
    Fut: Future<Output = Option<M>> + Send + 'static,
{
    let mut unfinished = Unfinished::new(&rules.account);
    let mut writer = Writer::new(outgoing, rules.idle_timeout);
    let most = rules.max_in_flight.max(1);
    let mut calls = Calls::new(most);
    let mut backlog: VecDeque<Received<R>> = VecDeque::new();
    let mut ending: Option<Ending<M>> = None;
    let mut silence = Silence::new(rules.idle_timeout, rules.keep_alive.is_some());
    let mut draining = pin!(rules.draining.cancelled());
    let mut reads = 0;
    // One timer for all that is due. What begins later is due later, but for an end.
    let mut timer = pin!(sleep_until(silence.due(Instant::now())));
    loop {
        // What a client does not read does not become more.
        while !writer.is_full()
            && let Some(next) = backlog.pop_front_if(|next| calls.take(next))
        {
            calls.begin(next, &answer);
        }
        let is_idle = !calls.are_running();
        let has_begun = calls.begun() > 0;
        if let Some(Ending { last_word, until }) = &mut ending {
            if is_idle && !has_begun && backlog.is_empty() {
                last_word
                    .take()
                    .into_iter()
                    .for_each(|word| writer.push(word, None));
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
            // First of all, so that what has come in together runs together, and is answered in one write.
            next = unfinished.next(&mut incoming), if is_reading => {
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
                    Ok(Some(Incoming::Other(_))) => {}
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
                            // Now, and not in its turn: there is no room to keep it.
                            Err(refusal) => {
                                let refused = answer(request, Err(refusal)).await;
                                refused.into_iter().for_each(|answer| writer.push(answer, None));
                            }
                        }
                    }
                    Ok(Some(Incoming::Last(word))) => {
                        ending = Some(Ending::soon(word, rules.idle_timeout));
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
                ending = Some(Ending { last_word: rules.goodbye.clone(), until: None });
            }
            () = &mut timer => {
                let now = Instant::now();
                let end = ending.as_ref().and_then(|ending| ending.until);
                if [writer.due(), end].into_iter().flatten().any(|due| due <= now) {
                    return;
                }
                match silence.at(now) {
                    Some(Silent::TooLong) if is_reading && (silence.is_asked_about || is_idle) => {
                        drop(calls);
                        return writer.finish().await;
                    }
                    // A client that does not read its answers is given up by the writer.
                    Some(Silent::ForLong) if !writer.is_full() => {
                        silence.asked();
                        rules.keep_alive.iter().for_each(|ping| writer.push(ping.clone(), None));
                    }
                    _ => {}
                }
                let due = silence.due(now);
                timer.as_mut().reset(writer.due().map_or(due, |other| other.min(due)));
            }
            // Everything else has had its turn.
            () = ready(()), if reads >= READS_IN_A_ROW => reads = 0,
        }
    }
}

/// Passes on what calls have to say.
fn settle<M: Message, Out: Sink<M> + Unpin>(
    done: Vec<Done<M>>,
    calls: &mut Calls<M>,
    writer: &mut Writer<M, Out>,
) {
    for Done { answer, held } in done {
        match answer {
            Some(answer) => writer.push(answer, Some(held)),
            None => calls.give_back(held.permits),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::sync::Mutex;
    use std::task::Context;

    use forrst_stores::MemoryStore;
    use futures_util::stream;
    use tokio::time::timeout;

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

    fn rules(max_in_flight: usize) -> Rules<Bytes> {
        let server = Server::builder()
            .store(Arc::new(MemoryStore::new()))
            .build()
            .unwrap();
        Rules {
            max_in_flight,
            account: SessionAccount::new(&server, &Credential::Local, None, Arc::default()),
            idle_timeout: Duration::from_secs(60 * 60),
            keep_alive: None,
            goodbye: None,
            too_slow: Bytes::new(),
            draining: CancellationToken::new(),
            metrics: server.core.metrics.clone(),
        }
    }

    /// A client that takes everything at once.
    #[derive(Clone, Default)]
    struct Quick(Arc<Mutex<Taken>>);

    #[derive(Default)]
    struct Taken {
        messages: Vec<Bytes>,
        flushes: usize,
    }

    impl Sink<Bytes> for Quick {
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

    /// Calls answer with what they were sent; `wait` does so later than all others, and `never` not at all.
    async fn echo(request: Bytes) -> Option<Bytes> {
        match &*request {
            b"never" => std::future::pending().await,
            b"wait" => sleep(Duration::from_millis(50)).await,
            _ => {}
        }
        Some(request)
    }

    /// What a client gets for so many requests that come in together, until the last of them is answered.
    async fn answered(requests: Vec<Bytes>, max_in_flight: usize) -> Quick {
        let client = Quick::default();
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
    async fn what_comes_in_together_is_answered_in_one_write() {
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
        // With permits for a few of them, each is given back and taken again many times.
        for max_in_flight in [1000, 40] {
            let client = answered(requests.clone(), max_in_flight).await;
            let taken = client.0.lock().unwrap();
            let mut expected = requests.clone();
            expected.remove(18);
            let (mut answers, last) = (taken.messages.clone(), taken.messages.last());
            if max_in_flight == 1000 {
                assert_eq!(last.unwrap(), "wait", "one that waits holds up no other");
            }
            answers.sort();
            expected.sort();
            assert_eq!(answers, expected);
        }
    }

    /// Frames that ask for nothing fill no backlog.
    #[tokio::test]
    async fn a_client_that_never_pauses_is_answered_and_does_not_keep_the_server() {
        let rules = rules(1000);
        let (client, draining) = (Quick::default(), rules.draining.clone());
        let pongs = stream::repeat(()).then(|()| async {
            tokio::task::coop::consume_budget().await;
            Incoming::Other(1)
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
        assert!(
            ended.await.is_ok(),
            "the session reads and does nothing else"
        );
    }

    #[tokio::test]
    async fn a_session_that_is_dropped_closes_its_connection() {
        let rules = rules(1);
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
