//! The state of one connection: its peer, its requests under way, and when it is overdue.
//!
//! Only authorised requests keep a connection open. Whatever else it sends, it is closed when it has made none for the idle
//! timeout, or leaves an answer unread for that long.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use foldhash::fast::RandomState;
use hyper::body::{Body as _, Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until};

use super::answer::AnswerBody;
use super::intake::Intake;
use super::listeners::ConnectionPermit;
use super::order::Streams;
use super::socket::Socket;
use crate::access::PeerName;
use crate::limits::{Budgets, Payer, Pool, Room};

/// How many requests without valid credentials one connection may have under way.
const ANONYMOUS_REQUESTS: usize = 16;

/// One connection, for as long as anything on it is under way. A WebSocket outlives the HTTP connection it began as.
#[derive(Debug)]
pub(super) struct Connection {
    /// The address of the peer.
    pub(super) from: Arc<str>,
    /// The name in the peer's certificate.
    pub(super) peer: Option<PeerName>,
    pub(super) in_flight: InFlight,
    /// Of HTTP/2.
    streams: Option<Arc<Streams>>,
    bytes: Arc<Pool>,
    /// The payer of the last request, with the name of its caller: the next request is likely to have the same.
    payer: Mutex<Option<(Option<Box<str>>, Payer)>>,
    pub(super) intake: Arc<Intake>,
    anonymous: Arc<Semaphore>,
    /// `None` on a full server, which accepts the connection only to say so.
    permit: Option<ConnectionPermit>,
    socket: Socket,
    usage: Mutex<Usage>,
}

#[derive(Debug)]
struct Usage {
    /// Authorised requests, until the client has taken their answers.
    authorised: usize,
    /// When the last of them ended, or the connection was opened.
    last: Instant,
    /// Of each answer on its way, when the client last read a part of it.
    unread: HashMap<u64, Instant, RandomState>,
    next_answer: u64,
}

/// The requests of one connection that may be under way at once.
#[derive(Debug, Clone)]
pub(super) struct InFlight {
    most: u32,
    permits: Arc<Semaphore>,
}

impl InFlight {
    pub(super) fn new(most: usize) -> Self {
        let most = u32::try_from(most.max(1)).unwrap_or(u32::MAX);
        Self {
            most,
            permits: Arc::new(Semaphore::new(most as usize)),
        }
    }

    /// Permits for requests that arrived together; all permits, if there are not as many.
    pub(super) async fn take(&self, count: usize) -> Option<OwnedSemaphorePermit> {
        let count = u32::try_from(count).unwrap_or(u32::MAX).min(self.most);
        self.permits.clone().acquire_many_owned(count).await.ok()
    }
}

/// Why a connection is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Overdue {
    /// No authorised request for the idle timeout.
    Idle,
    /// An answer that the client does not read.
    Unread,
}

impl Connection {
    pub(super) fn new(
        permit: Option<ConnectionPermit>,
        socket: Socket,
        from: Arc<str>,
        peer: Option<PeerName>,
        max_in_flight: usize,
        bytes: Arc<Pool>,
    ) -> Self {
        Self {
            from,
            peer,
            in_flight: InFlight::new(max_in_flight),
            streams: None,
            bytes,
            payer: Mutex::default(),
            intake: Arc::default(),
            anonymous: Arc::new(Semaphore::new(ANONYMOUS_REQUESTS)),
            permit,
            socket,
            usage: Mutex::new(Usage {
                authorised: 0,
                last: Instant::now(),
                unread: HashMap::default(),
                next_answer: 0,
            }),
        }
    }

    /// Lets its requests begin in the order in which they arrive on these streams.
    pub(super) fn keeps_order_of(&mut self, streams: Arc<Streams>) {
        self.streams = Some(streams);
    }

    /// Called for each request whose body has arrived, before it is answered.
    pub(super) async fn request_arrived(&self, request: &[u8]) {
        if let Some(streams) = &self.streams {
            streams.request_arrived(request).await;
        }
    }

    /// Whether its requests are served; a full server only says that it is full.
    pub(super) fn is_served(&self) -> bool {
        self.permit.is_some()
    }

    /// Whether no authorised request is under way.
    pub(super) fn is_unused(&self) -> bool {
        self.usage().authorised == 0
    }

    /// Returns when the client has disconnected, even if its last bytes are not read.
    pub(super) async fn disconnected(&self) {
        self.socket.disconnected().await;
    }

    /// Counts an authorised request until the guard is dropped.
    pub(super) fn authorised(self: &Arc<Self>) -> Authorised {
        self.usage().authorised += 1;
        Authorised(self.clone())
    }

    /// The pools for a request of this caller.
    pub(super) fn payer(&self, budgets: &Budgets, caller: Option<&str>) -> Payer {
        let mut last = self.payer.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last {
            Some((own, payer)) if own.as_deref() == caller => payer.clone(),
            _ => {
                let payer = budgets.payer(Some(&self.bytes), caller);
                *last = Some((caller.map(Into::into), payer.clone()));
                payer
            }
        }
    }

    /// A permit for a request without valid credentials; `None` when there are too many of them.
    pub(super) fn anonymous(&self) -> Option<OwnedSemaphorePermit> {
        self.anonymous.clone().try_acquire_owned().ok()
    }

