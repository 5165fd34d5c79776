//! Requests that are sent back to back on one connection join the queue of a lock in the order in which they were sent.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use forrst_lock::LockStore;
use forrst_server::Limits;
use forrst_stores::{EmbeddedOptions, EmbeddedStore, MemoryStore, RedisOptions, RedisStore};
use forrst_testkit::SharedRedis;
use futures_util::SinkExt;
use futures_util::future::join_all;
use hyper::Request;
use hyper::header::CONTENT_TYPE;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::sleep;
use tokio_tungstenite::tungstenite::Message;

use crate::transports::host::{Host, soon};
use crate::transports::http1::Http1;
use crate::transports::unix_client::{Frames, UnixHost, frame};
use crate::transports::websocket_client::Socket;
use crate::wire::{Ask, LOCK, ask, data, seconds};

/// More than are polled together, so the order has to hold within what is read at once, and from one part to the next.
const CALLS: usize = 100;
const ROUNDS: usize = 5;

const WAITERS: &str = "urn:cline:forrst:ext:atomic-lock:fn:waiters";
const RELEASE: &str = "urn:cline:forrst:ext:atomic-lock:fn:release";

/// A connection on which many requests are sent back to back.
enum Connection {
    WebSocket(Box<Socket>),
    Unix(Frames),
    Http2(h2::client::SendRequest<Bytes>),
}

impl Connection {
    async fn http2(host: &Host) -> Self {
        let stream = soon(TcpStream::connect(host.address)).await.unwrap();
        let (sender, connection) = soon(h2::client::handshake(stream)).await.unwrap();
        tokio::spawn(connection);
        Self::Http2(sender)
    }

    /// Sends the requests together, and returns the future of their answers, in any order.
    async fn send(&mut self, requests: &[Ask]) -> impl Future<Output = Vec<Value>> {
        let count = requests.len();
        let mut streams = Vec::new();
        match self {
            Self::WebSocket(socket) => {
                for request in requests {
                    let text = request.rpc(0).to_string();
                    soon(socket.0.feed(Message::text(text))).await.unwrap();
                }
                soon(socket.0.flush()).await.unwrap();
            }
            Self::Unix(frames) => {
                let together: Vec<u8> =
                    requests.iter().flat_map(|ask| frame(&ask.text())).collect();
                frames.send(together).await;
            }
            Self::Http2(sender) => {
                for request in requests {
                    let head = Request::post("http://test/forrst")
                        .header(CONTENT_TYPE, "application/json")
                        .body(())
                        .unwrap();
                    let mut ready = soon(sender.clone().ready()).await.unwrap();
                    let (answer, mut body) = ready.send_request(head, false).unwrap();
                    body.send_data(request.text().into(), true).unwrap();
                    streams.push(answer);
                }
            }
        }
        async move {
            match self {
                Self::WebSocket(socket) => {
                    let mut answers = Vec::new();
                    for _ in 0..count {
                        answers.push(socket.answer().await["result"].take());
                    }
                    answers
                }
                Self::Unix(frames) => {
                    let mut answers = Vec::new();
                    for _ in 0..count {
                        answers.push(frames.answer().await);
                    }
                    answers
                }
                Self::Http2(_) => {
                    join_all(streams.into_iter().map(async |answer| {
                        let mut body = soon(answer).await.unwrap().into_body();
                        let mut whole = Vec::new();
                        while let Some(part) = soon(body.data()).await {
                            whole.extend(part.unwrap());
                        }
                        serde_json::from_slice(&whole).unwrap()
                    }))
                    .await
                }
            }
        }
    }
}

fn number(index: usize) -> String {
    format!("{index:03}")
}

async fn ask_other(other: &mut Http1, request: &Ask) -> Value {
    other.ask(request).await;
    other.answer().await.json()
}

/// The owners in the queue of a lock.
async fn waiters(other: &mut Http1, key: &str) -> Vec<String> {
    let arguments = json!({"key": key, "limit": 1000});
    let answer = ask_other(other, &ask(WAITERS).arguments(arguments)).await;
    let waiters = answer["result"]["waiters"].as_array().unwrap();
    let owner = |waiter: &Value| waiter["owner"].as_str().unwrap().to_owned();
    waiters.iter().map(owner).collect()
}

/// Calls that wait for a held lock are shown, and then granted, in the order in which they were sent.
async fn check(host: &Host, connection: &mut Connection) {
    let mut other = Http1::connect(host).await;
    // A server that does not know the usual size of an answer runs few calls together.
    let warm_up: Vec<Ask> = (0..2 * CALLS).map(|_| ask("test.echo")).collect();
    connection.send(&warm_up).await.await;
    for round in 0..ROUNDS {
        let key = format!("k{round}");
        let full_key = format!("lock:{key}");
        let lock = |owner: &str| json!({"key": key, "scope": "global", "owner": owner});
        let mut held = lock("holder");
        held["auto_release"] = false.into();
        ask_other(&mut other, &ask("test.echo").lock(held)).await;
        let requests = (0..CALLS).map(|index| {
            let mut options = lock(&number(index));
            options["block"] = seconds(60);
            ask("test.echo").id(number(index)).lock(options)
        });
        let requests: Vec<Ask> = requests.collect();
        let answers = connection.send(&requests).await;
        let queue = soon(async {
            loop {
                let queue = waiters(&mut other, &full_key).await;
                if queue.len() == CALLS {
                    return queue;
                }
                sleep(Duration::from_millis(10)).await;
            }
        });
        let sent: Vec<String> = (0..CALLS).map(number).collect();
        assert_eq!(queue.await, sent, "the queue");
        let arguments = json!({"key": full_key, "owner": "holder"});
        ask_other(&mut other, &ask(RELEASE).arguments(arguments)).await;
        let mut answers = answers.await;
        answers.sort_by_key(|answer| data(answer, LOCK)["fence"].to_string());
        let granted: Vec<&str> = answers.iter().filter_map(|it| it["id"].as_str()).collect();
        assert_eq!(granted, sent, "the grants");
    }
}

async fn check_all(store: Arc<dyn LockStore>) {
    let host = Host::on(store, Limits::default()).await;
    let host = UnixHost::start(host).await;
    let mut connection = Connection::WebSocket(Box::new(Socket::connect(&host.host).await));
    check(&host.host, &mut connection).await;
    let mut connection = Connection::Unix(Frames::connect(&host.socket).await);
    check(&host.host, &mut connection).await;
    let mut connection = Connection::http2(&host.host).await;
    check(&host.host, &mut connection).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn calls_sent_back_to_back_wait_in_that_order_with_the_memory_store() {
    check_all(Arc::new(MemoryStore::new())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn calls_sent_back_to_back_wait_in_that_order_with_the_embedded_store() {
    let folder = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open(folder.path(), &EmbeddedOptions::default()).unwrap();
    check_all(Arc::new(store)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn calls_sent_back_to_back_wait_in_that_order_with_redis() {
    let redis = SharedRedis::join();
    let options = RedisOptions {
        prefix: redis.prefix().to_owned(),
        ..RedisOptions::default()
    };
    let store = RedisStore::open(&redis.url(), &options).await.unwrap();
    check_all(Arc::new(store)).await;
}
