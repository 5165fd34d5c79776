//! Many connections, few keys, locks of all kinds, and clients that disconnect at random: no update is lost, and nothing is left
//! behind.
//!
//! Runs for 5 seconds, 30 in CI; `FORRST_LOAD_SECONDS` says otherwise, and `FORRST_LOAD_SEED` repeats the choices of a run.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use fastrand::Rng;
use forrst_lock::{Counts, ListRequest, LockKey, LockName, LockStore};
use forrst_server::{Context, FunctionError, Server};
use forrst_stores::{Durability, EmbeddedOptions, EmbeddedStore, MemoryStore};
use forrst_testkit::asynchronous::eventually;
use futures_util::{SinkExt, StreamExt};
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_tungstenite::tungstenite::Message;

use crate::wire::{Ask, ask, millis, seconds, until};

const CONNECTIONS: usize = 64;
const KEYS: [&str; 4] = ["a", "b", "c", "d"];

/// A record of what the functions did, by key.
#[derive(Clone, Default)]
struct Ledger(Arc<Mutex<BTreeMap<String, Entry>>>, Arc<Running>);

#[derive(Debug, Default)]
struct Entry {
    /// Read, and written a while later: correct only if no other function writes in between.
    count: u64,
    /// How many functions wrote it.
    written: u64,
    /// The largest fence that an exclusive lease had.
    last_exclusive: String,
    /// The largest fence that any lease had.
    last_fence: String,
    /// The functions that run under it.
    inside: Vec<Kind>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Exclusive,
    Shared,
    Limit(usize),
}

impl Entry {
    fn has_room_for(&self, kind: Kind) -> bool {
        match kind {
            Kind::Exclusive => self.inside.is_empty(),
            Kind::Shared => self.inside.iter().all(|it| *it == kind),
            Kind::Limit(limit) => {
                self.inside.len() < limit && self.inside.iter().all(|it| *it == kind)
            }
        }
    }
}

#[derive(Default)]
struct Running {
    started: AtomicU64,
    ended: AtomicU64,
}

/// A function in the critical section of its keys.
struct Inside {
    ledger: Ledger,
    keys: BTreeMap<String, Kind>,
}

impl Ledger {
    /// Enters the critical section; returns the counts of the keys that are locked exclusively.
    fn enter(&self, keys: BTreeMap<String, Kind>, fence: &str) -> (Inside, BTreeMap<String, u64>) {
        let mut entries = self.0.lock().unwrap();
        let mut read = BTreeMap::new();
        for (key, kind) in &keys {
            let entry = entries.entry(key.clone()).or_default();
            let inside = &entry.inside;
            assert!(
                entry.has_room_for(*kind),
                "{kind:?} of `{key}` beside {inside:?}"
            );
            let before = match kind {
                Kind::Exclusive => &entry.last_fence,
                // Shared leases may enter in any order.
                _ => &entry.last_exclusive,
            };
            assert!(
                fence > before.as_str(),
                "fence {fence} of `{key}` does not follow {before}"
            );
            entry.inside.push(*kind);
            entry.last_fence = entry.last_fence.clone().max(fence.to_owned());
            if *kind == Kind::Exclusive {
                entry.last_exclusive = fence.to_owned();
                read.insert(key.clone(), entry.count);
            }
        }
        self.1.started.fetch_add(1, Ordering::SeqCst);
        let ledger = self.clone();
        (Inside { ledger, keys }, read)
    }
}

impl Inside {
    fn write(&self, counts: &BTreeMap<String, u64>) {
        let mut entries = self.ledger.0.lock().unwrap();
        for (key, count) in counts {
            let entry = entries.get_mut(key).expect("it was entered");
            entry.count = *count;
            entry.written += 1;
        }
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let entries = self.ledger.0.lock();
        let mut entries = entries.unwrap_or_else(std::sync::PoisonError::into_inner);
        for (key, kind) in &self.keys {
            let inside = entries.get_mut(key).map(|entry| &mut entry.inside);
            if let Some(inside) = inside
                && let Some(index) = inside.iter().position(|it| it == kind)
            {
                inside.remove(index);
            }
        }
        self.ledger.1.ended.fetch_add(1, Ordering::SeqCst);
    }
}

#[derive(Deserialize, JsonSchema)]
struct Work {
    keys: BTreeMap<String, Kind>,
    ms: u64,
}

