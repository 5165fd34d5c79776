//! The metrics of the server, for `GET /metrics` and the dashboard.
//!
//! No key, owner or other name that a caller chose is a label, so the number of series is bounded by the registered functions.

mod activity;
mod histogram;
mod store;
mod striped;

use std::fmt;
use std::sync::atomic::AtomicI64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use forrst_lock::{Counts, EventKind, Observer};
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Metric, Registry, Unit};

pub(crate) use self::activity::Activity;
use self::histogram::{BOUNDS, Histogram};
pub(crate) use self::store::Metered;
use self::store::Operation;
use self::striped::Counter;
use crate::limits::Refusal;

/// The content type of `GET /metrics`.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The code of a call that succeeded.
pub(crate) const OK: &str = "OK";

/// The label of functions that are not registered.
const UNKNOWN_FUNCTION: &str = "unknown";

static OPERATION_SECONDS: [f64; BOUNDS] = [
    0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.05, 0.1, 0.5, 2.0,
];
static WAIT_SECONDS: [f64; BOUNDS] = [
    0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0,
];
static HOLD_SECONDS: [f64; BOUNDS] = [
    0.001, 0.01, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 3_600.0, 86_400.0,
];
static REQUEST_SECONDS: [f64; BOUNDS] = [
    0.000_5, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0,
];

