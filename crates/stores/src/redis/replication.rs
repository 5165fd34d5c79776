//! Waits until enough replicas have a grant.
//!
//! `WAIT` blocks its connection, so there are separate connections for it, and one `WAIT` serves all grants that a server made meanwhile.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use forrst_lock::StoreError;
use fred::error::{Error as FredError, ErrorKind};
use fred::types::Value;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use super::connection::{Connection, Connections, NOT_CONNECTED};

/// How many grants one `WAIT` serves at most.
const MAX_BATCH: usize = 1000;

/// The sending side: submits grants and waits for their replication.
#[derive(Debug)]
pub(super) struct Replication {
    grants: mpsc::UnboundedSender<Grant>,
}

/// A grant or an extension that a server has written, and that has to be replicated.
#[derive(Debug)]
pub(super) struct Grant {
    slot: u16,
    /// The id of the server instance that wrote it.
    instance: Arc<str>,
    answer: oneshot::Sender<Result<(), String>>,
}

impl Replication {
    pub(super) fn channel() -> (Self, mpsc::UnboundedReceiver<Grant>) {
        let (grants, receiver) = mpsc::unbounded_channel();
        (Self { grants }, receiver)
    }

    /// Waits until enough replicas have what this instance has written to the slot.
    pub(super) async fn wait_for(
        &self,
        slot: u16,
        instance: Arc<str>,
        deadline: Instant,
    ) -> Result<(), StoreError> {
        let (answer, replicated) = oneshot::channel();
        // It only fails when the store has been dropped; then there is no answer either.
        let _ = self.grants.send(Grant {
            slot,
            instance,
            answer,
        });
        let why = match timeout_at(deadline, replicated).await {
            Ok(Ok(Ok(()))) => return Ok(()),
            Ok(Ok(Err(why))) => why,
            _ => "the replicas did not answer in time".to_owned(),
        };
        Err(StoreError::MaybeDone(why.into()))
    }
}

/// Builds the command that writes something to a slot and returns the id of the server instance: `WAIT` only covers the writes of its
/// own connection, so there has to be one.
pub(super) type Touch = Box<dyn Fn(u16) -> (&'static str, Vec<Value>) + Send + Sync>;

/// The working side: waits for the replicas of each server.
pub(super) struct Replicas {
    pub(super) connections: Arc<Connections>,
    pub(super) touch: Touch,
    pub(super) needed: u32,
    pub(super) timeout: Duration,
}

impl fmt::Debug for Replicas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replicas").finish_non_exhaustive()
    }
}

impl Replicas {
    /// Runs until the store is dropped. Each server has a worker of its own, so that one that hangs does not delay the others.
    pub(super) async fn run(self, mut submitted: mpsc::UnboundedReceiver<Grant>) {
        let replicas = Arc::new(self);
        let mut tasks = JoinSet::new();
        let mut workers: HashMap<u64, Worker> = HashMap::new();
        while let Some(grant) = submitted.recv().await {
            let Some(connection) = replicas.connections.find(grant.slot) else {
                grant.answer(Err(NOT_CONNECTED.to_owned()));
                continue;
            };
            let worker = workers.entry(connection.id()).or_insert_with(|| {
                let (grants, submitted) = mpsc::unbounded_channel();
                tasks.spawn(replicas.clone().work(connection.clone(), submitted));
                Worker { connection, grants }
            });
            // It cannot fail: the worker runs as long as its sender exists.
            let _ = worker.grants.send(grant);
            if workers.len() > 1 {
                workers.retain(|_, worker| worker.connection.is_open());
                while tasks.try_join_next().is_some() {}
            }
        }
    }

    async fn work(
        self: Arc<Self>,
        connection: Arc<Connection>,
        mut submitted: mpsc::UnboundedReceiver<Grant>,
    ) {
        loop {
            let mut grants = Vec::new();
            if submitted.recv_many(&mut grants, MAX_BATCH).await == 0 {
                return;
            }
            grants.retain(|grant| !grant.answer.is_closed());
            if let Some(first) = grants.first() {
                let reached = self.reached(&connection, first.slot).await;
                for grant in grants {
                    let how = self.are_enough(&grant, &reached);
                    grant.answer(how);
                }
            }
        }
    }

    /// The id of the server instance, and how many replicas have all that it has written.
    async fn reached(
        &self,
        connection: &Connection,
        slot: u16,
    ) -> Result<(String, u64), FredError> {
        let bad = |message| FredError::new(ErrorKind::Protocol, message);
        let (name, arguments) = (self.touch)(slot);
        let instance = connection.command(name, arguments).await?.into_string();
        let instance = instance.ok_or_else(|| bad("a server should name its instance"))?;
        // A grant that is submitted meanwhile waits for this `WAIT` and then for the next: together no longer than its timeout.
        let millis = (self.timeout.as_millis() / 2).max(1).to_string();
        let needed = Value::from(i64::from(self.needed));
        let reached = connection
            .command("WAIT", vec![needed, millis.into()])
            .await?;
        let reached = reached
            .as_u64()
            .ok_or_else(|| bad("WAIT did not return a number"))?;
        Ok((instance, reached))
    }

    /// Checks the id as well: after a fail-over, this connection may lead to another server than the one that made the grant.
    fn are_enough(
        &self,
        grant: &Grant,
        reached: &Result<(String, u64), FredError>,
    ) -> Result<(), String> {
        match reached {
            Ok((instance, _)) if **instance != *grant.instance => {
                Err("another server has taken over".to_owned())
            }
            Ok((_, reached)) if *reached >= u64::from(self.needed) => Ok(()),
            Ok((_, reached)) => Err(format!(
                "only {reached} of {} replicas had the lock in time",
                self.needed
            )),
            Err(error) => Err(format!("cannot wait for the replicas: {error}")),
        }
    }
}

/// Waits for the replicas of one server, until its connection breaks.
struct Worker {
    connection: Arc<Connection>,
    grants: mpsc::UnboundedSender<Grant>,
}

impl Grant {
    fn answer(self, how: Result<(), String>) {
        // Fails if the caller has given up.
        let _ = self.answer.send(how);
    }
}
