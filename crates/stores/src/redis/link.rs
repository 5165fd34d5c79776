//! The state that the store and its tasks share, and what they do with it.
//!
//! They submit commands, and bring the calls of this process that wait in Redis to their outcome, whatever happens to messages.

use std::sync::{Arc, RwLock};
use std::time::Duration;

use forrst_lock::model::{Acquire, Acquired, Command, Obstacle, Outcome, Wake};
use forrst_lock::{Answer, Fence, Lease, LockName, Nodes, Reading, StoreError, Ticket, Timestamp};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout_at};

use super::command::LibraryCommand;
use super::connection::{Connections, NOT_CONNECTED};
use super::group::PartitionGroup;
use super::header::CallHeader;
use super::keyspace::Keyspace;
use super::library::Library;
use super::queue::CommandAnswer;
use super::replication::Replication;
use super::reply::CommandResult;
use super::tracking::Tracking;
use super::unpack::BadReply;
use super::waiters::{Delivery, Rejoin, Waiters};

#[derive(Debug)]
pub(super) struct Link {
    pub(super) connections: Arc<Connections>,
    pub(super) keyspace: Keyspace,
    pub(super) library: Library,
    pub(super) header: CallHeader,
    pub(super) groups: Vec<PartitionGroup>,
    /// The subscribers of this process.
    pub(super) nodes: Nodes,
    pub(super) waiters: Waiters,
    /// The keys that are watched in this process.
    pub(super) tracking: Arc<Tracking>,
    /// Set if a grant counts only once replicas have it.
    pub(super) replication: Option<Replication>,
    pub(super) timeout: Duration,
    /// Why nothing may be granted with the current settings of Redis, if so.
    pub(super) refusal: RwLock<Option<String>>,
    pub(super) rollbacks: mpsc::UnboundedSender<(LockName, Ticket)>,
    /// How many calls still have to be rolled back.
    pub(super) pending_rollbacks: watch::Sender<usize>,
}

impl Link {
    pub(super) fn group_of(&self, name: &LockName) -> &PartitionGroup {
        &self.groups[self.keyspace.group_of(name)]
    }

    /// Submits a command and waits for its answer. The reply of Redis is read even if the caller has disconnected, because it may
    /// concern other calls.
    ///
    /// A command that has timed out is never run: it carries the time until which Redis may begin it.
    pub(super) async fn submit(
        self: &Arc<Self>,
        group: &PartitionGroup,
        command: LibraryCommand,
    ) -> Result<CommandAnswer, StoreError> {
        let submitted = Instant::now();
        let answered = group.queue.push(command, submitted)?;
        self.begin_call(group);
        match timeout_at(submitted + self.timeout, answered).await {
            Ok(Ok(answered)) => answered,
            Ok(Err(_)) => Err(StoreError::MaybeDone(
                "the call to Redis was cancelled".into(),
            )),
            Err(_) => Err(StoreError::MaybeDone("Redis did not answer in time".into())),
        }
    }

    pub(super) async fn step(
        self: &Arc<Self>,
        command: Command,
    ) -> Result<(Outcome, CommandAnswer), StoreError> {
        let group = command.names().next().map(|name| self.group_of(name));
        // A command that names no lock can go to any group.
        let group = group.unwrap_or(&self.groups[0]);
        let mut answered = self.submit(group, LibraryCommand::Step(command)).await?;
        match answered.result.take_outcome() {
            Some(outcome) => Ok((outcome?, answered)),
            None => Err(BadReply("outcome").into()),
        }
    }

    /// The channel on which this process is notified of steps of other nodes.
    pub(super) fn channel(&self) -> String {
        format!("{}{}", self.header.channel, self.header.node)
    }

    pub(super) fn check_connected(&self) -> Result<(), StoreError> {
        if self.connections.all().is_empty() {
            return Err(StoreError::NotDone(NOT_CONNECTED.into()));
        }
        Ok(())
    }

