//! The calls to Redis: each runs a batch of orders, hands out their answers, and notifies this node of what they have changed.

use std::mem::take;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use forrst_lock::model::{Acquired, Command, Outcome, Transition, Wake};
use forrst_lock::{LockName, StoreError};
use fred::error::Error as FredError;
use fred::types::Value;
use futures_util::poll;
use tokio::time::Instant;

use super::connection::{Connection, has_prefix, not_connected, store_error};
use super::lane::Lane;
use super::library::{call_arguments, is_missing};
use super::link::Link;
use super::order::Order;
use super::queue::{Answered, Batch, Job};
use super::reply::{Done, Reply};
use super::unpack::{BadReply, Unpacker};

impl Link {
    /// Sends what is queued, unless enough calls are under way: then the next of them does.
    pub(super) fn begin_call(self: &Arc<Self>, lane: &Lane) {
        if lane.queue.begin_call() {
            let (link, number) = (self.clone(), lane.number);
            tokio::spawn(async move { link.call_until_done(&link.lanes[number]).await });
        }
    }

    async fn call_until_done(self: &Arc<Self>, lane: &Lane) {
        let mut turns = lane.queue.turns();
        while let Some((turn, batch)) = turns.next_batch().await {
            let call = self.call(lane, batch);
            tokio::pin!(call);
            // The first poll sends it: the next batch must not overtake it.
            let is_done = poll!(&mut call).is_ready();
            drop(turn);
            if !is_done {
                call.await;
            }
        }
    }

    async fn call(self: &Arc<Self>, lane: &Lane, mut batch: Batch<'_>) {
        let Some(connection) = self.connections.find(lane.slot) else {
            return fail(take(&mut batch.jobs), &not_connected());
        };
        let answer = self.send(lane, &connection, &batch).await;
        let mut jobs = take(&mut batch.jobs);
        let failure = match answer {
            Ok((sent, packed)) => {
                if !jobs.iter().all(|job| job.order.runs_when_full()) {
                    lane.queue.set_full(false);
                }
                return self.hand_out(lane, &connection, jobs, sent, &packed);
            }
            Err(error) => error,
        };
        if is_missing(&failure) {
            return match self.library.load(&connection).await {
                Ok(()) => lane.queue.put_back(jobs),
                Err(error) => fail(jobs, &error),
            };
        }
        if has_prefix(&failure, "OOM") {
            // Without the acquires, the others can be run.
            lane.queue.set_full(true);
            let (run, refused) = jobs
                .into_iter()
                .partition::<Vec<_>, _>(|job| job.order.runs_when_full());
            lane.queue.put_back(run);
            jobs = refused;
        }
        fail(jobs, &failure);
    }

    /// Returns when the batch was sent, and the packed answer.
    async fn send(
        &self,
        lane: &Lane,
        connection: &Connection,
        batch: &Batch<'_>,
    ) -> Result<(Instant, Value), FredError> {
        let sent = Instant::now();
        let (keys, arguments) = self.header.call(lane, &self.keyspace, batch, |job| {
            connection.clock().not_after(job.submitted, self.timeout)
        });
        let function = match batch.jobs.iter().all(|job| job.order.runs_when_full()) {
            true => &self.library.run_full,
            false => &self.library.run,
        };
        let call = call_arguments(function, keys, arguments);
        Ok((sent, connection.command("FCALL", call).await?))
    }

    fn hand_out(
        self: &Arc<Self>,
        lane: &Lane,
        connection: &Connection,
        jobs: Vec<Job>,
        sent: Instant,
        packed: &Value,
    ) {
        let mut jobs = jobs.into_iter();
        let mut again = Vec::new();
        let handed_out = self.hand_out_each(lane, connection, &mut jobs, sent, packed, &mut again);
        lane.queue.put_back(again);
        if let Err(error) = handed_out {
            tracing::error!(%error, "cannot read the answer of Redis to a batch of commands");
            jobs.for_each(|job| job.fail(error.into()));
        }
    }

    fn hand_out_each(
        self: &Arc<Self>,
        lane: &Lane,
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
        let instance = lane.instance(answer.text("instance")?);
        if answer.flag()? {
            lane.was_considered_dead();
        }
        for name in answer.names()? {
            self.settle_further(name);
        }
        answer.list("answers")?;
        for mut job in jobs {
            let Reply {
                result,
                transitions,
                woken,
            } = match answer.reply(&job.order, now) {
                Ok(reply) => reply,
                Err(error) => {
                    job.fail(error.into());
                    return Err(error);
                }
            };
            let notify = AssertUnwindSafe(|| {
                for transition in &transitions {
                    if let Transition::Granted { lease, .. } = transition {
                        lane.saw(lease.fence);
                    }
                    self.nodes.changed(transition, now);
                }
                for (name, ticket, wake) in woken {
                    match wake {
                        // Its waiter must not have it before replicas do.
                        Wake::Granted(lease) if self.header.must_confirm => {
                            self.confirm(name, ticket, lease.fence);
                        }
                        wake => self.deliver(lane, ticket, &wake, reading),
                    }
                }
            });
            // A panic in an observer must not fail this task, and with it the other orders.
            if catch_unwind(notify).is_err() {
                tracing::error!("an observer of the locks has panicked");
            }
            match result {
                Done::Needs(names) => match job.needs(names) {
                    true => again.push(job),
                    false => {
                        let why = "the command concerns too many other locks";
                        job.fail(StoreError::NotDone(why.into()));
                    }
                },
                Done::Behind => again.push(job),
                // The bounds of the server's clock may have been outdated; this answer has corrected them.
                Done::Late if !job.was_late => {
                    job.was_late = true;
                    again.push(job);
                }
                Done::Late => job.fail(StoreError::NotDone(
                    "the command reached Redis too late".into(),
                )),
                Done::Failed(why) => {
                    tracing::error!(why, order = ?job.order, "a command failed in Redis");
                    job.fail(StoreError::MaybeDone(why.into()));
                }
                done => {
                    if let Some(lease) = done.lease() {
                        lane.saw(lease.fence);
                    }
                    job.answer(Answered {
                        done,
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
            let settle = Order::Step(Command::Settle(name.clone()));
            // If it fails, the sweep continues.
            let _ = link.order(link.lane_of(&name), settle).await;
        });
    }
}

fn fail(jobs: Vec<Job>, error: &FredError) {
    for job in jobs {
        job.fail(store_error(error.clone()));
    }
}

impl Done {
    /// The newest lease in the answer, which another node may have granted.
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
