//! What the server counts, for `GET /metrics` and for the operators' page.
//!
//! Neither a key nor an owner is ever a label, and no name that a caller made up: the number of series stays that of the
//! registered functions.

mod activity;
mod store;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicI64, AtomicU64};
use std::time::Duration;

use forrst_lock::{EventKind, Observer};
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

pub(crate) use self::activity::Activity;
pub(crate) use self::store::Metered;
use crate::limits::Refusal;

/// What `GET /metrics` is sent as.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Where the name of a function would stand that is none of ours.
pub(crate) const UNKNOWN_FUNCTION: &str = "unknown";

const OPERATION_SECONDS: [f64; 12] = [
    0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.05, 0.1, 0.5, 2.0,
];
const WAIT_SECONDS: [f64; 12] = [
    0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0,
];
const HOLD_SECONDS: [f64; 12] = [
    0.001, 0.01, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 3_600.0, 86_400.0,
];
const REQUEST_SECONDS: [f64; 12] = [
    0.000_5, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0,
];

type By = Family<[(&'static str, &'static str); 1], Counter>;
type TimesBy<L> = Family<L, Histogram, fn() -> Histogram>;

/// The counters of one server.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    /// One for each [`EventKind`], in its order.
    events: [Counter; EventKind::ALL.len()],
    wait: Histogram,
    hold: Histogram,
    operations: TimesBy<[(&'static str, &'static str); 1]>,
    store_errors: By,
    requests: Family<[(&'static str, String); 2], Counter>,
    request_times: TimesBy<[(&'static str, String); 1]>,
    /// All requests, and those of them that failed.
    all_requests: AtomicU64,
    all_failures: AtomicU64,
    connections: Gauge,
    limits_hit: By,
    held: Held,
    waiters: Gauge,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut registry = Registry::default();
        let acquire = By::default();
        let release = By::default();
        let renew = By::default();
        let (contended, expired, lost) = <(Counter, Counter, Counter)>::default();
        let result = |family: &By, result| family.get_or_create_owned(&[("result", result)]);
        let events = EventKind::ALL.map(|kind| match kind {
            EventKind::Acquired => result(&acquire, "granted"),
            EventKind::GrantedAfterWait => result(&acquire, "granted_after_wait"),
            EventKind::Refused => result(&acquire, "held"),
            EventKind::TimedOut => result(&acquire, "timed_out"),
            EventKind::TooManyWaiters => result(&acquire, "too_many_waiters"),
            EventKind::GivenUp => result(&acquire, "given_up"),
            EventKind::AcquireFailed => result(&acquire, "error"),
            EventKind::Released => result(&release, "released"),
            EventKind::ReleaseRefused => result(&release, "refused"),
            EventKind::ReleaseFailed => result(&release, "error"),
            EventKind::Abandoned => result(&release, "abandoned"),
            EventKind::Forced => result(&release, "forced"),
            EventKind::Extended => result(&renew, "extended"),
            EventKind::ExtendRefused => result(&renew, "refused"),
            EventKind::ExtendFailed => result(&renew, "error"),
            EventKind::Contended => contended.clone(),
            EventKind::Expired => expired.clone(),
            EventKind::Lost => lost.clone(),
        });
        let wait = Histogram::new(WAIT_SECONDS);
        let hold = Histogram::new(HOLD_SECONDS);
        let operations = TimesBy::new_with_constructor(|| Histogram::new(OPERATION_SECONDS));
        let store_errors = By::default();
        for kind in ["not_done", "maybe_done"] {
            store_errors.get_or_create_owned(&[("kind", kind)]);
        }
        let requests = Family::default();
        let request_times = TimesBy::new_with_constructor(|| Histogram::new(REQUEST_SECONDS));
        let connections = Gauge::default();
        let limits_hit = By::default();
        for refusal in Refusal::ALL {
            limits_hit.get_or_create_owned(&[("limit", refusal.name())]);
        }
        let held = Held::default();
        let waiters = Gauge::default();

        // Counters are written with `_total`, and histograms with their unit, at the end of their names.
        let version = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("forrst_build", "What runs here", version);
        let help = "How calls for a lock ended";
        registry.register("lock_acquire", help, acquire);
        let help = "How leases were given back, or not";
        registry.register("lock_release", help, release);
        let help = "How extensions and renewals of leases went";
        registry.register("lock_renew", help, renew);
        let help = "Calls that found their lock held by somebody else";
        registry.register("lock_contended", help, contended);
        let help = "Leases that ran out before anybody gave them back";
        registry.register("lock_expired", help, expired);
        let help = "Leases that a function still believed in when they were no longer its own";
        registry.register("lock_lost", help, lost);
        let help = "How long callers waited who waited for a lock";
        registry.register_with_unit("lock_wait", help, Unit::Seconds, wait.clone());
        let help = "How long locks were held";
        registry.register_with_unit("lock_hold", help, Unit::Seconds, hold.clone());
        let help = "Locks that are held in the store";
        registry.register("locks_held", help, held.clone());
        let help = "Callers of this node who wait for a lock";
        registry.register("lock_waiters", help, waiters.clone());
        let help = "How long the store took";
        registry.register_with_unit("lock_op_latency", help, Unit::Seconds, operations.clone());
        let help = "Failures of the store, by whether the change may have been made";
        registry.register("store_errors", help, store_errors.clone());
        let help = "Requests by function and code";
        registry.register("forrst_requests", help, requests.clone());
        let help = "How long requests took, waiting included";
        registry.register_with_unit("forrst_request", help, Unit::Seconds, request_times.clone());
        let help = "Connections that are open";
        registry.register("forrst_connections", help, connections.clone());
        let help = "How often a limit turned somebody away";
        registry.register("forrst_limits_hit", help, limits_hit.clone());
        Self {
            registry,
            events,
            wait,
            hold,
            operations,
            store_errors,
            requests,
            request_times,
            all_requests: AtomicU64::default(),
            all_failures: AtomicU64::default(),
            connections,
            limits_hit,
            held,
            waiters,
        }
    }

    /// A counter that another part of the program keeps.
    pub(crate) fn read(&mut self, name: &str, help: &str, count: Option<ReadCount>) {
        let count = count.unwrap_or_else(|| Box::new(|| 0));
        self.registry.register(name, help, Counted(count));
    }

    /// One request is done. `function` is that of a registered one, or [`UNKNOWN_FUNCTION`].
    pub(crate) fn request(&self, function: &str, code: &str, is_failure: bool, took: Duration) {
        let labels = [("function", function.to_owned()), ("code", code.to_owned())];
        self.requests.get_or_create(&labels).inc();
        let [function, _] = labels;
        self.request_times
            .get_or_create(&[function])
            .observe(took.as_secs_f64());
        self.all_requests.fetch_add(1, Relaxed);
        self.all_failures.fetch_add(u64::from(is_failure), Relaxed);
    }

    /// Somebody was turned away.
    pub(crate) fn refused(&self, why: Refusal) {
        self.limits_hit
            .get_or_create(&[("limit", why.name())])
            .inc();
    }

    /// A connection, open until what is returned is dropped.
    pub(crate) fn connection(self: &Arc<Self>) -> OpenConnection {
        self.connections.inc();
        OpenConnection(self.clone())
    }

    fn count(&self, kind: EventKind) -> u64 {
        self.events[kind as usize].get()
    }

    /// Everything as text, with what is only looked at when somebody asks.
    pub(crate) fn render(&self, held: Option<usize>, waiters: usize) -> String {
        let gauge = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        let held = held.map_or(Held::UNKNOWN, gauge);
        self.held.0.store(held, Relaxed);
        self.waiters.set(gauge(waiters));
        let mut text = String::new();
        // A string takes all that is written.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

impl Observer for Metrics {
    fn happened(&self, kind: EventKind, after: Option<Duration>) {
        self.events[kind as usize].inc();
        let times = match kind {
            EventKind::GrantedAfterWait | EventKind::TimedOut => &self.wait,
            EventKind::Released | EventKind::Abandoned | EventKind::Forced | EventKind::Expired => {
                &self.hold
            }
            _ => return,
        };
        if let Some(after) = after {
            times.observe(after.as_secs_f64());
        }
    }
}

/// A gauge that is left out while its value is not known: a store that does not answer does not hold nothing.
#[derive(Debug, Clone, Default)]
struct Held(Arc<AtomicI64>);

impl Held {
    const UNKNOWN: i64 = -1;
}

impl EncodeMetric for Held {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        match self.0.load(Relaxed) {
            Self::UNKNOWN => Ok(()),
            held => encoder.encode_gauge(&held),
        }
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Gauge
    }
}

/// Reads a count that is kept elsewhere.
pub(crate) type ReadCount = Box<dyn Fn() -> u64 + Send + Sync>;

/// A counter that is read when its value is wanted.
struct Counted(ReadCount);

impl fmt::Debug for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Counted({})", (self.0)())
    }
}

impl EncodeMetric for Counted {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        encoder.encode_counter::<NoLabelSet, _, u64>(&(self.0)(), None)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Counter
    }
}

/// Counts a connection while it is open.
#[derive(Debug)]
pub(crate) struct OpenConnection(Arc<Metrics>);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.connections.dec();
    }
}
