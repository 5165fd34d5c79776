//! The clock of the memory store. The interleaving tests (`--cfg shuttle`) replace it with a deterministic one.

#[cfg(not(shuttle))]
pub(crate) use self::machine::Clock;
#[cfg(shuttle)]
pub(crate) use self::ticks::Clock;

#[cfg(not(shuttle))]
mod machine {
    use std::time::{SystemTime, UNIX_EPOCH};

    use forrst_lock::{Reading, Timestamp};
    use tokio::time::Instant;

    /// Starts at the wall clock and advances with the monotonic clock, so it cannot be set back.
    #[derive(Debug)]
    pub(crate) struct Clock {
        started: Instant,
        started_at: Timestamp,
    }

    impl Clock {
        pub(crate) fn start() -> Self {
            let since_epoch = SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default();
            Self {
                started: Instant::now(),
                started_at: Timestamp::from_millis(0) + since_epoch,
            }
        }

        pub(crate) fn now(&self) -> Timestamp {
            self.reading().now
        }

        pub(crate) fn reading(&self) -> Reading {
            let at = Instant::now();
            Reading {
                at,
                now: self.started_at + (at - self.started),
            }
        }
    }
}

#[cfg(shuttle)]
mod ticks {
    use std::sync::atomic::{AtomicU64, Ordering};

    use forrst_lock::{Fences, Reading, Timestamp};
    use tokio::time::Instant;

    /// Advances by a millisecond each time it is read, so that every run of a schedule sees the same times.
    #[derive(Debug)]
    pub(crate) struct Clock(AtomicU64);

    impl Clock {
        pub(crate) fn start() -> Self {
            Self(AtomicU64::new(Fences::EPOCH_MILLIS))
        }

        pub(crate) fn now(&self) -> Timestamp {
            Timestamp::from_millis(self.0.fetch_add(1, Ordering::Relaxed))
        }

        pub(crate) fn reading(&self) -> Reading {
            Reading {
                at: Instant::now(),
                now: self.now(),
            }
        }
    }
}
