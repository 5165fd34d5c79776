//! A shared connection against scripted servers, over WebSocket and unix-socket frames.

mod counted;

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use forrst_protocol::{ErrorCode, ErrorObject, RequestId, Response};
use forrst_testkit::asynchronous::soon;
use futures_util::future::join_all;
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::io::{DuplexStream, ReadHalf, WriteHalf, duplex, split};
use tokio::task::{JoinHandle, yield_now};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Bytes;
use tokio_tungstenite::tungstenite::protocol::Role;
use tokio_util::codec::{Framed, LengthDelimitedCodec};

use self::counted::Counted;
use super::*;
use crate::transport::unix::{FrameReader, FrameWriter, UnixSocket};
use crate::transport::websocket::WebSocket;

/// The frames of a unix socket over any stream.
struct Frames;

impl Wire for Frames {
    type Reader = FrameReader<ReadHalf<Counted>>;
    type Writer = FrameWriter<WriteHalf<Counted>>;

    const PINGS: bool = UnixSocket::PINGS;

    async fn open(&self) -> Result<(Self::Reader, Self::Writer), Error> {
        unreachable!("tests open connections themselves")
    }

    fn encode(number: u64, request: Request<'_>) -> Result<String, Error> {
        UnixSocket::encode(number, request)
    }
}

/// A connection, and the stream that its server has.
struct Opened<W> {
    connection: Arc<Connection>,
    there: DuplexStream,
    writes: Arc<AtomicUsize>,
    wire: PhantomData<W>,
}

fn streams(capacity: usize) -> (Counted, DuplexStream, Arc<AtomicUsize>) {
    let (stream, there) = duplex(capacity);
    let writes = Arc::new(AtomicUsize::new(0));
    let counted = Counted {
        stream,
        writes: writes.clone(),
    };
    (counted, there, writes)
}

fn by_frames(capacity: usize) -> Opened<Frames> {
    let (here, there, writes) = streams(capacity);
    let (reader, writer) = split(here);
    let connection =
        Connection::start::<Frames>(FrameReader::new(reader), FrameWriter::new(writer));
    Opened {
        connection: Arc::new(connection),
        there,
        writes,
        wire: PhantomData,
    }
}

async fn by_websocket(capacity: usize) -> Opened<WebSocket> {
    let (here, there, writes) = streams(capacity);
    let socket = WebSocketStream::from_raw_socket(Box::new(here) as _, Role::Client, None).await;
    let (writer, reader) = socket.split();
    let connection = Connection::start::<WebSocket>(reader, writer);
    Opened {
        connection: Arc::new(connection),
        there,
        writes,
        wire: PhantomData,
    }
}

impl<W: Wire> Opened<W> {
    /// A call under way. All of them have the same id.
    fn call(&self) -> JoinHandle<Answer> {
        start_call::<W>(self.connection.clone())
    }
}

fn start_call<W: Wire>(connection: Arc<Connection>) -> JoinHandle<Answer> {
    tokio::spawn(async move {
        let request = Request::new("r".parse().unwrap(), "a.b".parse().unwrap());
        connection.call::<W>(request).await
    })
}

impl Opened<Frames> {
    fn server(self) -> (Arc<Connection>, Server) {
        (
            self.connection,
            Framed::new(self.there, LengthDelimitedCodec::new()),
        )
    }
}

type Server = Framed<DuplexStream, LengthDelimitedCodec>;

async fn receive(server: &mut Server) -> RequestId {
    let frame = soon(server.next()).await.unwrap().unwrap();
    Request::parse(&frame).unwrap().id
}

async fn answer(server: &mut Server, response: &Response) {
    let frame = serde_json::to_vec(response).unwrap();
    server.send(Bytes::from(frame)).await.unwrap();
}

fn failure(code: ErrorCode) -> Response {
    Response::failure(None, ErrorObject::new(code, "as the test wants it"))
}

async fn many_turns() {
    for _ in 0..100 {
        yield_now().await;
    }
}

async fn check_only_calls_that_were_written_may_have_run<W: Wire>(opened: Opened<W>) {
    let written = opened.call();
    many_turns().await;
    let queued = opened.call();
    many_turns().await;
    drop(opened.there);
    let (written, queued) = (soon(written).await.unwrap(), soon(queued).await.unwrap());
    let (written, queued) = (written.unwrap_err(), queued.unwrap_err());
    assert!(matches!(written, Error::Interrupted(_)), "{written}");
    assert!(matches!(queued, Error::Unreachable(_)), "{queued}");
    assert!(!opened.connection.is_open());
}

#[tokio::test]
async fn only_calls_that_were_written_may_have_run() {
    // A server that reads one byte and no more blocks all writes.
    check_only_calls_that_were_written_may_have_run(by_websocket(1).await).await;
    check_only_calls_that_were_written_may_have_run(by_frames(1)).await;
}

#[tokio::test]
async fn a_call_of_whose_frame_nothing_was_written_was_not_sent() {
    // Whether the end of the connection or the call is noticed first is a matter of chance.
    for _ in 0..20 {
        let opened = by_frames(1024);
        many_turns().await;
        let call = opened.call();
        drop(opened.there);
        let error = soon(call).await.unwrap().unwrap_err();
        assert!(matches!(error, Error::Unreachable(_)), "{error}");
    }
}

