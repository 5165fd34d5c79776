//! Values that every request changes, with a copy for each thread, so that threads do not contend for one cache line.

use std::cell::Cell;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

/// How many threads have a copy of their own.
const STRIPES: usize = 8;

/// Some copies of `T`, each used by one thread, or by several if there are more threads than copies.
#[derive(Debug, Default)]
pub struct Striped<T>([CachePadded<T>; STRIPES]);

/// Aligned to two cache lines, because some processors fetch lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct CachePadded<T>(T);

impl<T> Striped<T> {
    /// Creates each copy with `make`.
    pub fn from_fn(mut make: impl FnMut() -> T) -> Self {
        Self(std::array::from_fn(|_| CachePadded(make())))
    }

    /// The copy of this thread.
    pub fn own(&self) -> &T {
        &self.0[stripe()].0
    }

    /// All copies.
    pub fn all(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|line| &line.0)
    }
}

/// The index of this thread's copy. Threads are assigned round-robin.
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
    fn a_thread_keeps_its_copy() {
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
