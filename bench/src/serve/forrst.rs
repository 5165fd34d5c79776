//! Our server, with `demo.echo` and the settings of `forrst serve --demo`, and the commands that fill it with locks and waiters.

use std::io::{BufWriter, stderr};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forrst_lock::model::{Acquire, Acquired, Claim};
use forrst_lock::{
    AcquireRequest, Config, ListRequest, LockKey, LockName, LockStore, LockStoreExt as _, Locks,
    Owner, Ticket, Ttl,
};
use forrst_server::{Context, FunctionError, Limits, Server};
use forrst_stores::{Durability, OpenOptions};
use serde_json::{Map, Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing_appender::non_blocking::NonBlockingBuilder;

use super::ServeArguments;

/// Longer than any run.
const HOUR: Duration = Duration::from_secs(60 * 60);
/// How long a batch of waiters may take to queue; after that, the store does not keep up.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(20);
/// How many pages are listed.
const PAGES: usize = 51;
/// How many locks are acquired concurrently.
const BATCH: u64 = 512;

pub(super) async fn serve(arguments: &ServeArguments) -> Result<(SocketAddr, Server), String> {
    log();
    let mut options = OpenOptions::default();
    if arguments.process_durability {
        options.durability = Durability::Process;
    }
    let store = forrst_stores::open(&arguments.store, &options).await;
    let server = echo_server(store.map_err(|error| error.to_string())?)?;
    let failed = |error| format!("cannot listen: {error}");
    tokio::spawn(server.bind_unix(&arguments.unix).await.map_err(failed)?);
    let listener = TcpListener::bind("127.0.0.1:0").await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let http = server.clone();
    tokio::spawn(async move { http.serve_on(listener).await });
    Ok((address, server))
}

/// A server with `demo.echo` and higher limits for waiters.
pub(crate) fn echo_server(store: Arc<dyn LockStore>) -> Result<Server, String> {
    let echo = |_: Context, arguments: Map<String, Value>| async move {
        Ok::<_, FunctionError>(arguments)
    };
    let limits = Limits {
        max_block: HOUR,
        ..Limits::default()
    };
    let locks = Config {
        max_waiters: 1_000_000,
        max_waiters_per_key: 1_000_000,
        ..Config::default()
    };
    let builder = Server::builder().store(store).limits(limits);
    let server = builder
        .lock_config(locks)
        .function("demo.echo", "1.0.0", echo)
        .build();
    server.map_err(|error| error.to_string())
}

/// Logs each request through a bounded queue to a thread that writes, as `forrst serve` does.
fn log() {
    let lines = NonBlockingBuilder::default()
        .buffered_lines_limit(4096)
        .lossy(true);
    let (lines, guard) = lines.finish(BufWriter::with_capacity(32 * 1024, stderr()));
    // The thread writes until the process exits.
    std::mem::forget(guard);
    tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(lines)
        .init();
}

/// An acquire of one exclusive key, by a new owner.
pub(crate) fn acquire_command(name: LockName, ttl: Duration) -> Acquire {
    Acquire {
        claim: Claim {
            locks: Locks::exclusive(name),
            owner: Owner::random(),
            caller: None,
            note: None,
            attempt: None,
            ttl: Ttl::new(ttl).expect("a ttl within the limits"),
        },
        ticket: Ticket::random(),
        node: None,
        wait: None,
    }
}

pub(crate) fn lock_name(key: &str) -> LockName {
    LockName::global(&LockKey::parse(key).expect("a short key"))
}

/// Acquires locks that are not released. It calls the server as a client does, so that the server has all of its state about them.
pub(super) async fn hold(server: Option<&Server>, count: u64) -> Result<u64, String> {
    let server = server.ok_or("only our server has locks")?;
    let mut tasks = JoinSet::new();
    for worker in 0..BATCH {
        let server = server.clone();
        tasks.spawn(async move {
            for number in (worker..count).step_by(BATCH as usize) {
                let request = json!({
                    "protocol": {"name": "forrst", "version": "0.1.0"},
                    "id": "hold",
                    "call": {
                        "function": "urn:cline:forrst:ext:atomic-lock:fn:acquire",
                        "arguments": {"key": format!("held:{number}"), "ttl": {"value": 1, "unit": "hour"}},
                    },
                });
                let response = server.handle(request.to_string().as_bytes()).await;
                if response.http_status() != 200 {
                    return Err(serde_json::to_string(&response).unwrap_or_default());
                }
            }
            Ok(())
        });
    }
    for taken in tasks.join_all().await {
        taken?;
    }
    Ok(count)
}

async fn take(store: &Arc<dyn LockStore>, name: &LockName) -> Result<(), String> {
    let acquired = store.acquire(acquire_command(name.clone(), HOUR)).await;
    match acquired.map_err(|error| error.to_string())?.outcome {
        Acquired::Granted(_) => Ok(()),
        other => Err(format!("{name} was not granted: {other:?}")),
    }
}

/// Starts many waiters for one lock.
pub(super) async fn wait(server: Option<&Server>, count: u64) -> Result<u64, String> {
    let server = server.ok_or("only our server has locks")?;
    let name = lock_name("waited-for");
    take(server.locks().store(), &name).await?;
    for number in 1..=count {
        start_waiter(server, name.clone());
        if number % BATCH == 0 || number == count {
            wait_for_waiters(server, &name, number as usize).await?;
        }
    }
    Ok(count)
}

/// Acquires many locks and starts one waiter for each. Returns how many have one, which is fewer if the store does not keep up.
pub(super) async fn contend(server: Option<&Server>, count: u64) -> Result<u64, String> {
    hold(server, count).await?;
    let server = server.ok_or("only our server has locks")?;
    let names: Vec<LockName> = (0..count).map(held_name).collect();
    let mut waiting = 0;
    for batch in names.chunks(BATCH as usize) {
        for name in batch {
            start_waiter(server, name.clone());
        }
        let all = async {
            for name in batch {
                wait_for_waiters(server, name, 1).await?;
            }
            Ok::<_, String>(())
        };
        if !matches!(timeout(QUEUE_TIMEOUT, all).await, Ok(Ok(()))) {
            break;
        }
        waiting += batch.len() as u64;
    }
    Ok(waiting)
}

/// The median time of listing a page of a hundred locks, in microseconds.
pub(super) async fn list(server: Option<&Server>) -> Result<u64, String> {
    let server = server.ok_or("only our server has locks")?;
    let mut request = ListRequest {
        limit: 100,
        ..ListRequest::default()
    };
    let mut times = Vec::new();
    for _ in 0..PAGES {
        let began = Instant::now();
        let page = server.locks().list(&request).await;
        times.push(began.elapsed());
        request.cursor = page.map_err(|error| error.to_string())?.cursor;
    }
    times.sort_unstable();
    Ok(u64::try_from(times[PAGES / 2].as_micros()).unwrap_or(u64::MAX))
}

fn held_name(number: u64) -> LockName {
    lock_name(&format!("held:{number}"))
}

fn start_waiter(server: &Server, name: LockName) {
    let locks = server.locks().clone();
    let claim = acquire_command(name, HOUR).claim;
    let request = AcquireRequest {
        locks: claim.locks,
        owner: claim.owner,
        caller: None,
        note: None,
        ttl: claim.ttl,
        wait: Some(HOUR),
        attempt: None,
    };
    tokio::spawn(async move { locks.acquire(request).await });
}

async fn wait_for_waiters(server: &Server, name: &LockName, count: usize) -> Result<(), String> {
    loop {
        let status = server.locks().inspect(name).await;
        let (status, _) = status.map_err(|error| error.to_string())?;
        if status.waiters >= count {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
