//! What locks in Redis cost: `cargo bench -p forrst-server --bench redis`.
//!
//! Starts a `redis-server` of its own. Prints acquire+release per second through the whole HTTP path beside the bare
//! scripts, and how a lock goes from hand to hand between 64 callers on two nodes, beside the same callers polling
//! every 50 ms. Everything runs on this machine at once and in turns, so only the ratios mean much.

#![expect(clippy::cast_precision_loss, reason = "figures for people")]

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use forrst_lock::state::{Acquire, Acquired, Claim, Release};
use forrst_lock::{LockKey, LockName, LockStore, Owner, Ticket, Ttl};
use forrst_server::{Context, FunctionError, Server};
use forrst_stores::{RedisOptions, RedisStore};
use forrst_testkit::{RedisOptions as ServerOptions, RedisServer};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

const CALLERS: usize = 64;
const ROUND: Duration = Duration::from_secs(2);
const ROUNDS: usize = 3;
const POLL: Duration = Duration::from_millis(50);
const TTL: Duration = Duration::from_secs(30);

#[tokio::main]
async fn main() {
    // As most run it: with a log that reaches the disk every second.
    let options = ServerOptions::default().arguments(&["--appendfsync", "everysec"]);
    let redis = options.start();
    let bare = open(&redis).await;
    let gaps = Gaps::default();
    let nodes = [node(&redis, &gaps).await, node(&redis, &gaps).await];

    println!("acquire+release, {CALLERS} callers, a key each");
    let (mut scripts, mut http) = (0.0, 0.0);
    for _ in 0..ROUNDS {
        scripts += bare_scripts(&bare).await / ROUNDS as f64;
        http += distinct_keys(&nodes).await / ROUNDS as f64;
    }
    println!("  bare scripts through fred   {scripts:>10.0} /s");
    let ratio = http / scripts;
    println!("  the whole HTTP path         {http:>10.0} /s   ({ratio:.2} x)");

    println!("one key, {CALLERS} callers on two nodes");
    let (mut queue, mut polls) = (HandOvers::default(), HandOvers::default());
    for _ in 0..ROUNDS {
        hand_overs(&nodes, &gaps, Some(TTL), &mut queue).await;
        hand_overs(&nodes, &gaps, None, &mut polls).await;
    }
    println!("  waiting in the queue        {queue}");
    println!("  polling every 50 ms         {polls}");
    println!(
        "  in the queue: {:.1} x as many hand-overs, p99 of a hand-over {:.1} x as short, p99 of a wait {:.1} x as short",
        queue.per_second() / polls.per_second(),
        p99(&polls.gaps) / p99(&queue.gaps),
        p99(&polls.waits) / p99(&queue.waits)
    );
}

async fn open(redis: &RedisServer) -> Arc<RedisStore> {
    let store = RedisStore::open(&redis.url(), &RedisOptions::default()).await;
    Arc::new(store.expect("a Redis of our own"))
}

/// A server with one function that does nothing but look at the clock.
async fn node(redis: &RedisServer, gaps: &Gaps) -> String {
    let gaps = gaps.clone();
    let noop = move |_: Context, Turn { caller }: Turn| {
        let gaps = gaps.clone();
        async move {
            gaps.one_more(caller);
            Ok::<_, FunctionError>(())
        }
    };
    let server = Server::builder()
        .store(open(redis).await)
        .function("bench.noop", "1.0.0", noop)
        .build()
        .expect("a server");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    tokio::spawn(async move { server.serve_on(listener).await });
    address
}

#[derive(Deserialize, JsonSchema)]
struct Turn {
    caller: usize,
}

/// The time from one caller's function, which takes none itself, to the next caller's. Who gets the lock twice in a row has
/// handed it to nobody.
#[derive(Clone, Default)]
struct Gaps(Arc<Mutex<Passed>>);

#[derive(Default)]
struct Passed {
    last: Option<(usize, Instant)>,
    gaps: Vec<Duration>,
}

impl Gaps {
    fn one_more(&self, caller: usize) {
        let mut passed = self.0.lock().expect("no panic");
        let now = Instant::now();
        if let Some((last, at)) = passed.last.replace((caller, now))
            && last != caller
        {
            passed.gaps.push(now - at);
        }
    }

    fn take(&self) -> Vec<Duration> {
        std::mem::take(&mut *self.0.lock().expect("no panic")).gaps
    }
}

async fn per_second(callers: JoinSet<u64>) -> f64 {
    let done: u64 = callers.join_all().await.into_iter().sum();
    done as f64 / ROUND.as_secs_f64()
}

async fn bare_scripts(store: &Arc<RedisStore>) -> f64 {
    let mut callers = JoinSet::new();
    let end = Instant::now() + ROUND;
    for caller in 0..CALLERS {
        let store = store.clone();
        callers.spawn(async move {
            let key = LockKey::parse(&format!("bare:{caller}")).expect("a key");
            let name = LockName::global(&key);
            let mut done = 0;
            while Instant::now() < end {
                let claim = Claim {
                    owner: Owner::random(),
                    caller: None,
                    attempt: None,
                    ticket: Ticket::random(),
                    ttl: Ttl::new(TTL).expect("a ttl"),
                };
                let answer = store.acquire(&name, Acquire { claim, wait: None }).await;
                let Acquired::Granted(lease) = answer.expect("Redis").outcome else {
                    panic!("nobody else wants {name}");
                };
                let (owner, fence) = (lease.owner, Some(lease.fence));
                let answer = store.release(&name, Release { owner, fence }).await;
                answer.expect("Redis").outcome.expect("it was ours");
                done += 1;
            }
            done
        });
    }
    per_second(callers).await
}

