//! Rolls back abandoned calls, however long Redis is unavailable.
//!
//! Each is retried separately, so that a server that is unavailable, or a slot that is being moved, does not delay the others.

use std::sync::Arc;
use std::time::Duration;

use forrst_lock::model::Command;
use forrst_lock::{LockName, Ticket};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::link::Link;

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Runs until the store is dropped.
pub(super) async fn run(link: Arc<Link>, mut given_up: UnboundedReceiver<(LockName, Ticket)>) {
    let mut tasks = JoinSet::new();
    while let Some((name, ticket)) = given_up.recv().await {
        tasks.spawn(roll_back(link.clone(), name, ticket));
        while tasks.try_join_next().is_some() {}
    }
}

async fn roll_back(link: Arc<Link>, name: LockName, ticket: Ticket) {
    let mut pause = FIRST_PAUSE;
    loop {
        let name = name.clone();
        if link.step(Command::Abandon { name, ticket }).await.is_ok() {
            break;
        }
        sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
    link.pending_rollbacks.send_modify(|count| *count -= 1);
}