    /// Returns when the connection is overdue, with the reason.
    pub(super) async fn overdue(&self, idle_timeout: Duration) -> Overdue {
        loop {
            let now = Instant::now();
            let next = {
                let usage = self.usage();
                let unread = usage.unread.values().min();
                let unread = unread.map(|since| *since + idle_timeout);
                let idle = (usage.authorised == 0).then(|| usage.last + idle_timeout);
                match (unread, idle) {
                    (Some(at), _) if at <= now => return Overdue::Unread,
                    (_, Some(at)) if at <= now => return Overdue::Idle,
                    // Whatever begins from now on is due no earlier than this.
                    (unread, idle) => {
                        let times = unread.into_iter().chain(idle);
                        times.min().unwrap_or(now + idle_timeout)
                    }
                }
            };
            sleep_until(next).await;
        }
    }

    /// Counts the answer as unread, and its request as under way, until the body has been sent.
    pub(super) fn track(
        self: &Arc<Self>,
        body: AnswerBody,
        under_way: Option<UnderWay>,
    ) -> TrackedBody {
        if let (Some(under_way), Some(length)) = (&under_way, body.size_hint().exact()) {
            under_way
                .room
                .answered(usize::try_from(length).unwrap_or(usize::MAX));
        }
        let mut usage = self.usage();
        let answer = usage.next_answer;
        usage.next_answer += 1;
        usage.unread.insert(answer, Instant::now());
        drop(usage);
        TrackedBody {
            body,
            rest: Bytes::new(),
            connection: self.clone(),
            answer,
            _under_way: under_way,
        }
    }

    fn usage(&self) -> MutexGuard<'_, Usage> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An authorised request whose answer the client has not taken yet.
#[derive(Debug)]
pub(super) struct Authorised(Arc<Connection>);

impl Drop for Authorised {
    fn drop(&mut self) {
        let mut usage = self.0.usage();
        usage.authorised -= 1;
        usage.last = Instant::now();
    }
}

/// How much of an answer is passed to hyper at once, which keeps it until the client's window has room.
const FRAME_SIZE: usize = 16 * 1024;

/// The body of an answer, in small frames: it lives until the client has taken all but the last one.
pub(super) struct TrackedBody {
    body: AnswerBody,
    rest: Bytes,
    connection: Arc<Connection>,
    answer: u64,
    _under_way: Option<UnderWay>,
}

/// What a request holds until the client has taken its answer.
#[derive(Debug)]
pub(super) struct UnderWay {
    room: Room,
    _authorised: Option<Authorised>,
}

impl UnderWay {
    pub(super) fn new(room: Room, authorised: Option<Authorised>) -> Self {
        Self {
            room,
            _authorised: authorised,
        }
    }
}

impl hyper::body::Body for TrackedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.rest.is_empty() {
            let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
            match frame.map(|frame| frame.map(Frame::into_data)) {
                Some(Ok(Ok(data))) => self.rest = data,
                Some(Ok(Err(other))) => return Poll::Ready(Some(Ok(other))),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
        let now = Instant::now();
        self.connection.usage().unread.insert(self.answer, now);
        let length = self.rest.len().min(FRAME_SIZE);
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(length)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (inner, rest) = (self.body.size_hint(), self.rest.len() as u64);
        let mut hint = SizeHint::new();
        hint.set_lower(inner.lower() + rest);
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper + rest);
        }
        hint
    }
}

impl Drop for TrackedBody {
    fn drop(&mut self) {
        self.connection.usage().unread.remove(&self.answer);
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixStream;
    use tokio::time::{advance, timeout};

    use super::*;
    use crate::limits::Limits;
    use crate::metrics::Metrics;

    const IDLE: Duration = Duration::from_secs(60);

    fn connection() -> (Arc<Connection>, UnixStream) {
        let (stream, peer) = UnixStream::pair().unwrap();
        let budgets = Budgets::new(&Limits::default(), Arc::new(Metrics::new()));
        let (socket, bytes) = (Socket::from(stream), budgets.connection());
        let connection = Connection::new(None, socket, "test".into(), None, 10, bytes);
        (Arc::new(connection), peer)
    }

    fn body(length: usize) -> AnswerBody {
        AnswerBody::Whole(vec![0; length].into())
    }

    async fn is_overdue(connection: &Connection) -> Option<Overdue> {
        let overdue = connection.overdue(IDLE);
        timeout(Duration::from_millis(1), overdue).await.ok()
    }

    #[tokio::test(start_paused = true)]
    async fn answers_to_unauthorised_requests_do_not_keep_a_connection() {
        let (connection, _peer) = connection();
        let mut last = None;
        for _ in 0..4 {
            advance(IDLE / 4).await;
            // One answer is always on its way, but none for long.
            last = Some(connection.track(body(0), None));
        }
        assert_eq!(is_overdue(&connection).await, Some(Overdue::Idle));
        drop(last);
    }

    #[tokio::test(start_paused = true)]
    async fn an_authorised_request_counts_until_its_answer_is_taken() {
        let (connection, _peer) = connection();
        let authorised = UnderWay::new(Room::default(), Some(connection.authorised()));
        let mut answer = connection.track(body(10 * FRAME_SIZE), Some(authorised));
        for _ in 0..10 {
            advance(IDLE / 2).await;
            std::future::poll_fn(|cx| Pin::new(&mut answer).poll_frame(cx)).await;
        }
        drop(answer);
        advance(IDLE / 2).await;
        assert_eq!(is_overdue(&connection).await, None);
        advance(IDLE / 2).await;
        assert_eq!(is_overdue(&connection).await, Some(Overdue::Idle));
    }

    #[tokio::test(start_paused = true)]
    async fn one_unread_answer_among_many_others_is_noticed() {
        let (connection, _peer) = connection();
        let _authorised = connection.authorised();
        let _unread = connection.track(body(0), None);
        advance(IDLE).await;
        let _others: Vec<_> = (0..1000).map(|_| connection.track(body(0), None)).collect();
        assert_eq!(is_overdue(&connection).await, Some(Overdue::Unread));
    }
}