    /// Fails if the settings of Redis can lose locks. Checked for grants only: held leases can be extended and released.
    pub(super) fn check_settings(&self) -> Result<(), StoreError> {
        let refusal = self.refusal.read();
        match refusal.ok().and_then(|refusal| refusal.clone()) {
            Some(refusal) => Err(StoreError::NotDone(refusal.into())),
            None => Ok(()),
        }
    }

    async fn run_acquire(
        self: &Arc<Self>,
        acquire: Acquire,
    ) -> Result<(Acquired, CommandAnswer), StoreError> {
        self.check_settings()?;
        let since = Instant::now();
        let (outcome, answered) = self.step(Command::Acquire(acquire)).await?;
        let Outcome::Acquired(acquired) = outcome else {
            return Err(BadReply("outcome").into());
        };
        if let Acquired::Granted(lease) = &acquired {
            self.until_replicated(lease, &answered, since).await?;
        }
        Ok((acquired, answered))
    }

    /// Wakes a call of this process that has left its queue in this group.
    pub(super) fn deliver(
        &self,
        group: &PartitionGroup,
        ticket: Ticket,
        wake: &Wake,
        reading: Reading,
    ) {
        let deadline = self.waiters.deadline(ticket);
        if matches!(wake, Wake::TimedOut(_)) && deadline.is_some_and(|it| it > Instant::now()) {
            // It timed out by the clock of another server than the one at which it began to wait: it has to rejoin the queue.
            return group.request_recheck();
        }
        let is_granted = matches!(wake, Wake::Granted(_));
        if self.waiters.take(ticket, is_granted) != Delivery::Ignored {
            self.wake(ticket, wake, reading);
        }
    }

    /// Wakes a call. A grant whose call has ended is rolled back.
    fn wake(&self, ticket: Ticket, wake: &Wake, reading: Reading) {
        let is_received = self.nodes.wake(ticket, wake, reading);
        if let Wake::Granted(lease) = wake
            && !is_received
        {
            self.abandon(lease.name(), ticket);
        }
    }

    /// Confirms a grant that another node made to a waiter of this node, and then wakes the waiter.
    pub(super) fn confirm(self: &Arc<Self>, name: LockName, ticket: Ticket, fence: Fence) {
        match self.waiters.start_resolving(ticket) {
            Delivery::Accepted => {}
            Delivery::Ignored => return,
            // Without its call the lease would never be released.
            Delivery::UnknownCall => return self.abandon(&name, ticket),
        }
        let link = self.clone();
        tokio::spawn(async move {
            match link.confirmed(&name, fence).await {
                Ok((Some(lease), answered)) => {
                    link.waiters.end(ticket, true);
                    link.wake(ticket, &Wake::Granted(lease), answered.reading);
                }
                // The lease has ended already.
                Ok((None, _)) => {
                    // Messages that came meanwhile do not matter, because the call rejoins.
                    let _ = link.waiters.end_resolving(ticket);
                    if link.rejoin(&name, ticket).await.is_err() {
                        link.group_of(&name).request_recheck();
                    }
                }
                Err(_) => {
                    let _ = link.waiters.end_resolving(ticket);
                    link.group_of(&name).request_recheck();
                }
            }
        });
    }

    async fn confirmed(
        self: &Arc<Self>,
        name: &LockName,
        fence: Fence,
    ) -> Result<(Option<Lease>, CommandAnswer), StoreError> {
        let since = Instant::now();
        let name = name.clone();
        let (outcome, answered) = self.step(Command::Confirm { name, fence }).await?;
        let Outcome::Lease(lease) = outcome else {
            return Err(BadReply("outcome").into());
        };
        if let Ok(lease) = &lease {
            self.until_replicated(lease, &answered, since).await?;
        }
        Ok((lease.ok(), answered))
    }

