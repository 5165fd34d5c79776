//! Graceful shutdown, in steps: no new connections, waiters are refused, functions are drained and then cancelled, the store
//! finishes its rollbacks. Each step has a time limit, and every lock that is released with its function is released before the
//! end.

use std::time::Duration;

use tokio::time::timeout;

use super::Server;

/// How long calls that were cancelled have to release their locks.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);

impl Server {
    /// Shuts the server down gracefully.
    ///
    /// No new connections are accepted. Callers that wait for a lock get `UNAVAILABLE`. Functions that run have `drain` to end;
    /// those that still run then are cancelled. Locks that are released with their function are released either way. Returns
    /// when nothing runs any more.
    pub async fn shut_down(&self, drain: Duration) {
        let core = &self.core;
        core.draining.cancel();
        core.locks.close();
        core.tasks.close();
        if timeout(drain, core.tasks.wait()).await.is_err() {
            tracing::warn!(
                running = core.tasks.len(),
                "the drain timeout is over: cancelling the calls that still run"
            );
        }
        core.stop.stop();
        if timeout(RELEASE_TIMEOUT, core.tasks.wait()).await.is_err() {
            tracing::error!(
                running = core.tasks.len(),
                "some calls did not end in time; their locks are held until they expire"
            );
        }
        // Waiters have left their queues; some stores need time to finish those rollbacks.
        core.locks.shut_down().await;
        core.report_more(core.refusals.take());
        core.audit.flush().await;
    }

    /// Returns when the server begins to shut down. An application that mounts the router waits for this.
    pub async fn shutting_down(&self) {
        self.core.draining.cancelled().await;
    }

    /// Whether the server has begun to shut down.
    pub fn is_shutting_down(&self) -> bool {
        self.core.draining.is_cancelled()
    }
}
