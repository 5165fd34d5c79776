//! Commands, each as the script that runs it.

use forrst_lock::model::{Acquire, Acquired, Command, Held, NotHeld, Outcome, Settled, Wake};
use forrst_lock::{Answer, Kind, Lease, LockName, Locks, StoreError, Ticket, Ttl};
use fred::types::Value;
use tokio::time::Instant;

use super::RedisStore;
use super::keyspace::ticket_text;
use super::link::fence_text;
use super::reply::BadReply;
use super::script::{Script, Scripts};

/// How many of a key's waiters are looked after in one step.
const LOOKED_AFTER: usize = 64;

/// What the scripts cannot do yet.
fn check_supported(locks: &Locks) -> Result<(), StoreError> {
    let why = match locks.as_slice() {
        [(_, share)] => match share.kind() {
            Kind::Exclusive => return Ok(()),
            Kind::Shared => {
                "shared locks need the memory or the embedded store; with Redis, locks are exclusive"
            }
            Kind::Limit(_) => {
                "locks with a limit need the memory or the embedded store; with Redis, locks are exclusive"
            }
        },
        _ => {
            "a lock on several keys needs the memory or the embedded store; with Redis, a lock has one key"
        }
    };
    Err(StoreError::Unsupported(why))
}

impl RedisStore {
    pub(super) async fn run(&self, command: Command) -> Result<Answer<Outcome>, StoreError> {
        match command {
            Command::Acquire(acquire) => {
                check_supported(&acquire.claim.locks)?;
                let Answer { outcome, now } = self.acquire(acquire).await?;
                let outcome = Outcome::Acquired(outcome);
                Ok(Answer { outcome, now })
            }
            Command::Abandon { name, ticket } => {
                self.link.waiters.remove(ticket);
                let Answer { outcome, now } = self.link.roll_back(&name, ticket).await?;
                let outcome = Outcome::Abandoned(outcome);
                Ok(Answer { outcome, now })
            }
            Command::Release(Held { name, owner, fence }) => {
                let arguments = vec![owner.as_str().into(), fence_text(fence)];
                let held = self.act(|all| &all.release, &name, arguments).await?;
                Ok(lease(held))
            }
            Command::Extend(Held { name, owner, fence }, ttl) => {
                let arguments = vec![owner.as_str().into(), fence_text(fence), millis(ttl)];
                let held = self.act(|all| &all.extend, &name, arguments).await?;
                Ok(lease(held))
            }
            Command::ForceRelease { name, fences } => {
                let is_one = fences.len() < 2;
                let fence = fences.first().copied().filter(|_| is_one);
                if !is_one {
                    return Err(StoreError::Unsupported("a lock has one lease with Redis"));
                }
                let arguments = vec![fence_text(fence)];
                let held = self.act(|all| &all.force_release, &name, arguments).await?;
                Ok(Answer {
                    outcome: Outcome::Forced(held.outcome.map(|lease| vec![lease])),
                    now: held.now,
                })
            }
            Command::Withdraw { .. } => Err(StoreError::Unsupported(
                "withdrawing an attempt needs the memory or the embedded store; with Redis, release the lock instead",
            )),
            Command::Confirm { name, fence } => Ok(lease(self.link.confirmed(&name, fence).await?)),
            Command::Settle(name) => {
                let Answer { outcome, now } = self.settle(&name).await?;
                let outcome = Outcome::Settled(outcome);
                Ok(Answer { outcome, now })
            }
        }
    }

    async fn acquire(&self, acquire: Acquire) -> Result<Answer<Acquired>, StoreError> {
        let (ticket, waiters) = (acquire.ticket, &self.link.waiters);
        if acquire.wait.is_some() {
            waiters.add(acquire.clone());
        }
        let answer = self.link.ask(&acquire).await;
        match answer.as_ref().map(|answer| &answer.outcome) {
            Ok(Acquired::Queued {
                position, until, ..
            }) => waiters.set_place(ticket, *position, *until),
            _ => {
                waiters.remove(ticket);
            }
        }
        answer
    }

    /// What acts on a lease.
    async fn act(
        &self,
        script: fn(&Scripts) -> &Script,
        name: &LockName,
        arguments: Vec<Value>,
    ) -> Result<Answer<Result<Lease, NotHeld>>, StoreError> {
        let mut reply = self.link.step(script, name, None, arguments).await?;
        Ok(Answer {
            outcome: reply.outcome.held(name)?,
            now: reply.now,
        })
    }

    pub(super) async fn settle(&self, name: &LockName) -> Result<Answer<Settled>, StoreError> {
        let tickets = self.link.waiters.of(name);
        let mut some = tickets.chunks(LOOKED_AFTER);
        let first = some.next().unwrap_or_default();
        let (answer, mut is_any_missing) = self.look_after(name, first).await?;
        // Whoever drops out of a queue does so from its head: where nobody is missing, nobody is behind it.
        while is_any_missing && let Some(next) = some.next() {
            (_, is_any_missing) = self.look_after(name, next).await?;
        }
        Ok(answer)
    }

    /// Some of this process' waiters for `name` hear what they missed. Whether any was missing in the queue.
    async fn look_after(
        &self,
        name: &LockName,
        tickets: &[Ticket],
    ) -> Result<(Answer<Settled>, bool), StoreError> {
        let link = &self.link;
        let since = Instant::now();
        let arguments = tickets.iter().map(|ticket| ticket_text(*ticket).into());
        let mut reply = link
            .step(|all| &all.settle, name, None, arguments.collect())
            .await?;
        let (expires_at, in_queue) = (reply.outcome.time()?, reply.outcome.size()?);
        let mut granted = reply.outcome.parts();
        if !granted.is_empty() {
            let (ticket, wake) = granted.news(name)?;
            if let Wake::Granted(lease) = &wake {
                link.until_replicated(lease, since).await?;
            }
            link.tell(name, ticket, &wake);
        }
        let missing: Result<Vec<Ticket>, BadReply> = {
            let mut missing = reply.outcome.parts();
            std::iter::from_fn(|| (!missing.is_empty()).then(|| missing.ticket())).collect()
        };
        let missing = missing?;
        let is_any_missing = !missing.is_empty();
        link.ask_again(name, missing).await;
        let waiters = in_queue.max(link.waiters.count(name));
        let look_at = if waiters == 0 { reply.now } else { expires_at };
        let answer = Answer {
            outcome: Settled { waiters, look_at },
            now: reply.now,
        };
        Ok((answer, is_any_missing))
    }
}

fn lease(held: Answer<Result<Lease, NotHeld>>) -> Answer<Outcome> {
    Answer {
        outcome: Outcome::Lease(held.outcome),
        now: held.now,
    }
}

fn millis(ttl: Ttl) -> Value {
    ttl.as_duration().as_millis().to_string().into()
}