async fn count(context: Context, work: Work, ledger: Ledger) -> Result<Value, FunctionError> {
    let fence = context.lease().map(|lease| lease.fence().to_string());
    let (inside, mut counts) = ledger.enter(work.keys, &fence.unwrap_or_default());
    sleep(Duration::from_millis(work.ms)).await;
    for count in counts.values_mut() {
        *count += 1;
    }
    inside.write(&counts);
    Ok(json!({"values": counts}))
}

async fn hold(_: Context, _: Work) -> Result<Value, FunctionError> {
    Ok(json!({}))
}

/// A random call. It locks keys as any kind; some calls have a wait, a deadline, or a lease that is not released.
fn random_call(random: &mut Rng) -> Ask {
    let count = if random.u8(..4) == 0 { 2..=3 } else { 1..=1 };
    let mut keys: Vec<(&str, Value, Value)> = Vec::new();
    for key in random.choose_multiple(KEYS, random.clone().usize(count)) {
        keys.push(match random.u8(..8) {
            0 | 1 => (key, json!("shared"), json!({"key": key, "mode": "shared"})),
            2 => (key, json!({"limit": 2}), json!({"key": key, "limit": 2})),
            _ => (key, json!("exclusive"), json!({"key": key})),
        });
    }
    let kinds = keys.iter().map(|(key, kind, _)| (*key, kind.clone()));
    let kinds: BTreeMap<&str, Value> = kinds.collect();
    let work = json!({"keys": kinds, "ms": random.u64(0..=20)});
    let mut lock = match &keys[..] {
        [(_, _, entry)] => entry.clone(),
        several => json!({"keys": several.iter().map(|(_, _, entry)| entry).collect::<Vec<_>>()}),
    };
    lock["scope"] = "global".into();
    lock["ttl"] = seconds(300);
    if random.u8(..10) < 7 {
        lock["block"] = millis(random.u64(1..=500));
    }
    if random.u8(..10) == 0 {
        // Held for a moment after the function has ended.
        lock["auto_release"] = false.into();
        lock["ttl"] = millis(random.u64(1..=30));
        return ask("load.hold").arguments(work).lock(lock);
    }
    lock["renew"] = random.bool().into();
    let call = ask("load.count").arguments(work).lock(lock);
    match random.u8(..4) {
        0 => call.deadline(millis(random.u64(1..=60))),
        _ => call,
    }
}

/// The outcomes of the calls.
#[derive(Clone, Default)]
struct Tally(
    Arc<Mutex<BTreeMap<&'static str, u64>>>,
    Arc<Mutex<BTreeSet<(String, u64)>>>,
);

impl Tally {
    fn add(&self, what: &'static str) {
        *self.0.lock().unwrap().entry(what).or_default() += 1;
    }

    /// Checks an answer: a unique result, or one of the expected refusals.
    fn answered(&self, request: &Ask, answer: &Value) {
        let Some(code) = answer["errors"][0]["code"].as_str() else {
            for (key, value) in answer["result"]["values"].as_object().into_iter().flatten() {
                let value = value.as_u64().expect("a number");
                let is_new = self.1.lock().unwrap().insert((key.clone(), value));
                assert!(is_new, "two callers got {value} of `{key}`");
            }
            let lock = &request.value()["extensions"][0]["options"];
            return self.add(match lock["keys"].as_array() {
                Some(_) => "got several keys",
                None if lock["mode"] == "shared" => "got a share",
                None if lock["limit"] == 2 => "got one of two",
                None => "got a key",
            });
        };
        self.add(match code {
            "LOCK_ACQUISITION_FAILED" => "refused",
            "LOCK_TIMEOUT" => "timed out",
            "DEADLINE_EXCEEDED" => "too late",
            _ => panic!("{answer:#}"),
        });
    }
}

struct Client {
    address: SocketAddr,
    random: Rng,
    tally: Tally,
    ends: Instant,
}

impl Client {
    /// How long to wait before disconnecting; a third of the callers do.
    fn time_limit(&mut self) -> Duration {
        match self.random.u8(..3) {
            0 => Duration::from_micros(self.random.u64(..30_000)),
            _ => Duration::from_secs(60),
        }
    }

