//! A histogram of durations without a lock, because every request and every operation of the store is counted in one.

use std::array;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use forrst_lock::Striped;
use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::{MetricType, TypedMetric};

/// The number of bounds of each histogram.
pub(super) const BOUNDS: usize = 12;

/// A histogram. Clones share their counts.
#[derive(Debug, Clone)]
pub(super) struct Histogram(Arc<HistogramState>);

#[derive(Debug)]
struct HistogramState {
    /// The upper bounds of the buckets in seconds, in ascending order.
    bounds: &'static [f64; BOUNDS],
    times: Striped<BucketCounts>,
}

#[derive(Debug, Default)]
struct BucketCounts {
    /// For each bound, the number of times up to it and above the previous one; then the number above all of them.
    counts: [AtomicU64; BOUNDS + 1],
    nanoseconds: AtomicU64,
}

impl Histogram {
    pub(super) fn new(bounds: &'static [f64; BOUNDS]) -> Self {
        Self(Arc::new(HistogramState {
            bounds,
            times: Striped::default(),
        }))
    }

    pub(super) fn observe(&self, time: Duration) {
        let HistogramState { bounds, times } = &*self.0;
        let seconds = time.as_secs_f64();
        let bucket = bounds.partition_point(|bound| *bound < seconds);
        let times = times.own();
        times.counts[bucket].fetch_add(1, Relaxed);
        // It does not overflow for 500 years.
        let time = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        times.nanoseconds.fetch_add(time, Relaxed);
    }
}

impl EncodeMetric for Histogram {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        let HistogramState { bounds, times } = &*self.0;
        let sum = |part: &dyn Fn(&BucketCounts) -> &AtomicU64| -> u64 {
            times.all().map(|times| part(times).load(Relaxed)).sum()
        };
        let counts: [u64; BOUNDS + 1] = array::from_fn(|index| sum(&|times| &times.counts[index]));
        let bounds = bounds.iter().copied().chain([f64::INFINITY]);
        let buckets: Vec<(f64, u64)> = bounds.zip(counts).collect();
        let time = Duration::from_nanos(sum(&|times| &times.nanoseconds));
        let count = counts.iter().sum();
        encoder.encode_histogram::<NoLabelSet>(time.as_secs_f64(), count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

impl TypedMetric for Histogram {
    const TYPE: MetricType = MetricType::Histogram;
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;

    use super::*;

    #[test]
    fn a_time_counts_in_the_first_bucket_whose_bound_is_not_below_it() {
        static BOUNDS: [f64; 12] = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 2.0, 3.0];
        let histogram = Histogram::new(&BOUNDS);
        for millis in [50, 100, 101, 3_000, 60_000] {
            histogram.observe(Duration::from_millis(millis));
        }
        let mut registry = Registry::default();
        registry.register("times", "Times", histogram);
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for line in [
            "times_sum 63.251",
            "times_count 5",
            "times_bucket{le=\"0.1\"} 2",
            "times_bucket{le=\"0.2\"} 3",
            "times_bucket{le=\"2.0\"} 3",
            "times_bucket{le=\"3.0\"} 4",
            "times_bucket{le=\"+Inf\"} 5",
        ] {
            assert!(text.lines().any(|own| own == line), "{line} in\n{text}");
        }
    }
}