async fn check_that_queued_calls_go_out_in_one_write<W: Wire>(opened: Opened<W>) {
    let calls: Vec<_> = (0..100).map(|_| opened.call()).collect();
    many_turns().await;
    assert_eq!(opened.writes.load(Ordering::Relaxed), 1);
    drop(opened.there);
    for call in calls {
        soon(call).await.unwrap().unwrap_err();
    }
}

#[tokio::test]
async fn queued_calls_go_out_in_one_write() {
    const ROOM: usize = 1024 * 1024;
    check_that_queued_calls_go_out_in_one_write(by_websocket(ROOM).await).await;
    check_that_queued_calls_go_out_in_one_write(by_frames(ROOM)).await;
}

#[tokio::test]
async fn calls_with_the_same_id_get_their_own_answers() {
    let opened = by_frames(1024);
    let calls = [opened.call(), opened.call()];
    let (_connection, mut server) = opened.server();
    let ids = [receive(&mut server).await, receive(&mut server).await];
    assert_ne!(ids[0], ids[1]);
    for (number, id) in ids.into_iter().enumerate().rev() {
        let response = Response::success(id, &json!(number)).unwrap();
        answer(&mut server, &response).await;
    }
    for (number, response) in soon(join_all(calls)).await.into_iter().enumerate() {
        let response = response.unwrap().unwrap();
        assert_eq!(response.id().unwrap().as_str(), "r");
        assert_eq!(response.result().unwrap().get(), number.to_string());
    }
}

#[tokio::test]
async fn an_invalid_answer_is_an_error_of_its_call() {
    let opened = by_frames(1024);
    let calls = [opened.call(), opened.call()];
    let (_connection, mut server) = opened.server();
    let id = receive(&mut server).await;
    let wrong = json!({"protocol": {"name": "other", "version": "1"}, "id": id, "result": 1});
    let other = json!({"protocol": {"name": "forrst", "version": "0.1.0"}, "id": "x", "result": 1});
    for frame in [Value::Null, other, wrong] {
        server.send(Bytes::from(frame.to_string())).await.unwrap();
    }
    let [first, second] = calls;
    let error = soon(first).await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Protocol(_)), "{error}");
    assert!(!second.is_finished());
}

#[tokio::test]
async fn a_failure_without_an_id_belongs_to_the_only_call() {
    let opened = by_frames(1024);
    let call = opened.call();
    let (_connection, mut server) = opened.server();
    receive(&mut server).await;
    answer(&mut server, &failure(ErrorCode::InvalidRequest)).await;
    let response = soon(call).await.unwrap().unwrap();
    assert!(response.result().is_err());
}

#[tokio::test]
async fn a_failure_without_an_id_is_reported_to_all_calls_when_the_connection_ends() {
    let opened = by_frames(1024);
    let calls = [opened.call(), opened.call()];
    let (_connection, mut server) = opened.server();
    receive(&mut server).await;
    answer(&mut server, &failure(ErrorCode::InvalidRequest)).await;
    drop(server);
    for call in calls {
        let error = soon(call).await.unwrap().unwrap_err();
        assert!(matches!(error, Error::Interrupted(_)), "{error}");
        assert!(
            error.to_string().contains("as the test wants it"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn a_server_that_refuses_the_connection_has_run_nothing() {
    let opened = by_frames(1024);
    let calls = [opened.call(), opened.call()];
    let (_connection, mut server) = opened.server();
    many_turns().await;
    answer(&mut server, &failure(ErrorCode::Unavailable)).await;
    drop(server);
    for call in calls {
        let error = soon(call).await.unwrap().unwrap_err();
        assert!(matches!(error, Error::Unreachable(_)), "{error}");
        assert!(
            error.to_string().contains("as the test wants it"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn answers_that_were_sent_arrive_even_after_a_failed_write() {
    // Which of the two is noticed first is a matter of chance.
    for _ in 0..20 {
        let opened = by_frames(1024);
        let answered = opened.call();
        let (connection, mut server) = opened.server();
        let id = receive(&mut server).await;
        let unanswered = start_call::<Frames>(connection);
        let response = Response::success(id, &json!(1)).unwrap();
        answer(&mut server, &response).await;
        drop(server);
        soon(answered).await.unwrap().unwrap();
        soon(unanswered).await.unwrap().unwrap_err();
    }
}

#[tokio::test(start_paused = true)]
async fn a_silent_server_is_given_up_over_tcp_and_not_over_a_unix_socket() {
    let opened = by_websocket(1024).await;
    let call = timeout(GIVE_UP_AFTER * 100, opened.call());
    let error = call.await.unwrap().unwrap().unwrap_err();
    assert!(error.to_string().contains("silent"), "{error}");
    assert_eq!(
        opened.writes.load(Ordering::Relaxed),
        2,
        "the call and a ping"
    );

    let opened = by_frames(1024);
    let call = opened.call();
    timeout(GIVE_UP_AFTER * 100, call).await.unwrap_err();
    assert!(opened.connection.is_open());
}