    async fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address)
            .await
            .expect("the server takes connections");
        stream.set_nodelay(true).expect("a fresh connection");
        stream
    }

    /// One request at a time, on one connection until the client disconnects.
    async fn http1(mut self) {
        while Instant::now() < self.ends {
            let io = TokioIo::new(self.connect().await);
            let (mut sender, connection) = http1::handshake(io).await.expect("HTTP/1.1");
            let connection = tokio::spawn(connection);
            while Instant::now() < self.ends {
                let request = random_call(&mut self.random);
                let asked = async {
                    // The connection may still be receiving the end of the last answer.
                    sender.ready().await?;
                    sender.send_request(post(&request)).await
                };
                match timeout(self.time_limit(), read(asked)).await {
                    Ok(answer) => self.tally.answered(&request, &answer),
                    Err(_) => {
                        self.tally.add("disconnected");
                        break;
                    }
                }
            }
            connection.abort();
        }
    }

    /// Several requests at a time; a disconnect resets the stream.
    async fn http2(mut self) {
        let io = TokioIo::new(self.connect().await);
        let shake = http2::handshake(TokioExecutor::new(), io).await;
        let (sender, connection) = shake.expect("HTTP/2");
        let connection = tokio::spawn(connection);
        while Instant::now() < self.ends {
            let mut calls = JoinSet::new();
            for _ in 0..self.random.usize(1..=4) {
                let request = random_call(&mut self.random);
                let (mut sender, time_limit, tally) =
                    (sender.clone(), self.time_limit(), self.tally.clone());
                calls.spawn(async move {
                    let post = sender.send_request(post(&request));
                    match timeout(time_limit, read(post)).await {
                        Ok(answer) => tally.answered(&request, &answer),
                        Err(_) => tally.add("disconnected"),
                    }
                });
            }
            calls.join_all().await;
        }
        connection.abort();
    }

    /// Several requests at a time, or a batch; a disconnect abandons them all.
    async fn websocket(mut self) {
        while Instant::now() < self.ends {
            let url = format!("ws://{}/rpc", self.address);
            let shake = tokio_tungstenite::client_async(url, self.connect().await).await;
            let (mut socket, _) = shake.expect("a WebSocket");
            while Instant::now() < self.ends {
                let count = self.random.usize(1..=4);
                let calls: Vec<Ask> = (0..count).map(|_| random_call(&mut self.random)).collect();
                let is_batch = self.random.bool();
                let time_limit = self.time_limit();
                let exchanged = timeout(time_limit, async {
                    let mut answers = Vec::new();
                    let frames = calls.iter().enumerate().map(|(id, call)| call.rpc(id));
                    let frames: Vec<Value> = match is_batch {
                        true => vec![frames.collect()],
                        false => frames.collect(),
                    };
                    for frame in frames {
                        socket
                            .send(Message::text(frame.to_string()))
                            .await
                            .expect("it is open");
                    }
                    while answers.len() < count {
                        match socket
                            .next()
                            .await
                            .expect("it is open")
                            .expect("it is whole")
                        {
                            Message::Text(text) => match serde_json::from_str(&text).expect("JSON")
                            {
                                Value::Array(batch) => answers.extend(batch),
                                answer => answers.push(answer),
                            },
                            _ => continue,
                        }
                    }
                    answers
                });
                let Ok(answers) = exchanged.await else {
                    self.tally.add("disconnected");
                    break;
                };
                for answer in answers {
                    let id = answer["id"]
                        .as_u64()
                        .and_then(|id| usize::try_from(id).ok());
                    self.tally
                        .answered(&calls[id.expect("an id of ours")], &answer["result"]);
                }
            }
        }
    }
}

fn lock_name(key: &str) -> LockName {
    LockName::global(&LockKey::parse(key).unwrap())
}

fn post(request: &Ask) -> Request<Full<Bytes>> {
    Request::post("http://localhost/forrst")
        .header("host", "localhost")
        .header("content-type", "application/json")
        .body(Full::from(request.text()))
        .expect("a request")
}

async fn read(
    post: impl Future<Output = hyper::Result<hyper::Response<hyper::body::Incoming>>>,
) -> Value {
    let answer = post.await.expect("an answer").into_body();
    let body = answer.collect().await.expect("a whole answer").to_bytes();
    serde_json::from_slice(&body).expect("JSON")
}

