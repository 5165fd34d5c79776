//! The end of a server: nobody is left hanging, and no lock behind.

use std::time::Duration;

use tokio::time::timeout;

use super::Server;

/// How long functions that were ended have to give their locks back.
const LAST_WORDS: Duration = Duration::from_secs(2);

impl Server {
    /// Ends the server in order.
    ///
    /// No new connections are taken. Callers who wait for a lock get `UNAVAILABLE`. Functions that run have `drain` to end;
    /// what still runs then is cancelled. Locks that are released with their function are released either way. Returns
    /// when all is quiet.
    pub async fn shut_down(&self, drain: Duration) {
        let core = &self.core;
        core.draining.cancel();
        core.locks.close();
        core.tasks.close();
        if timeout(drain, core.tasks.wait()).await.is_err() {
            tracing::warn!(
                running = core.tasks.len(),
                "the drain timeout is over: ending what still runs"
            );
        }
        core.stop.stop();
        if timeout(LAST_WORDS, core.tasks.wait()).await.is_err() {
            tracing::error!(
                running = core.tasks.len(),
                "some calls did not end in time; their locks are free at their expiry"
            );
        }
        // Those who waited have left their queues, which takes some stores a while.
        core.locks.shut_down().await;
        core.report_more(core.refusals.take());
        core.audit.flush().await;
    }

    /// Returns when the server begins to shut down: what an application that mounts the router waits for.
    pub async fn shutting_down(&self) {
        self.core.draining.cancelled().await;
    }

    /// Whether the server has begun to shut down.
    pub fn is_shutting_down(&self) -> bool {
        self.core.draining.is_cancelled()
    }
}
