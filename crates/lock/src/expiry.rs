//! The task that watches expiry: alarms for keys that a call waits for, and a sweep for all others.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::LockName;
use crate::alarm::AlarmClock;
use crate::store::{LockStore, LockStoreExt};

const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
const SWEEP_BATCH: usize = 1000;

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
        match self.store.settle(&name).await {
            Ok(answer) if answer.outcome.waiters == 0 => {}
            Ok(answer) => match answer.outcome.look_at.remaining(answer.now) {
                // No lease is in the way, but claims that wait for other keys, which have their own alarms.
                Duration::ZERO => self.clock.put_off(&name),
                left => self.clock.set(&name, Instant::now() + left),
            },
            Err(_) => self.clock.put_off(&name),
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