fn load_time() -> Duration {
    let from_environment = std::env::var("FORRST_LOAD_SECONDS").ok();
    let in_ci = std::env::var("CI").is_ok_and(|ci| ci == "true");
    let default = if in_ci { 30 } else { 5 };
    let seconds =
        from_environment.map(|text| text.parse().expect("FORRST_LOAD_SECONDS is a number"));
    Duration::from_secs(seconds.unwrap_or(default))
}

fn seed() -> u64 {
    let from_environment = std::env::var("FORRST_LOAD_SEED").ok();
    let seed = from_environment.map(|text| text.parse().expect("FORRST_LOAD_SEED is a number"));
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    println!("FORRST_LOAD_SEED={seed}");
    seed
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn random_disconnects_leave_nothing_behind_in_memory() {
    random_disconnects_lose_no_update_and_leave_nothing_behind(Arc::new(MemoryStore::new())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn random_disconnects_leave_nothing_behind_in_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = EmbeddedOptions::default();
    options.durability = Durability::Process;
    let store = EmbeddedStore::open(folder.path(), &options).unwrap();
    random_disconnects_lose_no_update_and_leave_nothing_behind(Arc::new(store)).await;
}

async fn random_disconnects_lose_no_update_and_leave_nothing_behind(store: Arc<dyn LockStore>) {
    let ledger = Ledger::default();
    let for_functions = ledger.clone();
    let server = Server::builder()
        .store(store)
        .function("load.count", "1.0.0", move |context, work| {
            count(context, work, for_functions.clone())
        })
        .function("load.hold", "1.0.0", hold)
        .build()
        .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = tokio::spawn({
        let server = server.clone();
        async move { server.serve_on(listener).await }
    });

    let tally = Tally::default();
    let mut random = Rng::with_seed(seed());
    let ends = Instant::now() + load_time();
    let mut clients = JoinSet::new();
    for number in 0..CONNECTIONS {
        let client = Client {
            address,
            random: random.fork(),
            tally: tally.clone(),
            ends,
        };
        match number % 8 {
            0 => clients.spawn(client.http2()),
            1 | 2 => clients.spawn(client.websocket()),
            _ => clients.spawn(client.http1()),
        };
    }
    while let Some(client) = clients.join_next().await {
        client.expect("no client saw anything wrong");
    }

    // No client is connected any more: functions end, and waiters leave. A lease that was not released would last five minutes.
    let running = &ledger.1;
    until("no call waits", || server.locks().waiting() == 0).await;
    until("all functions have ended", || {
        running.started.load(Ordering::SeqCst) == running.ended.load(Ordering::SeqCst)
    })
    .await;
    let give_up = Instant::now() + Duration::from_secs(20);
    loop {
        let request = ListRequest {
            limit: 100,
            ..ListRequest::default()
        };
        let held = server.locks().list(&request).await.unwrap().locks;
        if held.is_empty() {
            break;
        }
        assert!(Instant::now() < give_up, "left behind: {held:#?}");
        sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(server.locks().waiting(), 0);
    // Expired leases are counted until the next sweep.
    eventually("nothing is counted", async || {
        server.locks().store().counts().await.unwrap() == Counts::default()
    })
    .await;
    for key in KEYS {
        let status = server.locks().inspect(&lock_name(key)).await.unwrap().0;
        assert_eq!(status.waiters, 0, "{status:?}");
    }
    server.shut_down(Duration::from_secs(20)).await;
    serving.await.unwrap();

    let entries = ledger.0.lock().unwrap();
    println!("{:?}\n{entries:#?}", tally.0.lock().unwrap());
    for (key, entry) in entries.iter() {
        assert_eq!(entry.count, entry.written, "updates of `{key}` were lost");
    }
    assert_eq!(entries.len(), KEYS.len());
    // A run in which one of these never happened proves nothing.
    let all = [
        "got a key",
        "got a share",
        "got one of two",
        "got several keys",
        "refused",
        "timed out",
        "too late",
        "disconnected",
    ];
    for what in all {
        let count = tally
            .0
            .lock()
            .unwrap()
            .get(what)
            .copied()
            .unwrap_or_default();
        assert!(count > 0, "no call {what}");
    }
    let seen = tally.1.lock().unwrap().len();
    let written: u64 = entries.values().map(|entry| entry.written).sum();
    assert!(written >= seen as u64, "{seen} results, {written} updates");
}
