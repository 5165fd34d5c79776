//! What is done when nobody waits for it.

use tokio::runtime::Handle;
use tokio::sync::watch;

/// Counts what is under way in the background.
#[derive(Debug, Default)]
pub(crate) struct Background(watch::Sender<usize>);

impl Background {
    pub(crate) fn spawn(&self, runtime: &Handle, work: impl Future<Output = ()> + Send + 'static) {
        let counted = Counted::one_of(self.0.clone());
        runtime.spawn(async move {
            work.await;
            drop(counted);
        });
    }

    pub(crate) async fn is_done(&self) {
        // The sender is `self`, so it is there.
        let _ = self.0.subscribe().wait_for(|count| *count == 0).await;
    }
}

/// One of those under way, also where its runtime ends before it.
struct Counted(watch::Sender<usize>);

impl Counted {
    fn one_of(all: watch::Sender<usize>) -> Self {
        all.send_modify(|count| *count += 1);
        Self(all)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}
