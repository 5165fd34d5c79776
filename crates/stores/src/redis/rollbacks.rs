//! Calls that were given up are rolled back, however long Redis is away.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use forrst_lock::{LockName, Ticket};
use futures_util::future::join_all;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::sleep;

use super::link::Link;

const MAX_BATCH: usize = 256;
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// Works until the store is gone.
pub(super) async fn run(link: Arc<Link>, mut given_up: UnboundedReceiver<(LockName, Ticket)>) {
    let mut left = VecDeque::new();
    let mut pause = FIRST_PAUSE;
    loop {
        let mut batch = Vec::new();
        if left.is_empty() {
            if given_up.recv_many(&mut batch, MAX_BATCH).await == 0 {
                return;
            }
        } else {
            sleep(pause).await;
            while let Ok(next) = given_up.try_recv() {
                left.push_back(next);
            }
            batch.extend(left.drain(..left.len().min(MAX_BATCH)));
        }
        let given_up_before = batch.len();
        let failed = roll_back(&link, batch).await;
        let rolled_back = given_up_before - failed.len();
        link.pending_rollbacks
            .send_modify(|count| *count -= rolled_back);
        pause = if failed.is_empty() {
            FIRST_PAUSE
        } else {
            (pause * 2).min(LONGEST_PAUSE)
        };
        left.extend(failed);
    }
}

/// Rolls these calls back; those that Redis has not heard of are left.
async fn roll_back(link: &Arc<Link>, batch: Vec<(LockName, Ticket)>) -> Vec<(LockName, Ticket)> {
    let rolled_back = join_all(batch.into_iter().map(async |(name, ticket)| {
        let rolled_back = link.roll_back(&name, ticket).await;
        rolled_back.is_err().then_some((name, ticket))
    }));
    rolled_back.await.into_iter().flatten().collect()
}
