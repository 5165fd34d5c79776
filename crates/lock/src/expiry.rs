//! The task that watches expiry: alarms for keys that a call waits for, and a sweep for all others.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::LockName;
use crate::alarm::AlarmClock;
use crate::store::{LockStore, LockStoreExt};

/// A shared store may lose a message between processes. Settling a key this often makes up for it.
const SAFETY_POLL: Duration = Duration::from_secs(1);
/// How soon to try again after the store failed.
const STORE_PAUSE: Duration = Duration::from_millis(250);
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
const SWEEP_BATCH: usize = 1000;

/// How long to leave a key alone whose leases have this much time left.
pub(crate) fn until_next_look(is_shared: bool, left: Duration) -> Duration {
    if is_shared {
        left.min(SAFETY_POLL)
    } else {
        left
    }
}

/// What the task needs.
pub(crate) struct Expiry {
    pub(crate) store: Arc<dyn LockStore>,
    pub(crate) clock: Arc<AlarmClock>,
}

impl Expiry {
    pub(crate) async fn run(self) {
        let this = Arc::new(self);
        // Side by side: while a store is slow to sweep, alarms ring.
        tokio::join!(this.watch_alarms(), this.sweep_regularly());
    }

    async fn watch_alarms(self: &Arc<Self>) {
        loop {
            let name = self.clock.ring().await;
            // A store that is slow for one key must not delay the others.
            tokio::spawn(self.clone().settle(name));
        }
    }

    async fn sweep_regularly(&self) {
        let mut tick = interval(SWEEP_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            self.sweep().await;
        }
    }

    async fn settle(self: Arc<Self>, name: LockName) {
        let again = match self.store.settle(&name).await {
            Ok(answer) if answer.outcome.waiters == 0 => return,
            Ok(answer) => {
                let left = answer.outcome.look_at.remaining(answer.now);
                let is_shared = self.store.capabilities().shared;
                match left.is_zero() {
                    // No lease is in the way, but claims that wait for other keys, which have their own alarms.
                    true => STORE_PAUSE,
                    false => until_next_look(is_shared, left),
                }
            }
            Err(_) => STORE_PAUSE,
        };
        self.clock.set(&name, Instant::now() + again);
    }

    async fn sweep(&self) {
        while let Ok(count) = self.store.sweep(SWEEP_BATCH).await {
            if count < SWEEP_BATCH {
                return;
            }
            tokio::task::yield_now().await;
        }
    }
}
