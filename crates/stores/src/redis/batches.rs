//! The calls to Redis: each runs a batch of commands, hands out their answers, and notifies this node of what they have changed.
//!
//! Transitions are reported here and nowhere else, so each is reported once, by the node whose command caused it.

use std::mem::take;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use forrst_lock::model::{Acquired, Command, Outcome, Transition, Wake};
use forrst_lock::{LockName, StoreError};
use fred::error::Error as FredError;
use fred::types::Value;
use futures_util::poll;
use tokio::time::Instant;

use super::command::LibraryCommand;
use super::connection::{Connection, has_prefix, not_connected, store_error};
use super::group::PartitionGroup;
use super::library::{call_arguments, is_missing};
use super::link::Link;
use super::queue::{Batch, CommandAnswer, Job};
use super::reply::{CommandReply, CommandResult};
use super::unpack::{BadReply, Unpacker};

impl Link {
    /// Sends what is queued, unless enough calls are under way: then the next of them does.
    pub(super) fn begin_call(self: &Arc<Self>, group: &PartitionGroup) {
        if group.queue.begin_call() {
            let (link, number) = (self.clone(), group.number);
            tokio::spawn(async move { link.call_until_done(&link.groups[number]).await });
        }
    }

    async fn call_until_done(self: &Arc<Self>, group: &PartitionGroup) {
        let mut turns = group.queue.turns();
        while let Some((turn, batch)) = turns.next_batch().await {
            let call = self.call(group, batch);
            tokio::pin!(call);
            // The first poll sends it: the next batch must not overtake it.
            let is_done = poll!(&mut call).is_ready();
            drop(turn);
            if !is_done {
                call.await;
            }
        }
    }

    async fn call(self: &Arc<Self>, group: &PartitionGroup, mut batch: Batch<'_>) {
        let Some(connection) = self.connections.find(group.slot) else {
            return fail(take(&mut batch.jobs), &not_connected());
        };
        let answer = self.send(group, &connection, &batch).await;
        let mut jobs = take(&mut batch.jobs);
        let failure = match answer {
            Ok((sent, packed)) => {
                if !jobs.iter().all(|job| job.command.runs_when_full()) {
                    group.queue.set_full(false);
                }
                return self.hand_out(group, &connection, jobs, sent, &packed);
            }
            Err(error) => error,
        };
        if is_missing(&failure) {
            return match self.library.load(&connection).await {
                Ok(()) => group.queue.put_back(jobs),
                Err(error) => fail(jobs, &error),
            };
        }
        if has_prefix(&failure, "OOM") {
            // Without the acquires, the others can be run.
            group.queue.set_full(true);
            let (run, refused) = jobs
                .into_iter()
                .partition::<Vec<_>, _>(|job| job.command.runs_when_full());
            group.queue.put_back(run);
            jobs = refused;
        }
        fail(jobs, &failure);
    }

    /// Returns when the batch was sent, and the packed answer.
    async fn send(
        &self,
        group: &PartitionGroup,
        connection: &Connection,
        batch: &Batch<'_>,
    ) -> Result<(Instant, Value), FredError> {
        let sent = Instant::now();
        let (keys, arguments) = self.header.call(group, &self.keyspace, batch, |job| {
            connection.clock().not_after(job.submitted, self.timeout)
        });
        let function = match batch.jobs.iter().all(|job| job.command.runs_when_full()) {
            true => &self.library.run_full,
            false => &self.library.run,
        };
        let call = call_arguments(function, keys, arguments);
        Ok((sent, connection.command("FCALL", call).await?))
    }

    fn hand_out(
        self: &Arc<Self>,
        group: &PartitionGroup,
        connection: &Connection,
        jobs: Vec<Job>,
        sent: Instant,
        packed: &Value,
    ) {
        let mut jobs = jobs.into_iter();
        let mut again = Vec::new();
        let handed_out = self.hand_out_each(group, connection, &mut jobs, sent, packed, &mut again);
        group.queue.put_back(again);
        if let Err(error) = handed_out {
            tracing::error!(%error, "cannot read the answer of Redis to a batch of commands");
            jobs.for_each(|job| job.fail(error.into()));
        }
    }