    /// Puts a call that is no longer in its queue back at its position: a message was lost, or this node was considered dead.
    pub(super) async fn rejoin(
        self: &Arc<Self>,
        name: &LockName,
        ticket: Ticket,
    ) -> Result<(), StoreError> {
        let Some(Rejoin {
            mut acquire,
            position,
            deadline,
        }) = self.waiters.start_rejoining(ticket)
        else {
            return Ok(());
        };
        if let Some(wait) = &mut acquire.wait {
            wait.rejoin = Some((position, self.server_time_at(name, deadline)));
        }
        let (acquired, reading) = match self.run_acquire(acquire).await {
            Ok((acquired, answered)) => (acquired, answered.reading),
            Err(error) => {
                let _ = self.waiters.end_resolving(ticket);
                return Err(error);
            }
        };
        let wake = match acquired {
            Acquired::Queued { position, .. } => {
                self.waiters.set_position(ticket, position);
                if self.waiters.end_resolving(ticket) {
                    self.group_of(name).request_recheck();
                }
                return Ok(());
            }
            Acquired::TimedOut if deadline > Instant::now() => {
                let _ = self.waiters.end_resolving(ticket);
                let why = "the clock of Redis was set meanwhile";
                return Err(StoreError::NotDone(why.into()));
            }
            Acquired::Granted(lease) => Wake::Granted(lease),
            Acquired::Withdrawn => Wake::Withdrawn,
            Acquired::FencesExhausted => Wake::FencesExhausted,
            // The other outcomes are not given to a call that has a position.
            _ => Wake::TimedOut(Obstacle {
                blocked_by: vec![name.clone()],
                retry_at: reading.now,
            }),
        };
        self.waiters.end(ticket, matches!(wake, Wake::Granted(_)));
        self.wake(ticket, &wake, reading);
        Ok(())
    }

    /// What the clock of the server that has this lock will read at a future instant.
    fn server_time_at(&self, name: &LockName, at: Instant) -> Timestamp {
        let left = |reading: Reading| reading.now + at.saturating_duration_since(reading.at);
        self.reading(self.group_of(name))
            .map_or(Timestamp::from_millis(0), left)
    }

    /// The clock of a group's server; `None` while the server is not connected.
    pub(super) fn reading(&self, group: &PartitionGroup) -> Option<Reading> {
        let connection = self.connections.find(group.slot)?;
        Some(connection.clock().reading())
    }

    /// Waits until enough replicas have this lease, within the timeout of a call that began at `since`.
    pub(super) async fn until_replicated(
        &self,
        lease: &Lease,
        answered: &CommandAnswer,
        since: Instant,
    ) -> Result<(), StoreError> {
        match &self.replication {
            Some(replication) => {
                let slot = self.group_of(lease.name()).slot;
                let instance = answered.instance.clone();
                replication
                    .wait_for(slot, instance, since + self.timeout)
                    .await
            }
            None => Ok(()),
        }
    }

    pub(super) fn abandon(&self, name: &LockName, ticket: Ticket) {
        self.pending_rollbacks.send_modify(|count| *count += 1);
        // It only fails when the store has been dropped; then its leases expire.
        let _ = self.rollbacks.send((name.clone(), ticket));
    }

    /// Runs an acquire, and keeps the call among the waiters while it waits.
    pub(super) async fn acquire(
        self: &Arc<Self>,
        acquire: Acquire,
    ) -> Result<Answer<Acquired>, StoreError> {
        let ticket = acquire.ticket;
        let may_wait = self.waiters.add(&acquire);
        let result = self.run_acquire(acquire).await;
        match &result {
            Ok((Acquired::Queued { position, .. }, _)) => {
                self.waiters.set_position(ticket, *position);
            }
            _ if may_wait => self.waiters.remove(ticket),
            _ => {}
        }
        let (outcome, answered) = result?;
        Ok(answered.with(outcome))
    }
}

impl CommandAnswer {
    pub(super) fn with<T>(&self, outcome: T) -> Answer<T> {
        Answer {
            outcome,
            now: self.now,
        }
    }
}

impl CommandResult {
    /// The outcome of a step; `None` if it was another command.
    fn take_outcome(&mut self) -> Option<Result<Outcome, StoreError>> {
        match std::mem::replace(self, Self::Abandoned) {
            Self::Outcome(outcome) => Some(Ok(outcome)),
            Self::Abandoned => {
                let why = "the call was abandoned before it arrived";
                Some(Err(StoreError::NotDone(why.into())))
            }
            _ => None,
        }
    }
}
