//! The load generator, with two kinds of load.
//!
//! *Closed loop*: each caller sends its next request when the last one is answered. That finds the highest throughput, and says
//! little about latency, because a slow server gets fewer requests. *Open loop*: requests are due at fixed times, whatever the
//! server does, and latency counts from the due time, even if a request had to wait for a free connection.

mod connection;
mod operations;
mod schedule;
mod timer;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinSet;

pub(crate) use operations::{repeat, repeat_at};

use crate::process::cpu_time;
use crate::serve::Address;
use crate::wire::Codec;

/// How long a run warms up before it is measured, as a fraction of its duration.
const WARM_UP: f64 = 0.2;

/// How long after the end of a run callers may take to finish.
const FINISH_TIMEOUT: Duration = Duration::from_secs(30);

/// When requests are sent.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Pace {
    /// As soon as the previous request is answered.
    Closed,
    /// At this rate, evenly spread.
    Open { per_second: f64 },
    /// As `Closed`, for this number of requests; nothing is timed.
    Count(u64),
}

/// How many callers send requests, and over which connections.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Callers {
    pub(crate) count: usize,
    /// Whether they share one connection, where the protocol allows that.
    pub(crate) share_connection: bool,
}

impl Callers {
    fn connections(self) -> usize {
        if self.share_connection { 1 } else { self.count }
    }

    fn per_connection(self) -> usize {
        self.count / self.connections()
    }
}

/// The part of a run that is measured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    pub(crate) opens: Instant,
    pub(crate) closes: Instant,
}

impl Window {
    pub(crate) fn from_now(duration: Duration) -> Self {
        let opens = Instant::now() + duration.mul_f64(WARM_UP);
        Self {
            opens,
            closes: opens + duration,
        }
    }

    fn contains(self, instant: Instant) -> bool {
        self.opens <= instant && instant < self.closes
    }

    fn seconds(self) -> f64 {
        (self.closes - self.opens).as_secs_f64()
    }
}

/// The number of requests that are done, and their latencies.
pub(crate) struct Tally {
    pub(crate) done: u64,
    /// In nanoseconds.
    pub(crate) latencies: Histogram<u64>,
}

impl Tally {
    fn new() -> Self {
        // Up to 100 seconds, to three digits.
        let bounds = Histogram::new_with_bounds(100, 100_000_000_000, 3);
        Self {
            done: 0,
            latencies: bounds.expect("the bounds are in order"),
        }
    }

    fn record(&mut self, latency: Duration) {
        self.done += 1;
        let nanos = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self.latencies.saturating_record(nanos);
    }

    fn add(&mut self, other: &Self) {
        self.done += other.done;
        // Both have the same bounds.
        let _ = self.latencies.add(&other.latencies);
    }
}

/// The processes whose CPU time is measured, or the results.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Watched<T> {
    pub(crate) server: Option<T>,
    pub(crate) store: Option<T>,
}

impl Watched<u32> {
    /// The store only: the load generator uses it without a server.
    pub(crate) fn store(pid: u32) -> Self {
        Self {
            server: None,
            store: Some(pid),
        }
    }
}

/// The result of a run.
pub(crate) struct Measured {
    pub(crate) per_second: f64,
    pub(crate) done: u64,
    pub(crate) latencies: Histogram<u64>,
    /// CPU time of the watched processes per request, in microseconds.
    pub(crate) cpu_micros: Watched<f64>,
    /// CPU time of the load generator per request, in microseconds.
    pub(crate) own_cpu_micros: f64,
}

impl Measured {
    /// Combines two simultaneous runs that watched one server each, and the same store.
    pub(crate) fn together(mut self, other: &Self) -> Self {
        let (own, others) = (self.done as f64, other.done as f64);
        let all = (own + others).max(1.0);
        let servers = self.cpu_micros.server.zip(other.cpu_micros.server);
        self.cpu_micros = Watched {
            server: servers.map(|(first, second)| (first * own + second * others) / all),
            // Each run measured the CPU time of both, and divided it by its own requests only.
            store: self.cpu_micros.store.map(|store| store * own / all),
        };
        self.own_cpu_micros *= own / all;
        self.per_second += other.per_second;
        self.done += other.done;
        // Both have the same bounds.
        let _ = self.latencies.add(&other.latencies);
        self
    }

