//! A grant counts when enough replicas have it. They are asked on a connection of its own, because `WAIT` holds up whatever is
//! behind it, and once for all that was granted meanwhile.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use forrst_lock::{Lease, LockName, StoreError};
use fred::clients::Client;
use fred::error::{Error as FredError, ErrorKind};
use fred::interfaces::ClusterInterface;
use fred::types::Value;
use fred::types::config::Server;
use futures_util::future::join_all;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

use super::connection::{Connection, NOT_CONNECTED};
use super::keyspace::Keyspace;

const MAX_BATCH: usize = 1000;

/// Where grants are handed in.
#[derive(Debug)]
pub(super) struct Replication {
    grants: mpsc::UnboundedSender<Grant>,
}

#[derive(Debug)]
pub(super) struct Grant {
    name: LockName,
    fence: String,
    answer: oneshot::Sender<Result<(), String>>,
}

impl Replication {
    pub(super) fn channel() -> (Self, mpsc::UnboundedReceiver<Grant>) {
        let (grants, handed_in) = mpsc::unbounded_channel();
        (Self { grants }, handed_in)
    }

    /// Returns when enough replicas have this lease.
    pub(super) async fn of(&self, lease: &Lease, deadline: Instant) -> Result<(), StoreError> {
        let (answer, heard) = oneshot::channel();
        // It only fails when the store is gone, and then nobody answers.
        let _ = self.grants.send(Grant {
            name: lease.name().clone(),
            fence: lease.fence.number().to_string(),
            answer,
        });
        let why = match timeout_at(deadline, heard).await {
            Ok(Ok(Ok(()))) => return Ok(()),
            Ok(Ok(Err(why))) => why,
            _ => "the replicas did not answer in time".to_owned(),
        };
        Err(StoreError::MaybeDone(why.into()))
    }
}

/// What it takes to ask.
pub(super) struct Replicas {
    pub(super) connection: Arc<Connection>,
    pub(super) keyspace: Keyspace,
    pub(super) needed: u32,
    pub(super) timeout: Duration,
}

impl Replicas {
    /// Works until the store is gone.
    pub(super) async fn ask(self, mut handed_in: mpsc::UnboundedReceiver<Grant>) {
        loop {
            let mut batch = Vec::new();
            if handed_in.recv_many(&mut batch, MAX_BATCH).await == 0 {
                return;
            }
            batch.retain(|grant| !grant.answer.is_closed());
            let client = self.connection.client();
            let groups = by_server(client.as_ref(), &self.keyspace, batch);
            join_all(groups.map(|grants| self.ask_about(client.as_ref(), grants))).await;
        }
    }

    /// Asks the replicas of one server about all of these.
    async fn ask_about(&self, client: Option<&Client>, grants: Vec<Grant>) {
        let Some(client) = client else {
            return answer(grants, &Err(NOT_CONNECTED.to_owned()));
        };
        let seen = join_all(grants.iter().map(|grant| self.is_there(client, grant))).await;
        let (there, gone): (Vec<_>, Vec<_>) = grants
            .into_iter()
            .zip(seen)
            .partition(|(_, is_there)| *is_there);
        let grants = |of: Vec<(Grant, bool)>| of.into_iter().map(|(grant, _)| grant).collect();
        answer(grants(gone), &Err("the lock has gone meanwhile".to_owned()));
        let there: Vec<Grant> = grants(there);
        if let Some(first) = there.first() {
            let reached = self.reached(client, &first.name).await;
            answer(there, &self.are_enough(reached));
        }
    }

    /// Another server may be at the other end of this connection than the one that granted it, after a fail-over that the
    /// other connection has not noticed.
    async fn is_there(&self, client: &Client, grant: &Grant) -> bool {
        let partition = self.keyspace.of(&grant.name);
        let arguments = vec![partition.lock(&grant.name).into(), "fence".into()];
        let fence = self
            .connection
            .command_by(client, "HGET", partition.slot, arguments);
        let fence = fence.await.ok().and_then(Value::into_string);
        fence.as_deref() == Some(grant.fence.as_str())
    }

    /// How many replicas have all that is in the server that has this lock. `WAIT` answers for what its own connection has
    /// written, so there has to be something.
    async fn reached(&self, client: &Client, name: &LockName) -> Result<u64, FredError> {
        let partition = self.keyspace.of(name);
        let send = |command, arguments| {
            self.connection
                .command_by(client, command, partition.slot, arguments)
        };
        let minute = ["PX", "60000"].map(Value::from);
        let write = [Value::from(partition.replicated()), Value::from("")];
        send("SET", write.into_iter().chain(minute).collect()).await?;
        // Those who come while this is on its way wait for it, and then for their own: all in all, no longer than they have.
        let millis = (self.timeout.as_millis() / 2).max(1).to_string();
        let needed = Value::from(i64::from(self.needed));
        let reached = send("WAIT", vec![needed, millis.into()]).await?;
        reached
            .as_u64()
            .ok_or_else(|| FredError::new(ErrorKind::Protocol, "WAIT should answer a number"))
    }

    fn are_enough(&self, reached: Result<u64, FredError>) -> Result<(), String> {
        match reached {
            Ok(reached) if reached >= u64::from(self.needed) => Ok(()),
            Ok(reached) => Err(format!(
                "only {reached} of {} replicas have taken over the lock in time",
                self.needed
            )),
            Err(error) => Err(format!("the replicas could not be asked: {error}")),
        }
    }
}

fn by_server(
    client: Option<&Client>,
    keyspace: &Keyspace,
    grants: Vec<Grant>,
) -> impl Iterator<Item = Vec<Grant>> {
    let cluster = client.and_then(Client::cached_cluster_state);
    let mut groups: HashMap<Option<Server>, Vec<Grant>> = HashMap::new();
    for grant in grants {
        let slot = keyspace.of(&grant.name).slot;
        let server = cluster
            .as_ref()
            .and_then(|cluster| cluster.get_server(slot));
        groups.entry(server.cloned()).or_default().push(grant);
    }
    groups.into_values()
}

fn answer(grants: Vec<Grant>, how: &Result<(), String>) {
    for grant in grants {
        // Whoever asked may have gone.
        let _ = grant.answer.send(how.clone());
    }
}
