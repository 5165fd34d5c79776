//! The activity of the last minutes, second by second, for the dashboard.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use forrst_lock::EventKind;
use serde_json::{Value, json};
use tokio::time::{MissedTickBehavior, interval};

use super::Metrics;
use crate::core::Core;

const SECOND: Duration = Duration::from_secs(1);
/// Five minutes, and one sample before them to subtract.
const KEPT: usize = 301;

/// Samples of the counters, one each second. Requests only update the counters, so they do not get slower.
#[derive(Debug, Default)]
pub(crate) struct Activity(Mutex<VecDeque<Sample>>);

/// The counters at one time, and the number of waiting calls.
#[derive(Debug, Clone, Copy)]
struct Sample {
    requests: u64,
    failures: u64,
    granted: u64,
    contended: u64,
    timed_out: u64,
    waiting: usize,
}

impl Sample {
    fn take(metrics: &Metrics, waiting: usize) -> Self {
        let granted = metrics.count(EventKind::Acquired);
        Self {
            requests: metrics.all_requests.get(),
            failures: metrics.all_failures.get(),
            granted: granted + metrics.count(EventKind::GrantedAfterWait),
            contended: metrics.count(EventKind::Contended),
            timed_out: metrics.count(EventKind::TimedOut),
            waiting,
        }
    }
}

impl Activity {
    /// Starts a task that takes a sample every second until the server is dropped.
    pub(crate) fn watch(server: &Arc<Core>) {
        let server: Weak<Core> = Arc::downgrade(server);
        tokio::spawn(async move {
            let mut ticks = interval(SECOND);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                let Some(server) = server.upgrade() else {
                    return;
                };
                let sample = Sample::take(&server.metrics, server.locks.waiting());
                server.activity.push(sample);
            }
        });
    }

    fn push(&self, sample: Sample) {
        let mut samples = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        samples.push_back(sample);
        if samples.len() > KEPT {
            samples.pop_front();
        }
    }

    /// Each series as one number for each second, the oldest first.
    pub(crate) fn show(&self) -> Value {
        let samples = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let each = |value: fn(&Sample) -> u64| -> Vec<u64> {
            let pairs = samples.iter().zip(samples.iter().skip(1));
            pairs.map(|(from, to)| value(to) - value(from)).collect()
        };
        let waiting: Vec<usize> = samples.iter().skip(1).map(|s| s.waiting).collect();
        json!({
            "interval": {"value": 1, "unit": "second"},
            "requests": each(|sample| sample.requests),
            "failures": each(|sample| sample.failures),
            "granted": each(|sample| sample.granted),
            "contended": each(|sample| sample.contended),
            "timed_out": each(|sample| sample.timed_out),
            "waiting": waiting,
        })
    }
}