    fn hand_out_each(
        self: &Arc<Self>,
        group: &PartitionGroup,
        connection: &Connection,
        jobs: &mut impl Iterator<Item = Job>,
        sent: Instant,
        packed: &Value,
        again: &mut Vec<Job>,
    ) -> Result<(), BadReply> {
        let mut answer = Unpacker::new(packed.as_bytes().ok_or(BadReply("answer"))?);
        answer.list("answer")?;
        let now = answer.time()?;
        connection.clock().observe(sent, Instant::now(), now);
        let reading = connection.clock().reading();
        let instance = group.record_instance(answer.text("instance")?);
        if answer.flag()? {
            group.node_became_alive();
        }
        for name in answer.names()? {
            self.settle_further(name);
        }
        answer.list("answers")?;
        for mut job in jobs {
            let CommandReply {
                result,
                transitions,
                woken,
            } = match answer.reply(&job.command, now) {
                Ok(reply) => reply,
                Err(error) => {
                    job.fail(error.into());
                    return Err(error);
                }
            };
            let notify = AssertUnwindSafe(|| {
                for transition in &transitions {
                    if let Transition::Granted { lease, .. } = transition {
                        group.record_fence(lease.fence);
                    }
                    self.nodes.changed(transition, now);
                }
                for (name, ticket, wake) in woken {
                    match wake {
                        // Its waiter must not have it before replicas do.
                        Wake::Granted(lease) if self.header.must_confirm => {
                            self.confirm(name, ticket, lease.fence);
                        }
                        wake => self.deliver(group, ticket, &wake, reading),
                    }
                }
            });
            // A panic in an observer must not fail the other commands of the batch.
            if catch_unwind(notify).is_err() {
                tracing::error!("an observer of the locks has panicked");
            }
            match result {
                CommandResult::NeedsKeys(names) => match job.needs(names) {
                    true => again.push(job),
                    false => {
                        let why = "the command concerns too many other locks";
                        job.fail(StoreError::NotDone(why.into()));
                    }
                },
                CommandResult::Behind => again.push(job),
                // The bounds of the server's clock may have been outdated; this answer has corrected them.
                CommandResult::Late if !job.was_late => {
                    job.was_late = true;
                    again.push(job);
                }
                CommandResult::Late => job.fail(StoreError::NotDone(
                    "the command reached Redis too late".into(),
                )),
                CommandResult::Failed(why) => {
                    tracing::error!(why, command = ?job.command, "a command failed in Redis");
                    job.fail(StoreError::MaybeDone(why.into()));
                }
                result => {
                    if let Some(lease) = result.lease() {
                        group.record_fence(lease.fence);
                    }
                    job.answer(CommandAnswer {
                        result,
                        now,
                        reading,
                        instance: instance.clone(),
                    });
                }
            }
        }
        Ok(())
    }

    /// Continues at a lock with more waiters to grant than one call grants.
    fn settle_further(self: &Arc<Self>, name: LockName) {
        let link = self.clone();
        tokio::spawn(async move {
            let settle = LibraryCommand::Step(Command::Settle(name.clone()));
            // If it fails, the sweep continues.
            let _ = link.submit(link.group_of(&name), settle).await;
        });
    }
}

fn fail(jobs: Vec<Job>, error: &FredError) {
    for job in jobs {
        job.fail(store_error(error.clone()));
    }
}

impl CommandResult {
    /// The newest lease in the result, which another node may have granted.
    fn lease(&self) -> Option<&forrst_lock::Lease> {
        match self {
            Self::Outcome(
                Outcome::Acquired(Acquired::Granted(lease)) | Outcome::Lease(Ok(lease)),
            ) => Some(lease),
            Self::Checked { granted, .. } => granted
                .iter()
                .map(|(_, lease)| lease)
                .max_by_key(|it| it.fence),
            _ => None,
        }
    }
}