async fn distinct_keys(nodes: &[String; 2]) -> f64 {
    let mut callers = JoinSet::new();
    let end = Instant::now() + ROUND;
    for caller in 0..CALLERS {
        let mut connection = Connection::open(&nodes[caller % 2]).await;
        let request = request(caller, &format!("http:{caller}"), None);
        callers.spawn(async move {
            let mut done = 0;
            while Instant::now() < end {
                let answer = connection.ask(&request).await;
                assert!(answer["errors"].is_null(), "{answer}");
                done += 1;
            }
            done
        });
    }
    per_second(callers).await
}

#[derive(Default)]
struct HandOvers {
    gaps: Vec<Duration>,
    /// From a caller's first try to its function.
    waits: Vec<Duration>,
}

impl HandOvers {
    fn per_second(&self) -> f64 {
        self.gaps.len() as f64 / (ROUNDS as f64 * ROUND.as_secs_f64())
    }
}

impl fmt::Display for HandOvers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { gaps, waits } = self;
        write!(
            f,
            "{:>6.0} /s   a hand-over takes {:.2} ms, p99 {:.2} ms; a caller waits {:.0} ms, p99 {:.0} ms",
            self.per_second(),
            1e3 * quantile(gaps, 0.5),
            1e3 * p99(gaps),
            1e3 * quantile(waits, 0.5),
            1e3 * p99(waits)
        )
    }
}

fn p99(times: &[Duration]) -> f64 {
    quantile(times, 0.99)
}

/// In seconds.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a place in a list"
)]
fn quantile(times: &[Duration], part: f64) -> f64 {
    let mut times = times.to_vec();
    times.sort_unstable();
    times[(times.len() as f64 * part) as usize].as_secs_f64()
}

async fn hand_overs(
    nodes: &[String; 2],
    gaps: &Gaps,
    block: Option<Duration>,
    so_far: &mut HandOvers,
) {
    gaps.take();
    let mut callers = JoinSet::new();
    let end = Instant::now() + ROUND;
    for caller in 0..CALLERS {
        let mut connection = Connection::open(&nodes[caller % 2]).await;
        let request = request(caller, "hot", block);
        callers.spawn(async move {
            let mut waits = Vec::new();
            let mut since = Instant::now();
            while Instant::now() < end {
                let answer = connection.ask(&request).await;
                if answer["errors"][0]["code"] == "LOCK_ACQUISITION_FAILED" {
                    tokio::time::sleep(POLL).await;
                } else {
                    assert!(answer["errors"].is_null(), "{answer}");
                    waits.push(since.elapsed());
                    since = Instant::now();
                }
            }
            // Whoever has waited in vain has waited all the same.
            waits.push(since.elapsed());
            waits
        });
    }
    so_far.waits.extend(callers.join_all().await.concat());
    so_far.gaps.extend(gaps.take());
}

fn request(caller: usize, key: &str, block: Option<Duration>) -> String {
    let seconds = |time: Duration| json!({"value": time.as_secs(), "unit": "second"});
    let mut options = json!({"key": key, "ttl": seconds(TTL)});
    if let Some(block) = block {
        options["block"] = seconds(block);
    }
    let request = json!({
        "protocol": {"name": "forrst", "version": "0.1.0"},
        "id": "bench",
        "call": {"function": "bench.noop", "arguments": {"caller": caller}},
        "extensions": [{"urn": "urn:forrst:ext:atomicLock", "options": options}],
    });
    let body = request.to_string();
    format!(
        "POST /forrst HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// As little of an HTTP client as there can be: it must not be what is measured.
struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    async fn open(address: &str) -> Self {
        let stream = TcpStream::connect(address).await.expect("a server");
        stream.set_nodelay(true).expect("a socket");
        Self {
            stream,
            buffer: Vec::new(),
        }
    }

    async fn ask(&mut self, request: &str) -> Value {
        let written = self.stream.write_all(request.as_bytes()).await;
        written.expect("a connection");
        loop {
            if let Some(answer) = self.whole_answer() {
                return answer;
            }
            let read = self.stream.read_buf(&mut self.buffer).await;
            assert!(read.expect("a connection") > 0, "the server hung up");
        }
    }

    fn whole_answer(&mut self) -> Option<Value> {
        let head = self
            .buffer
            .windows(4)
            .position(|part| part == b"\r\n\r\n")?;
        let text = str::from_utf8(&self.buffer[..head]).expect("an HTTP head");
        let length = text.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            let is_it = name.eq_ignore_ascii_case("content-length");
            is_it.then(|| value.trim().parse::<usize>().ok()).flatten()
        });
        let (start, end) = (head + 4, head + 4 + length.expect("a length"));
        let body = self.buffer.get(start..end)?;
        let answer = serde_json::from_slice(body).expect("an answer");
        self.buffer.drain(..end);
        Some(answer)
    }
}
