//! Calls that were given up are undone, however long Redis is away.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use forrst_lock::LockName;
use forrst_lock::state::Abandon;
use fred::types::Value;
use futures_util::future::join_all;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::sleep;

use super::keyspace::ticket_text;
use super::link::Link;

const MAX_BATCH: usize = 256;
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// Works until the store is gone.
pub(super) async fn run(link: Arc<Link>, mut given_up: UnboundedReceiver<(LockName, Abandon)>) {
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
        let failed = undo(&link, batch).await;
        let undone = given_up_before - failed.len();
        link.undoing.send_modify(|count| *count -= undone);
        pause = if failed.is_empty() {
            FIRST_PAUSE
        } else {
            (pause * 2).min(LONGEST_PAUSE)
        };
        left.extend(failed);
    }
}

/// Undoes these calls; those that Redis has not heard of are left.
async fn undo(link: &Arc<Link>, batch: Vec<(LockName, Abandon)>) -> Vec<(LockName, Abandon)> {
    let undone = join_all(batch.into_iter().map(async |(name, abandon)| {
        let ticket = abandon.ticket;
        let arguments = vec![Value::from(ticket_text(ticket))];
        let reply = link
            .step(|all| &all.abandon, &name, Some(ticket), arguments)
            .await;
        reply.is_err().then_some((name, abandon))
    }));
    undone.await.into_iter().flatten().collect()
}
