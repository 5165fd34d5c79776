//! The server that plays the script of one vector, over HTTP on a port of its own.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::stream;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

use super::reply::{HttpReply, Kind};
use super::script::Script;
use super::vector::ClientVector;
use crate::mismatch::Mismatch;

/// How long requests that a client sends in the background may take after its last step.
const BACKGROUND: Duration = Duration::from_secs(20);

type Body = BoxBody<Bytes, io::Error>;

/// The server of one vector, which runs until it is dropped.
#[derive(Debug)]
pub struct Stub {
    script: Arc<Script>,
    address: SocketAddr,
    accepting: JoinHandle<()>,
}

/// Whether a client did what a vector says.
#[derive(Debug, Clone, Serialize)]
pub struct StubVerdict {
    /// Everything that was wrong; empty if the client passed.
    pub mismatches: Vec<Mismatch>,
}

impl StubVerdict {
    /// Whether nothing was wrong.
    pub fn passed(&self) -> bool {
        self.mismatches.is_empty()
    }
}

impl Stub {
    /// Starts the server of a vector on a free port of this machine.
    ///
    /// # Errors
    ///
    /// If there is no such port.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn start(vector: ClientVector) -> io::Result<Self> {
        let starts_down = vector.starts_down;
        let socket = bound(SocketAddr::from(([127, 0, 0, 1], 0)))?;
        let address = socket.local_addr()?;
        let script = Arc::new(Script::new(vector));
        let door = match starts_down {
            Some(time) => Door::Closed(socket, time),
            None => Door::Open(socket.listen(1024)?),
        };
        let accepting = tokio::spawn(accept(door, address, script.clone()));
        Ok(Self {
            script,
            address,
            accepting,
        })
    }

    /// What the client is told: the URL of the server, its settings, and what to do.
    pub fn instructions(&self) -> Value {
        let vector = self.script.vector();
        json!({
            "vector": vector.name,
            "about": vector.about,
            "needs": vector.needs,
            "url": format!("http://{}", self.address),
            "client": vector.client,
            "do": vector.actions,
        })
    }

    /// Judges what the client did, and the outcome that it reports: an array with an entry for each step.
    pub async fn judge(self, outcome: &Value) -> StubVerdict {
        // What is still missing then is reported below.
        let _ = timeout(BACKGROUND, self.script.complete()).await;
        sleep(self.script.vector().quiet).await;
        StubVerdict {
            mismatches: self.script.judge(outcome),
        }
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// A socket that has its port, and refuses connections until it listens.
fn bound(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

enum Door {
    Open(TcpListener),
    Closed(TcpSocket, Duration),
}

struct Connections {
    script: Arc<Script>,
    /// Closes all connections, and refuses new ones for this long.
    go_down: mpsc::UnboundedSender<Duration>,
    closed_unread: AtomicU32,
}

async fn accept(mut door: Door, address: SocketAddr, script: Arc<Script>) {
    let (go_down, mut downs) = mpsc::unbounded_channel();
    let connections = Arc::new(Connections {
        script,
        go_down,
        closed_unread: AtomicU32::new(0),
    });
    // Ends its connections when it is dropped.
    let mut serving = JoinSet::new();
    loop {
        door = match door {
            Door::Closed(socket, time) => {
                sleep(time).await;
                match socket.listen(1024) {
                    Ok(listener) => Door::Open(listener),
                    Err(error) => {
                        return connections
                            .script
                            .note("the stub", "a port", &error.to_string());
                    }
                }
            }
            Door::Open(listener) => tokio::select! {
                biased;
                Some(time) = downs.recv() => {
                    drop(listener);
                    serving.abort_all();
                    while serving.join_next().await.is_some() {}
                    match bound(address) {
                        Ok(socket) => Door::Closed(socket, time),
                        Err(error) => return connections.script.note("the stub", "its port", &error.to_string()),
                    }
                }
                Ok((stream, _)) = listener.accept() => {
                    if !connections.closes_unread() {
                        serving.spawn(connections.clone().serve(stream));
                    }
                    Door::Open(listener)
                }
                Some(_) = serving.join_next() => Door::Open(listener),
                else => return,
            },
        };
    }
}

impl Connections {
    fn closes_unread(&self) -> bool {
        let most = self.script.vector().closes_connections;
        self.closed_unread.fetch_add(1, Ordering::Relaxed) < most
    }

    async fn serve(self: Arc<Self>, stream: TcpStream) {
        let down = Arc::new(Mutex::new(None));
        let (connections, after_the_answer) = (self.clone(), down.clone());
        let answer = service_fn(move |request| {
            let (connections, down) = (connections.clone(), after_the_answer.clone());
            async move { connections.answer(request, &down).await }
        });
        let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), answer);
        // An error is a client that has disconnected, or a reply that disconnects.
        let _ = connection.await;
        let down = down.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(time) = down {
            // Only a stub that has ended does not listen to this.
            let _ = self.go_down.send(time);
        }
    }

    /// The answer to a request. If connections have to be refused after it, `down` says for how long.
    async fn answer(
        &self,
        request: Request<Incoming>,
        down: &Mutex<Option<Duration>>,
    ) -> io::Result<Response<Body>> {
        let (head, body) = request.into_parts();
        let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
        let path = head.uri.path();
        if (&head.method, path) != (&Method::POST, "/forrst") {
            let found = format!("{} {path}", head.method);
            self.script.note("a request", "POST /forrst", &found);
        }
        let content_type = head.headers.get(CONTENT_TYPE);
        let content_type = content_type.and_then(|value| value.to_str().ok());
        if !content_type.is_some_and(|value| value.starts_with("application/json")) {
            let found = content_type.unwrap_or("nothing");
            self.script.note("content-type", "application/json", found);
        }
        let request: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
        let reply = self.script.reply_to(&head.headers, &request);
        sleep(reply.delay).await;
        let mut answer = reply.http(&request);
        if let (Some(time), Some(answer)) = (reply.down, &mut answer) {
            // Once the answer is sent, and the connection has ended.
            *down.lock().unwrap_or_else(PoisonError::into_inner) = Some(time);
            let close = ("connection".to_owned(), "close".to_owned());
            answer.headers.extend([close]);
        } else if let Some(time) = reply.down {
            // The client must not find a port that still listens: this ends the connection after that.
            let _ = self.go_down.send(time);
            return std::future::pending().await;
        }
        match (answer, &reply.kind) {
            (Some(answer), Kind::CutOff) => cut_off(&answer),
            (Some(answer), _) => whole(answer),
            (None, Kind::Silence) => std::future::pending().await,
            (None, _) => Err(io::ErrorKind::ConnectionAborted.into()),
        }
    }
}

fn whole(answer: HttpReply) -> io::Result<Response<Body>> {
    let mut response = Response::builder().status(answer.status);
    for (name, value) in answer.headers {
        response = response.header(name, value);
    }
    let body = Full::new(Bytes::from(answer.body)).map_err(|never: Infallible| match never {});
    response.body(body.boxed()).map_err(io::Error::other)
}

/// The head and half of the body.
fn cut_off(answer: &HttpReply) -> io::Result<Response<Body>> {
    let half = Bytes::from(answer.body[..answer.body.len() / 2].to_owned());
    let frames = [
        Ok(Frame::data(half)),
        Err(io::ErrorKind::ConnectionAborted.into()),
    ];
    let response = Response::builder()
        .status(answer.status)
        .header(CONTENT_LENGTH, answer.body.len());
    let body = BodyExt::boxed(StreamBody::new(stream::iter(frames)));
    response.body(body).map_err(io::Error::other)
}