type LabelledCounters = Family<[(&'static str, &'static str); 1], Counter>;
type LabelledHistograms<const N: usize> =
    Family<[(&'static str, String); N], Histogram, fn() -> Histogram>;

/// The counters of one server.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    /// One for each [`EventKind`], in its order.
    events: [Counter; EventKind::ALL.len()],
    wait: Histogram,
    hold: Histogram,
    /// One for each [`Operation`], in its order.
    operations: [Histogram; Operation::ALL.len()],
    store_errors: LabelledCounters,
    requests: Family<[(&'static str, String); 2], Counter>,
    request_times: LabelledHistograms<1>,
    /// For requests of functions that are not registered.
    unknown: FunctionMetrics,
    /// All requests, and those of them that failed.
    all_requests: Counter,
    all_failures: Counter,
    connections: Gauge,
    limits_hit: LabelledCounters,
    keys_held: StoreGauge,
    leases_held: StoreGauge,
    keys_reserved: StoreGauge,
    waiters: Gauge,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut registry = Registry::default();
        // Counters are written with `_total`, and histograms with their unit, at the end of their names.
        let version = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("forrst_build", "The version of forrst", version);
        let events = register_events(&mut registry);
        let help = "How long waiting calls waited for their lock";
        let wait = times(&mut registry, "lock_wait", help, &WAIT_SECONDS);
        let help = "How long locks were held";
        let hold = times(&mut registry, "lock_hold", help, &HOLD_SECONDS);
        let help = "Keys that are held in the store";
        let keys_held = add(&mut registry, "locks_held", help, StoreGauge::default());
        let help = "Leases in the store: several may share a key, and one may have several keys";
        let leases_held = add(&mut registry, "leases_held", help, StoreGauge::default());
        let help = "Free keys that are reserved for a set that waits for another key";
        let keys_reserved = add(
            &mut registry,
            "lock_keys_reserved",
            help,
            StoreGauge::default(),
        );
        let help = "Calls of this node that wait for a lock";
        let waiters = add(&mut registry, "lock_waiters", help, Gauge::default());
        let operations = register_operations(&mut registry);
        let help = "Failures of the store, by whether the change may have been made";
        let store_errors = add(
            &mut registry,
            "store_errors",
            help,
            LabelledCounters::default(),
        );
        for kind in ["not_done", "maybe_done"] {
            store_errors.get_or_create_owned(&[("kind", kind)]);
        }
        let help = "Requests by function and code";
        let requests = add(&mut registry, "forrst_requests", help, Family::default());
        let request_times =
            LabelledHistograms::new_with_constructor(|| Histogram::new(&REQUEST_SECONDS));
        let help = "How long requests took, waiting included";
        registry.register_with_unit("forrst_request", help, Unit::Seconds, request_times.clone());
        let help = "Connections that are open";
        let connections = add(&mut registry, "forrst_connections", help, Gauge::default());
        let help = "How often a limit was hit, and a client refused";
        let limits_hit = add(
            &mut registry,
            "forrst_limits_hit",
            help,
            LabelledCounters::default(),
        );
        for refusal in Refusal::ALL {
            limits_hit.get_or_create_owned(&[("limit", refusal.name())]);
        }
        Self {
            registry,
            events,
            wait,
            hold,
            operations,
            store_errors,
            requests,
            request_times,
            unknown: FunctionMetrics::new(UNKNOWN_FUNCTION),
            all_requests: Counter::default(),
            all_failures: Counter::default(),
            connections,
            limits_hit,
            keys_held,
            leases_held,
            keys_reserved,
            waiters,
        }
    }

    /// Registers a counter that another part of the program keeps.
    pub(crate) fn register_counter(&mut self, name: &str, help: &str, count: Option<ReadCount>) {
        let count = count.unwrap_or_else(|| Box::new(|| 0));
        self.registry.register(name, help, ExternalCounter(count));
    }

    /// Counts a request. `function` is `None` if it is not registered, and `code` is `None` for a success.
    pub(crate) fn request(
        &self,
        function: Option<&FunctionMetrics>,
        code: Option<&str>,
        took: Duration,
    ) {
        let function = function.unwrap_or(&self.unknown);
        let requests = |code: &str| {
            let labels = [
                ("function", function.name.clone()),
                ("code", code.to_owned()),
            ];
            self.requests.get_or_create_owned(&labels)
        };
        match code {
            None => function.succeeded.get_or_init(|| requests(OK)).inc(),
            Some(code) => requests(code).inc(),
        };
        let times = || {
            let label = [("function", function.name.clone())];
            self.request_times.get_or_create_owned(&label)
        };
        function.times.get_or_init(times).observe(took);
        self.all_requests.inc();
        if code.is_some() {
            self.all_failures.inc();
        }
    }

    /// Counts a refusal.
    pub(crate) fn refused(&self, why: Refusal) {
        self.limits_hit
            .get_or_create(&[("limit", why.name())])
            .inc();
    }

    /// Counts a connection as open until the returned value is dropped.
    pub(crate) fn connection(self: &Arc<Self>) -> OpenConnection {
        self.connections.inc();
        OpenConnection(self.clone())
    }

    fn count(&self, kind: EventKind) -> u64 {
        self.events[kind as usize].get()
    }

    /// All metrics in the text format. The gauges are set here, because they are only needed for a scrape.
    pub(crate) fn render(&self, counts: Option<Counts>, waiters: usize) -> String {
        let gauge = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        let of_store = |count: fn(&Counts) -> usize| {
            let count = counts.as_ref().map(count);
            count.map_or(StoreGauge::UNKNOWN, gauge)
        };
        self.keys_held.set(of_store(|counts| counts.keys));
        self.leases_held.set(of_store(|counts| counts.leases));
        self.keys_reserved.set(of_store(|counts| counts.reserved));
        self.waiters.set(gauge(waiters));
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

/// The metrics of one function. They are looked up once, because a lookup costs more than the count.
#[derive(Debug)]
pub(crate) struct FunctionMetrics {
    name: String,
    /// Both are created by the first request that they count.
    succeeded: OnceLock<Counter>,
    times: OnceLock<Histogram>,
}

impl FunctionMetrics {
    pub(crate) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            succeeded: OnceLock::new(),
            times: OnceLock::new(),
        }
    }
}

/// Registers a metric, and returns it.
fn add<M: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M {
    registry.register(name, help, metric.clone());
    metric
}

/// Registers a histogram of seconds.
fn times(
    registry: &mut Registry,
    name: &str,
    help: &str,
    bounds: &'static [f64; BOUNDS],
) -> Histogram {
    let histogram = Histogram::new(bounds);
    registry.register_with_unit(name, help, Unit::Seconds, histogram.clone());
    histogram
}

/// A histogram for each operation of the store, in its order.
fn register_operations(registry: &mut Registry) -> [Histogram; Operation::ALL.len()] {
    let times =
        LabelledHistograms::<1>::new_with_constructor(|| Histogram::new(&OPERATION_SECONDS));
    let help = "How long the store took";
    registry.register_with_unit("lock_op_latency", help, Unit::Seconds, times.clone());
    Operation::ALL.map(|operation| {
        let label = [("op", operation.name().to_owned())];
        times.get_or_create_owned(&label)
    })
}

/// A counter for each kind of event, in its order.
fn register_events(registry: &mut Registry) -> [Counter; EventKind::ALL.len()] {
    let help = "Outcomes of calls for a lock";
    let acquire = add(registry, "lock_acquire", help, LabelledCounters::default());
    let help = "Outcomes of releases of leases";
    let release = add(registry, "lock_release", help, LabelledCounters::default());
    let help = "Outcomes of extensions and renewals of leases";
    let renew = add(registry, "lock_renew", help, LabelledCounters::default());
    let help = "Calls that found their lock held";
    let contended = add(registry, "lock_contended", help, Counter::default());
    let help = "Leases that expired before they were released";
    let expired = add(registry, "lock_expired", help, Counter::default());
    let help = "Leases that ended while their function still ran";
    let lost = add(registry, "lock_lost", help, Counter::default());
    let result =
        |family: &LabelledCounters, result| family.get_or_create_owned(&[("result", result)]);
    EventKind::ALL.map(|kind| match kind {
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
    })
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
            times.observe(after);
        }
    }
}

/// A gauge that is left out while its value is unknown: zero would be wrong for a store that does not answer.
#[derive(Debug, Clone, Default)]
struct StoreGauge(Arc<AtomicI64>);

impl StoreGauge {
    const UNKNOWN: i64 = -1;

    fn set(&self, count: i64) {
        self.0.store(count, Relaxed);
    }
}

impl EncodeMetric for StoreGauge {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        match self.0.load(Relaxed) {
            Self::UNKNOWN => Ok(()),
            count => encoder.encode_gauge(&count),
        }
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Gauge
    }
}

/// Reads a count that is kept elsewhere.
pub(crate) type ReadCount = Box<dyn Fn() -> u64 + Send + Sync>;

/// A counter that is kept elsewhere, and read at each scrape.
struct ExternalCounter(ReadCount);

impl fmt::Debug for ExternalCounter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ExternalCounter({})", (self.0)())
    }
}

impl EncodeMetric for ExternalCounter {
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
