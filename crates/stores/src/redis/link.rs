//! What the store, its listener and its clean-up share: steps, and news for those who wait.

use std::sync::{Arc, RwLock};
use std::time::Duration;

use forrst_lock::state::{Abandon, Acquired, Claim, NotHeld};
use forrst_lock::{Caller, Lease, LockName, StoreError, Ticket, Timestamp, Waiter, Wake};
use fred::types::Value;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::connection::{Connection, NOT_CONNECTED};
use super::keyspace::{Keyspace, ticket_text};
use super::replication::Replication;
use super::reply::Parts;
use super::script::{Script, Scripts};
use super::waiters::{Place, Waiters};

#[derive(Debug)]
pub(super) struct Link {
    pub(super) connection: Arc<Connection>,
    pub(super) keyspace: Keyspace,
    pub(super) scripts: Scripts,
    pub(super) waiters: Waiters,
    /// This process, among all that share the store.
    pub(super) node: String,
    /// Where replicas have to have a grant before it counts.
    pub(super) replication: Option<Replication>,
    pub(super) timeout: Duration,
    /// Why this Redis must not grant anything as it is set up.
    pub(super) refusal: RwLock<Option<String>>,
    pub(super) undo: mpsc::UnboundedSender<(LockName, Abandon)>,
    /// How many calls are yet to be undone.
    pub(super) undoing: watch::Sender<usize>,
}

/// The answer to one step, after others have heard what concerns them.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) outcome: Parts,
    pub(super) now: Timestamp,
    pub(super) expired: Option<Lease>,
}

/// What came of asking for a lock.
pub(super) enum Asked {
    Answered(Acquired),
    Queued(Acquired, Place),
    /// The wait is over.
    Woken(Wake),
    /// This call was given up before it arrived.
    Undone,
}

