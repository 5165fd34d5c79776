//! Values that every request changes, kept apart for each thread: one that all threads write would travel between their caches
//! for each request.

use std::cell::Cell;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

/// How many threads do not meet.
const STRIPES: usize = 8;

/// One `T` for each of some threads. With more threads than that, several share one, so a `T` has to be `Sync` all the same.
#[derive(Debug, Default)]
pub struct Striped<T>([Line<T>; STRIPES]);

/// No two share a cache line, nor the pair of lines that some processors fetch together.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Line<T>(T);

impl<T> Striped<T> {
    /// What this makes, once for each.
    pub fn from_fn(mut make: impl FnMut() -> T) -> Self {
        Self(std::array::from_fn(|_| Line(make())))
    }

    /// The one of this thread.
    pub fn own(&self) -> &T {
        &self.0[stripe()].0
    }

    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = &T> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_keeps_its_own() {
        let striped = Striped::from_fn(|| AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..3 * STRIPES {
                scope.spawn(|| {
                    let own = striped.own();
                    for _ in 0..1000 {
                        striped.own().fetch_add(1, Relaxed);
                        assert!(std::ptr::eq(own, striped.own()));
                    }
                });
            }
        });
        let counts: Vec<usize> = striped.all().map(|own| own.load(Relaxed)).collect();
        assert_eq!(counts.iter().sum::<usize>(), 3 * STRIPES * 1000);
    }
}
