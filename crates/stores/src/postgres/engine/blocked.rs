//! Jobs that cannot run with others: another transaction has locked one of their rows, or one of them makes the batch fail.
//!
//! They are run one by one, so that they delay the others for a moment only. Whatever concerns the same keys waits behind them.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use forrst_lock::LockName;
use tokio::time::Instant;

use super::Engine;
use crate::postgres::job::{Job, names_of};
use crate::postgres::transaction::{Failure, Transaction};

/// How long a command waits before it tries again to lock a row that another transaction has locked.
const BLOCKED_PAUSE: Duration = Duration::from_millis(50);

impl Engine {
    /// Runs blocked jobs one by one, in their order.
    pub(super) async fn run_blocked(&mut self) {
        let deadline = self.link.connector.deadline();
        let budget = Instant::now() + 2 * BLOCKED_PAUSE;
        let mut still_blocked: BTreeSet<LockName> = BTreeSet::new();
        let mut left = VecDeque::new();
        while let Some(mut job) = self.blocked.pop_front() {
            let names = job.names.clone();
            let is_behind = names.iter().any(|name| still_blocked.contains(name));
            if is_behind || Instant::now() > budget || self.connection.is_none() {
                still_blocked.extend(names);
                left.push_back(job);
                continue;
            }
            loop {
                let ran = self.try_batch(vec![job], true, deadline).await;
                let Err((failure, mut jobs)) = ran else { break };
                match (failure, jobs.pop()) {
                    (_, None) => break,
                    (Failure::Conflict, Some(it)) if Instant::now() < deadline => {
                        self.reset(deadline).await;
                        job = it;
                        continue;
                    }
                    (Failure::Blocked, Some(it)) => {
                        self.reset(deadline).await;
                        still_blocked.extend(names);
                        left.push_back(it);
                    }
                    (failure, Some(it)) => {
                        let is_internal = it.is_internal();
                        self.failed(vec![it], failure, deadline).await;
                        // If it may last, it must not fail a whole batch again.
                        if is_internal && self.is_connected() {
                            left.extend(self.jobs.pop_front());
                        }
                    }
                }
                break;
            }
        }
        self.blocked = left;
        self.blocked_until = Instant::now() + BLOCKED_PAUSE;
    }

    /// Separates the jobs of a batch whose rows other transactions have locked.
    pub(super) async fn set_blocked_apart(&mut self, jobs: Vec<Job>, deadline: Instant) {
        let names: BTreeSet<LockName> = names_of(jobs.iter()).collect();
        let names: Vec<&str> = names.iter().map(LockName::as_str).collect();
        let Some(connection) = &self.connection else {
            let failure = Failure::NotDone("the connection was lost".to_owned());
            return self.failed(jobs, failure, deadline).await;
        };
        let free = Transaction::free_keys(connection, &self.statements, &names, deadline).await;
        let free: BTreeSet<String> = match free {
            Ok(free) => free.into_iter().collect(),
            Err(failure) => return self.failed(jobs, failure, deadline).await,
        };
        let mut blocked: BTreeSet<LockName> = BTreeSet::new();
        let mut others = Vec::new();
        for job in jobs {
            let is_blocked = |name: &LockName| !free.contains(name.as_str());
            match job
                .names
                .iter()
                .any(|name| is_blocked(name) || blocked.contains(name))
            {
                // A row that is missing may be about to be inserted by the other transaction.
                true => {
                    blocked.extend(job.names.iter().cloned());
                    self.blocked.push_back(job);
                }
                false => others.push(job),
            }
        }
        for job in others.into_iter().rev() {
            self.jobs.push_front(job);
        }
        self.blocked_until = Instant::now();
    }
}
