//! What the store, its listener and its rollbacks share: steps, and what they tell the node.

use std::sync::{Arc, RwLock};
use std::time::Duration;

use forrst_lock::model::{Abandoned, Acquire, Acquired, Claim, NotHeld, Wake};
use forrst_lock::{
    Answer, Attempt, Caller, Fence, Lease, LockName, Nodes, Note, StoreError, Ticket,
};
use fred::types::Value;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::connection::{Connection, NOT_CONNECTED};
use super::keyspace::{Keyspace, ticket_text};
use super::replication::Replication;
use super::reply::{Parts, soon};
use super::script::{Script, Scripts};
use super::waiters::Waiters;

#[derive(Debug)]
pub(super) struct Link {
    pub(super) connection: Arc<Connection>,
    pub(super) keyspace: Keyspace,
    pub(super) scripts: Scripts,
    /// Who is notified in this process.
    pub(super) nodes: Nodes,
    pub(super) waiters: Waiters,
    /// This process, among all that share the store.
    pub(super) node: String,
    /// Where replicas have to have a grant before it counts.
    pub(super) replication: Option<Replication>,
    pub(super) timeout: Duration,
    /// Why this Redis must not grant anything as it is set up.
    pub(super) refusal: RwLock<Option<String>>,
    pub(super) rollbacks: mpsc::UnboundedSender<(LockName, Ticket)>,
    /// How many calls are yet to be rolled back.
    pub(super) pending_rollbacks: watch::Sender<usize>,
}

impl Link {
    /// Runs one script, and notifies the node of what it has done. Its answer may concern others, so it is read even when
    /// the caller has gone away.
    ///
    /// A transition is reported here and nowhere else: by the node that made the step, also where it is a grant to a
    /// waiter of another node.
    pub(super) async fn step(
        self: &Arc<Self>,
        script: fn(&Scripts) -> &Script,
        name: &LockName,
        ticket: Option<Ticket>,
        arguments: Vec<Value>,
    ) -> Result<Answer<Parts>, StoreError> {
        self.check()?;
        let (link, name) = (self.clone(), name.clone());
        let task = tokio::spawn(async move {
            let partition = link.keyspace.of(&name);
            let mut all = vec![
                Value::from(name.as_str()),
                Value::from(link.node.as_str()),
                Value::from(link.keyspace.channel()),
                Value::from(if link.replication.is_some() { "1" } else { "0" }),
            ];
            all.extend(arguments);
            let keys = partition.keys(&name, ticket);
            let answer = link
                .connection
                .run(script(&link.scripts), partition.slot, &keys, &all);
            let mut answer = Parts::of(answer.await?);
            let now = answer.time()?;
            let outcome = answer.parts();
            for transition in answer.parts() {
                let transition = Parts::of(transition).transition(&name)?;
                link.nodes.changed(&transition, now);
            }
            for news in answer.parts() {
                let (ticket, wake) = Parts::of(news).news(&name)?;
                match wake {
                    Wake::Granted(lease) if link.replication.is_some() => {
                        link.confirm(name.clone(), ticket, lease.fence);
                    }
                    wake => link.tell(&name, ticket, &wake),
                }
            }
            Ok(Answer { outcome, now })
        });
        task.await
            .unwrap_or_else(|error| Err(StoreError::MaybeDone(Box::new(error))))
    }

    /// Where this process hears of what concerns its waiters.
    pub(super) fn channel(&self) -> String {
        format!("{}{}", self.keyspace.channel(), self.node)
    }

