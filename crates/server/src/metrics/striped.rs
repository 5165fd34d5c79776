//! Counts that every request adds to, kept apart for each thread: one number that all threads write would travel between their
//! caches for each request.

use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};

use prometheus_client::metrics::counter::{self, Atomic};

/// How many threads can count without meeting.
const STRIPES: usize = 8;

/// One `T` for each of some threads.
#[derive(Debug, Default)]
pub(super) struct Striped<T>([Line<T>; STRIPES]);

/// No two share a cache line, nor the pair of lines that some processors fetch together.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Line<T>(T);

impl<T> Striped<T> {
    /// The one of this thread.
    pub(super) fn own(&self) -> &T {
        &self.0[stripe()].0
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|line| &line.0)
    }
}

/// Threads take turns.
fn stripe() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static OWN: Cell<Option<usize>> = const { Cell::new(None) };
    }
    OWN.with(|own| {
        let index = own
            .get()
            .unwrap_or_else(|| NEXT.fetch_add(1, Relaxed) % STRIPES);
        own.set(Some(index));
        index
    })
}

/// A counter of Prometheus.
pub(super) type Counter = counter::Counter<u64, Count>;

/// A number that grows.
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
    fn what_any_thread_counts_is_in_the_sum() {
        let counter = Counter::default();
        std::thread::scope(|scope| {
            for _ in 0..3 * STRIPES {
                scope.spawn(|| (0..1000).for_each(|_| _ = counter.inc()));
            }
        });
        assert_eq!(counter.get(), 3 * STRIPES as u64 * 1000);
    }
}