impl Link {
    /// Runs one script. Its answer may bring news for others, so it is read even when the caller has gone away.
    pub(super) async fn step(
        self: &Arc<Self>,
        script: fn(&Scripts) -> &Script,
        name: &LockName,
        ticket: Option<Ticket>,
        arguments: Vec<Value>,
    ) -> Result<Reply, StoreError> {
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
            let mut expired = answer.parts();
            let expired = match expired.is_empty() {
                true => None,
                false => Some(expired.lease(&name)?),
            };
            for news in answer.parts() {
                let (ticket, wake) = Parts::of(news).news(&name)?;
                match wake {
                    Wake::Granted(lease) if link.replication.is_some() => {
                        link.confirm(name.clone(), ticket, lease);
                    }
                    wake => link.tell(&name, ticket, wake),
                }
            }
            Ok(Reply {
                outcome,
                now,
                expired,
            })
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

    /// Asks for a lock. `place` is where this call stood in the queue before it was missing there.
    pub(super) async fn ask(
        self: &Arc<Self>,
        name: &LockName,
        claim: &Claim,
        wait: Option<(Duration, usize)>,
        place: Option<Place>,
    ) -> Result<(Asked, Reply), StoreError> {
        self.check_set_up()?;
        let since = Instant::now();
        let number = |number: Option<u128>| number.map_or_else(String::new, |n| n.to_string());
        let attempt = claim
            .attempt
            .as_ref()
            .map_or("", |attempt| attempt.as_str());
        let arguments = vec![
            Value::from(claim.owner.as_str()),
            Value::from(attempt),
            Value::from(ticket_text(claim.ticket)),
            Value::from(claim.ttl.as_duration().as_millis().to_string()),
            Value::from(number(wait.map(|(timeout, _)| timeout.as_millis()))),
            Value::from(number(wait.map(|(_, max_ahead)| max_ahead as u128))),
            Value::from(number(place.map(|place| u128::from(place.seq)))),
            Value::from(number(
                place.map(|place| u128::from(place.until.as_millis())),
            )),
            Value::from(claim.caller.as_ref().map_or("", Caller::as_str)),
        ];
        let mut reply = self
            .step(|all| &all.acquire, name, Some(claim.ticket), arguments)
            .await?;
        let outcome = &mut reply.outcome;
        let asked = match outcome.text("outcome")?.as_str() {
            "granted" => {
                let lease = outcome.lease(name)?;
                self.until_replicated(&lease, since).await?;
                Asked::Answered(Acquired::Granted(lease))
            }
            "held" => Asked::Answered(Acquired::Held {
                expires_at: outcome.time()?,
            }),
            "full" => Asked::Answered(Acquired::QueueFull {
                expires_at: outcome.time()?,
            }),
            "queued" => {
                let queued = Acquired::Queued {
                    expires_at: outcome.time()?,
                };
                let place = Place {
                    seq: outcome.number("place")?,
                    until: outcome.time()?,
                };
                Asked::Queued(queued, place)
            }
            "exhausted" => Asked::Answered(Acquired::FencesExhausted),
            "superseded" => Asked::Woken(Wake::Superseded),
            "timed_out" => Asked::Woken(Wake::TimedOut),
            _ => Asked::Undone,
        };
        Ok((asked, reply))
    }

    /// Tells a waiter of this process, if it is still there and nobody is asking about it.
    pub(super) fn tell(&self, name: &LockName, ticket: Ticket, wake: Wake) {
        if let Some(waiter) = self.waiters.remove_if_idle(ticket) {
            self.wake(name, ticket, Some(waiter), wake);
        }
    }

    /// A grant that nobody hears goes back.
    fn wake(&self, name: &LockName, ticket: Ticket, waiter: Option<Waiter>, wake: Wake) {
        let is_grant = matches!(wake, Wake::Granted(_));
        let is_heard = waiter.is_some_and(|waiter| waiter.wake(wake));
        if is_grant && !is_heard {
            self.abandon(name, ticket);
        }
    }

    /// One of this node's waiters was handed a lock by another node: Redis hears that we know, and then the waiter does.
    pub(super) fn confirm(self: &Arc<Self>, name: LockName, ticket: Ticket, lease: Lease) {
        if self.waiters.ask_about(ticket).is_none() {
            return;
        }
        let link = self.clone();
        tokio::spawn(async move {
            match link.confirmed(&name, &lease).await {
                Ok(Ok(lease)) => {
                    let waiter = link.waiters.remove(ticket);
                    link.wake(&name, ticket, waiter, Wake::Granted(lease));
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

    async fn confirmed(
        self: &Arc<Self>,
        name: &LockName,
        lease: &Lease,
    ) -> Result<Result<Lease, NotHeld>, StoreError> {
        let since = Instant::now();
        let fence = lease.fence.number().to_string();
        let reply = self.step(|all| &all.confirm, name, None, vec![Value::from(fence)]);
        let held = reply.await?.outcome.held(name)?;
        if let Ok(lease) = &held {
            self.until_replicated(lease, since).await?;
        }
        Ok(held)
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
        let Some((claim, place)) = self.waiters.ask_about(ticket) else {
            return !self.waiters.has(ticket);
        };
        let asked = self
            .ask(name, &claim, Some((Duration::ZERO, 0)), place)
            .await;
        let wake = match asked {
            Ok((Asked::Answered(Acquired::Granted(lease)), _)) => Wake::Granted(lease),
            Ok((Asked::Answered(Acquired::FencesExhausted), _)) => Wake::FencesExhausted,
            Ok((Asked::Woken(wake), _)) => wake,
            // It is back in the queue, or the next look will see to it.
            asked => {
                self.waiters.answered(ticket);
                return asked.is_ok();
            }
        };
        let waiter = self.waiters.remove(ticket);
        self.wake(name, ticket, waiter, wake);
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
        self.undoing.send_modify(|count| *count += 1);
        // It only fails when the store is gone, and its leases end by themselves.
        let _ = self.undo.send((name.clone(), Abandon { ticket }));
    }
}