    /// Fails at once when there is no use in asking.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        if self.connection.client().is_none() {
            return Err(StoreError::NotDone(NOT_CONNECTED.into()));
        }
        Ok(())
    }

    /// Nothing is granted by a Redis that may lose it. What is held is looked after all the same.
    fn check_set_up(&self) -> Result<(), StoreError> {
        let refusal = self.refusal.read();
        match refusal.ok().and_then(|refusal| refusal.clone()) {
            Some(refusal) => Err(StoreError::NotDone(refusal.into())),
            None => Ok(()),
        }
    }

    /// Asks for the lock of a claim that this store can grant, or for its old position in the queue.
    pub(super) async fn ask(
        self: &Arc<Self>,
        acquire: &Acquire,
    ) -> Result<Answer<Acquired>, StoreError> {
        self.check_set_up()?;
        let since = Instant::now();
        let (name, ticket) = (acquire.claim.locks.first(), acquire.ticket);
        let mut reply = self
            .step(|all| &all.acquire, name, Some(ticket), arguments(acquire))
            .await?;
        let Some(outcome) = reply.outcome.acquired(name, ticket)? else {
            return Err(StoreError::NotDone("the call was abandoned".into()));
        };
        if let Acquired::Granted(lease) = &outcome {
            self.until_replicated(lease, since).await?;
        }
        Ok(Answer {
            outcome,
            now: reply.now,
        })
    }

    /// Wakes a call of this process, if it still waits and Redis is not just being asked about it.
    pub(super) fn tell(&self, name: &LockName, ticket: Ticket, wake: &Wake) {
        if self.waiters.remove_if_idle(ticket) {
            self.wake(name, ticket, true, wake);
        }
    }

    /// A grant that nobody hears goes back.
    fn wake(&self, name: &LockName, ticket: Ticket, is_there: bool, wake: &Wake) {
        let is_heard = is_there && self.nodes.wake(ticket, wake);
        if !is_heard && matches!(wake, Wake::Granted(_)) {
            self.abandon(name, ticket);
        }
    }

    /// One of this node's waiters was handed a lock by another node: Redis hears that we know, and then the waiter does.
    pub(super) fn confirm(self: &Arc<Self>, name: LockName, ticket: Ticket, fence: Fence) {
        if self.waiters.ask_about(ticket).is_none() {
            return;
        }
        let link = self.clone();
        tokio::spawn(async move {
            match link
                .confirmed(&name, fence)
                .await
                .map(|answer| answer.outcome)
            {
                Ok(Ok(lease)) => {
                    let is_there = link.waiters.remove(ticket);
                    link.wake(&name, ticket, is_there, &Wake::Granted(lease));
                }
                // Somebody ended it, or it ran out, before its owner knew of it: its place is asked for again at once.
                Ok(Err(_)) => {
                    link.waiters.answered(ticket);
                    link.ask_again_for(&name, ticket).await;
                }
                // The next look at this key finds out how things are.
                Err(_) => link.waiters.answered(ticket),
            }
        });
    }

    pub(super) async fn confirmed(
        self: &Arc<Self>,
        name: &LockName,
        fence: Fence,
    ) -> Result<Answer<Result<Lease, NotHeld>>, StoreError> {
        let since = Instant::now();
        let arguments = vec![fence_text(Some(fence))];
        let mut reply = self.step(|all| &all.confirm, name, None, arguments).await?;
        let outcome = reply.outcome.held(name)?;
        if let Ok(lease) = &outcome {
            self.until_replicated(lease, since).await?;
        }
        Ok(Answer {
            outcome,
            now: reply.now,
        })
    }

    /// These are not in their queue: a message was lost, or this node was taken for dead. They ask again, for their old places,
    /// and one after the other: the first to arrive may get the lock. Also when the caller has gone away meanwhile, so that
    /// none is left that nobody else may tell anything.
    pub(super) async fn ask_again(self: &Arc<Self>, name: &LockName, tickets: Vec<Ticket>) {
        let (link, name) = (self.clone(), name.clone());
        let asking = tokio::spawn(async move {
            for ticket in tickets {
                if !link.ask_again_for(&name, ticket).await {
                    return;
                }
            }
        });
        // If it has panicked, the next look goes on with the others.
        let _ = asking.await;
    }

    /// Whether those behind it may ask now. They may not if it is not known what became of it: it might come after them.
    async fn ask_again_for(self: &Arc<Self>, name: &LockName, ticket: Ticket) -> bool {
        let Some(acquire) = self.waiters.ask_about(ticket) else {
            return !self.waiters.has(ticket);
        };
        let asked = self.ask(&acquire).await.map(|answer| answer.outcome);
        let wake = match asked {
            Ok(Acquired::Granted(lease)) => Wake::Granted(lease),
            Ok(Acquired::FencesExhausted) => Wake::FencesExhausted,
            Ok(Acquired::TimedOut) => Wake::TimedOut(soon(name)),
            // It is back in the queue, or the next look will see to it, or it was abandoned meanwhile.
            asked => {
                self.waiters.answered(ticket);
                return asked.is_ok() || !self.waiters.has(ticket);
            }
        };
        let is_there = self.waiters.remove(ticket);
        self.wake(name, ticket, is_there, &wake);
        true
    }

    /// Returns when enough replicas have this lease, in the time that is left for a call that began at `since`.
    pub(super) async fn until_replicated(
        &self,
        lease: &Lease,
        since: Instant,
    ) -> Result<(), StoreError> {
        match &self.replication {
            Some(replication) => replication.of(lease, since + self.timeout).await,
            None => Ok(()),
        }
    }

    pub(super) fn abandon(&self, name: &LockName, ticket: Ticket) {
        self.pending_rollbacks.send_modify(|count| *count += 1);
        // It only fails when the store is gone, and its leases end by themselves.
        let _ = self.rollbacks.send((name.clone(), ticket));
    }

    /// Rolls a call back now.
    pub(super) async fn roll_back(
        self: &Arc<Self>,
        name: &LockName,
        ticket: Ticket,
    ) -> Result<Answer<Abandoned>, StoreError> {
        let arguments = vec![Value::from(ticket_text(ticket))];
        let mut reply = self
            .step(|all| &all.abandon, name, Some(ticket), arguments)
            .await?;
        Ok(Answer {
            outcome: reply.outcome.abandoned(name)?,
            now: reply.now,
        })
    }
}

/// The arguments of `acquire.lua`.
fn arguments(acquire: &Acquire) -> Vec<Value> {
    let Acquire {
        claim,
        ticket,
        wait,
        ..
    } = acquire;
    let Claim {
        owner,
        caller,
        note,
        attempt,
        ttl,
        ..
    } = claim;
    let number = |number: Option<u128>| number.map_or_else(String::new, |n| n.to_string());
    let wait = wait.as_ref();
    let again = wait.and_then(|wait| wait.again);
    vec![
        Value::from(owner.as_str()),
        Value::from(attempt.as_ref().map_or("", Attempt::as_str)),
        Value::from(ticket_text(*ticket)),
        Value::from(ttl.as_duration().as_millis().to_string()),
        Value::from(number(wait.map(|wait| wait.timeout.as_millis()))),
        Value::from(number(wait.map(|wait| wait.max_queue as u128))),
        Value::from(number(again.map(|(position, _)| position.arrival.into()))),
        Value::from(number(again.map(|(_, until)| until.as_millis().into()))),
        Value::from(caller.as_ref().map_or("", Caller::as_str)),
        Value::from(note.as_ref().map_or("", Note::as_str)),
    ]
}

/// Empty when none is named.
pub(super) fn fence_text(fence: Option<Fence>) -> Value {
    let fence = fence.map(|fence| fence.number().to_string());
    fence.unwrap_or_default().into()
}
