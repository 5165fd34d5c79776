//! Background work, such as the release of a dropped lease. It is counted, so that a program can wait for it before it ends.

use tokio::runtime::Handle;
use tokio::sync::watch;

/// Counts the background tasks of a client.
#[derive(Debug, Default)]
pub(crate) struct Background(watch::Sender<usize>);

impl Background {
    pub(crate) fn spawn(&self, runtime: &Handle, work: impl Future<Output = ()> + Send + 'static) {
        let running = RunningTask::count(self.0.clone());
        runtime.spawn(async move {
            work.await;
            drop(running);
        });
    }

    /// Returns when no task is left.
    pub(crate) async fn until_idle(&self) {
        // The sender is `self`, so it is there.
        let _ = self.0.subscribe().wait_for(|count| *count == 0).await;
    }
}

/// Counts a task until it is dropped, which happens also when its runtime is shut down.
struct RunningTask(watch::Sender<usize>);

impl RunningTask {
    fn count(all: watch::Sender<usize>) -> Self {
        all.send_modify(|count| *count += 1);
        Self(all)
    }
}

impl Drop for RunningTask {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}
