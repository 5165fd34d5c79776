//! An HTTP server whose replies a test chooses, and which records the requests.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use forrst_client::{Call, Client, ClientBuilder};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// A request that was received.
#[derive(Debug, Clone)]
pub(crate) struct Received {
    pub(crate) at: Instant,
    pub(crate) head: String,
    pub(crate) body: Value,
}

/// A reply to a request.
pub(crate) enum Reply {
    /// A Forrst answer to the request, with these members.
    Forrst(Value),
    /// A status line and a body of any kind.
    Http(u16, &'static str),
    /// No reply, for ever.
    Silence,
    /// The connection is closed.
    Disconnect,
}

impl Reply {
    pub(crate) fn success(result: &Value) -> Self {
        Self::Forrst(json!({"result": result}))
    }

    pub(crate) fn error(code: &str, details: &Value) -> Self {
        let error = json!({"code": code, "message": "as the test wants it", "details": details});
        Self::Forrst(json!({"result": null, "errors": [error]}))
    }
}

pub(crate) struct RawServer {
    pub(crate) address: SocketAddr,
    received: Arc<Mutex<Vec<Received>>>,
}

impl RawServer {
    /// `reply` gets the number of earlier requests.
    pub(crate) async fn start(reply: impl Fn(usize) -> Reply + Send + Sync + 'static) -> Self {
        Self::replying(move |before, _| reply(before)).await
    }

    /// `reply` gets the number of earlier requests, and the body of this one.
    pub(crate) async fn replying(
        reply: impl Fn(usize, &Value) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let received = Arc::new(Mutex::new(Vec::new()));
        let (seen, reply) = (received.clone(), Arc::new(reply));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (seen, reply) = (seen.clone(), reply.clone());
                tokio::spawn(async move { serve(stream, &seen, reply.as_ref()).await });
            }
        });
        Self { address, received }
    }

    pub(crate) fn http(&self) -> ClientBuilder {
        Client::builder(format!("http://{}", self.address))
    }

    pub(crate) fn client(&self) -> Client {
        self.http().build().unwrap()
    }

    /// A call of some function, to be made.
    pub(crate) fn call(&self) -> Call<Value> {
        self.client().call("a.b", json!({}))
    }

    pub(crate) fn received(&self) -> Vec<Received> {
        self.received.lock().unwrap().clone()
    }
}

async fn serve(
    stream: TcpStream,
    seen: &Mutex<Vec<Received>>,
    reply: &(dyn Fn(usize, &Value) -> Reply + Send + Sync),
) {
    let mut stream = BufReader::new(stream);
    while let Some(received) = read(&mut stream).await {
        let before = {
            let mut seen = seen.lock().unwrap();
            seen.push(received.clone());
            seen.len() - 1
        };
        let (status, body) = match reply(before, &received.body) {
            Reply::Silence => std::future::pending().await,
            Reply::Disconnect => return,
            Reply::Http(status, body) => (status, body.to_owned()),
            Reply::Forrst(mut answer) => {
                answer["protocol"] = json!({"name": "forrst", "version": "0.1.0"});
                if answer.get("id").is_none() {
                    answer["id"] = received.body["id"].clone();
                }
                (200, answer.to_string())
            }
        };
        let length = body.len();
        let answer = format!("HTTP/1.1 {status} X\r\ncontent-length: {length}\r\n\r\n{body}");
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

async fn read(stream: &mut BufReader<TcpStream>) -> Option<Received> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head).await.ok()? == 0 {
            return None;
        }
    }
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        let is_length = name.eq_ignore_ascii_case("content-length");
        is_length.then(|| value.trim().parse().ok())?
    });
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body).await.ok()?;
    Some(Received {
        at: Instant::now(),
        head,
        body: serde_json::from_slice(&body).unwrap_or(Value::Null),
    })
}
