//! The task that minds expiry: alarms for keys that somebody waits for, and a sweep for all others.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::alarm::AlarmClock;
use crate::event::Reporter;
use crate::held::HeldLeases;
use crate::store::{Answer, LockStore};
use crate::{Lease, LockName};

/// A shared store may lose a message between processes. A look this often makes up for it.
const SAFETY_POLL: Duration = Duration::from_secs(1);
/// How soon to look again after the store failed.
const STORE_PAUSE: Duration = Duration::from_millis(250);
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
const SWEEP_BATCH: usize = 1000;

/// How long to leave a key alone whose holder has this much time left.
pub(crate) fn until_next_look(store: &dyn LockStore, left: Duration) -> Duration {
    if store.capabilities().shared {
        left.min(SAFETY_POLL)
    } else {
        left
    }
}

/// What the task needs.
pub(crate) struct Expiry {
    pub(crate) store: Arc<dyn LockStore>,
    pub(crate) reporter: Arc<Reporter>,
    pub(crate) held: Arc<HeldLeases>,
    pub(crate) clock: Arc<AlarmClock>,
}

impl Expiry {
    pub(crate) async fn run(self) {
        let this = Arc::new(self);
        // Side by side: while a store is slow to sweep, alarms ring.
        tokio::join!(this.mind_alarms(), this.sweep_regularly());
    }

    async fn mind_alarms(self: &Arc<Self>) {
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
            Ok(answer) => {
                self.report(answer.expired.as_ref());
                let Answer { outcome, now, .. } = answer;
                if outcome.waiters == 0 {
                    return;
                }
                outcome.expires_at.map_or(STORE_PAUSE, |expires_at| {
                    until_next_look(self.store.as_ref(), expires_at.remaining(now))
                })
            }
            Err(_) => STORE_PAUSE,
        };
        self.clock.set(&name, Instant::now() + again);
    }

    async fn sweep(&self) {
        while let Ok(expired) = self.store.expire(SWEEP_BATCH).await {
            self.report(&expired);
            if expired.len() < SWEEP_BATCH {
                return;
            }
            tokio::task::yield_now().await;
        }
    }

    fn report<'a>(&self, expired: impl IntoIterator<Item = &'a Lease>) {
        for lease in expired {
            self.reporter.report_expired(lease);
            self.held.ended(&lease.name, lease.fence);
        }
    }
}
