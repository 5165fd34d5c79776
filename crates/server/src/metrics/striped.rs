//! A counter for the hot path: each thread adds to its own [stripe](Striped), and a scrape sums them.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use forrst_lock::Striped;
use prometheus_client::metrics::counter::{self, Atomic};

/// A Prometheus counter.
pub(super) type Counter = counter::Counter<u64, Count>;

/// The value of a [`Counter`].
#[derive(Debug, Default)]
pub(super) struct Count(Striped<AtomicU64>);

impl Atomic<u64> for Count {
    fn inc(&self) -> u64 {
        self.inc_by(1)
    }

    fn inc_by(&self, more: u64) -> u64 {
        self.0.own().fetch_add(more, Relaxed)
    }

    fn get(&self) -> u64 {
        self.0.all().map(|count| count.load(Relaxed)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counts_of_all_threads_are_in_the_sum() {
        // More threads than stripes.
        const THREADS: u64 = 24;
        let counter = Counter::default();
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| (0..1000).for_each(|_| _ = counter.inc()));
            }
        });
        assert_eq!(counter.get(), THREADS * 1000);
    }
}