    /// In microseconds.
    pub(crate) fn quantile_micros(&self, quantile: f64) -> f64 {
        self.latencies.value_at_quantile(quantile) as f64 / 1000.0
    }
}

/// Runs the callers against a server, and measures the CPU time of the watched processes.
pub(crate) async fn drive(
    address: &Address,
    codec: &(dyn Fn() -> Box<dyn Codec> + Sync),
    callers: Callers,
    pace: Pace,
    duration: Duration,
    watched: Watched<u32>,
) -> Result<Measured, String> {
    let connections = callers.connections();
    let mut streams = Vec::new();
    for _ in 0..connections {
        streams.push(connect(address).await?);
    }
    let window = Window::from_now(duration);
    let mut tasks = JoinSet::new();
    for (number, stream) in streams.into_iter().enumerate() {
        let plan = connection::Plan {
            number,
            connections,
            slots: callers.per_connection(),
            pace,
            window,
            first_serial: first_serial(),
        };
        let codec = codec();
        tasks.spawn(async move {
            match stream {
                Stream::Tcp(stream) => connection::run(stream, codec, plan).await,
                Stream::Unix(stream) => connection::run(stream, codec, plan).await,
            }
        });
    }
    measure(tasks, window, watched).await
}

/// Reserves a billion serial numbers for a connection or caller, so that every key of the program is used once.
fn first_serial() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed) * 1_000_000_000
}

/// Collects the results of the tasks, and the CPU time that was spent in the window.
async fn measure(
    mut tasks: JoinSet<Result<Tally, String>>,
    window: Window,
    watched: Watched<u32>,
) -> Result<Measured, String> {
    let cpu = tokio::spawn(cpu_in(window, watched));
    let mut total = Tally::new();
    let all = async {
        while let Some(joined) = tasks.join_next().await {
            let tally = joined.map_err(|error| error.to_string())?;
            total.add(&tally?);
        }
        Ok(())
    };
    let finish_by = window.closes + FINISH_TIMEOUT;
    let ended = tokio::time::timeout_at(finish_by.into(), all).await;
    ended.unwrap_or_else(|_| Err(format!("no answer for {FINISH_TIMEOUT:?}")))?;
    let (spent, own) = match Instant::now() < window.closes {
        // With `Pace::Count` nothing is timed.
        true => Default::default(),
        false => cpu.await.map_err(|error| error.to_string())??,
    };
    let per_request = |cpu: Duration| cpu.as_secs_f64() * 1e6 / total.done.max(1) as f64;
    Ok(Measured {
        per_second: total.done as f64 / window.seconds(),
        done: total.done,
        cpu_micros: Watched {
            server: spent.server.map(per_request),
            store: spent.store.map(per_request),
        },
        own_cpu_micros: per_request(own),
        latencies: total.latencies,
    })
}

/// The CPU time in the window: of the watched processes, and of this one.
async fn cpu_in(
    window: Window,
    watched: Watched<u32>,
) -> Result<(Watched<Duration>, Duration), String> {
    tokio::time::sleep_until(window.opens.into()).await;
    let before = (sample(watched)?, cpu_time(std::process::id())?);
    tokio::time::sleep_until(window.closes.into()).await;
    let after = (sample(watched)?, cpu_time(std::process::id())?);
    let spent = |after: Option<Duration>, before: Option<Duration>| {
        after
            .zip(before)
            .map(|(after, before)| after.saturating_sub(before))
    };
    let watched = Watched {
        server: spent(after.0.server, before.0.server),
        store: spent(after.0.store, before.0.store),
    };
    Ok((watched, after.1.saturating_sub(before.1)))
}

fn sample(watched: Watched<u32>) -> Result<Watched<Duration>, String> {
    Ok(Watched {
        server: watched.server.map(cpu_time).transpose()?,
        store: watched.store.map(cpu_time).transpose()?,
    })
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

async fn connect(address: &Address) -> Result<Stream, String> {
    let failed = |error| format!("cannot connect to {address}: {error}");
    match address {
        Address::Tcp(address) => {
            let stream = TcpStream::connect(address).await.map_err(failed)?;
            stream.set_nodelay(true).map_err(failed)?;
            Ok(Stream::Tcp(stream))
        }
        Address::Unix(path) => {
            let stream = UnixStream::connect(path).await.map_err(failed)?;
            Ok(Stream::Unix(stream))
        }
    }
}
