//! The task that handles expiry: alarms for keys that a call waits for, and a sweep for all others.
//!
//! A store has no timers. It ends expired leases in the steps that this task submits.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::LockName;
use crate::alarm::Alarms;
use crate::store::{LockStore, LockStoreExt};

const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
const SWEEP_BATCH: usize = 1000;

/// The state of the task.
pub(crate) struct Expiry {
    pub(crate) store: Arc<dyn LockStore>,
    pub(crate) alarms: Arc<Alarms>,
}

impl Expiry {
    pub(crate) async fn run(self) {
        let this = Arc::new(self);
        // Concurrently, so that a slow sweep does not delay alarms.
        tokio::join!(this.watch_alarms(), this.sweep_regularly());
    }

    async fn watch_alarms(self: &Arc<Self>) {
        loop {
            let name = self.alarms.next_due().await;
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
        match self.store.settle(&name).await {
            Ok(answer) if answer.outcome.waiters == 0 => {}
            Ok(answer) => match answer.outcome.retry_at.remaining(answer.now) {
                // No lease blocks the key, but claims that wait for other keys, which have alarms of their own.
                Duration::ZERO => self.alarms.back_off(&name),
                left => self.alarms.set(&name, Instant::now() + left),
            },
            Err(_) => self.alarms.back_off(&name),
        }
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
