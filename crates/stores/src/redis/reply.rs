//! What scripts answer.

use std::vec;

use forrst_lock::model::{Abandoned, Acquired, End, Obstacle, Position, Transition, Wake};
use forrst_lock::{
    Caller, Fence, Lease, LockName, Locks, NotHeld, Note, Owner, StoreError, Ticket, Timestamp,
    Waiter,
};
use fred::types::Value;

use super::keyspace::ticket_from;

/// An answer that no script of ours gives.
#[derive(Debug, thiserror::Error)]
#[error("Redis gave an answer that makes no sense: {0} is missing or wrong")]
pub(super) struct BadReply(&'static str);

impl From<BadReply> for StoreError {
    fn from(error: BadReply) -> Self {
        Self::MaybeDone(Box::new(error))
    }
}

/// The parts of an answer, from left to right.
#[derive(Debug)]
pub(super) struct Parts(vec::IntoIter<Value>);

impl Parts {
    pub(super) fn of(value: Value) -> Self {
        Self(match value {
            Value::Array(parts) => parts.into_iter(),
            _ => Vec::new().into_iter(),
        })
    }

    pub(super) fn text(&mut self, what: &'static str) -> Result<String, BadReply> {
        let part = self.0.next().and_then(Value::into_string);
        part.ok_or(BadReply(what))
    }

    pub(super) fn number(&mut self, what: &'static str) -> Result<u64, BadReply> {
        self.text(what)?.parse().map_err(|_| BadReply(what))
    }

    pub(super) fn time(&mut self) -> Result<Timestamp, BadReply> {
        self.number("time").map(Timestamp::from_millis)
    }

    fn optional_time(&mut self) -> Result<Option<Timestamp>, BadReply> {
        match self.text("time")?.as_str() {
            "" => Ok(None),
            time => match time.parse() {
                Ok(millis) => Ok(Some(Timestamp::from_millis(millis))),
                Err(_) => Err(BadReply("time")),
            },
        }
    }

    pub(super) fn size(&mut self) -> Result<usize, BadReply> {
        let count = self.number("count")?;
        usize::try_from(count).map_err(|_| BadReply("count"))
    }

    pub(super) fn parts(&mut self) -> Self {
        Self::of(self.0.next().unwrap_or(Value::Null))
    }

    pub(super) fn ticket(&mut self) -> Result<Ticket, BadReply> {
        ticket_from(&self.text("ticket")?).ok_or(BadReply("ticket"))
    }

    fn owner(&mut self) -> Result<Owner, BadReply> {
        Owner::parse(&self.text("owner")?).map_err(|_| BadReply("owner"))
    }

    fn caller(&mut self) -> Result<Option<Caller>, BadReply> {
        match self.text("caller")?.as_str() {
            "" => Ok(None),
            caller => Caller::parse(caller)
                .map(Some)
                .map_err(|_| BadReply("caller")),
        }
    }

    fn note(&mut self) -> Result<Option<Note>, BadReply> {
        match self.text("note")?.as_str() {
            "" => Ok(None),
            note => Note::parse(note).map(Some).map_err(|_| BadReply("note")),
        }
    }

    pub(super) fn lease(&mut self, name: &LockName) -> Result<Lease, BadReply> {
        Ok(Lease {
            locks: Locks::exclusive(name.clone()),
            owner: self.owner()?,
            caller: self.caller()?,
            note: self.note()?,
            fence: Fence::new(self.number("fence")?).ok_or(BadReply("fence"))?,
            acquired_at: self.time()?,
            expires_at: self.time()?,
        })
    }

    pub(super) fn waiter(&mut self) -> Result<Waiter, BadReply> {
        Ok(Waiter {
            owner: self.owner()?,
            caller: self.caller()?,
            note: self.note()?,
            since: self.time()?,
            until: self.time()?,
        })
    }

    /// What the step has done to a lease.
    pub(super) fn transition(&mut self, name: &LockName) -> Result<Transition, BadReply> {
        let kind = self.text("kind")?;
        let (time, waited_since) = (self.optional_time()?, self.optional_time()?);
        let lease = self.lease(name)?;
        let cause = match kind.as_str() {
            "granted" => {
                return Ok(Transition::Granted {
                    lease,
                    waited_since,
                    confirm_by: time,
                });
            }
            "confirmed" => {
                let confirm_by = time.ok_or(BadReply("time"))?;
                return Ok(Transition::Confirmed { lease, confirm_by });
            }
            "extended" => {
                let before = time.ok_or(BadReply("time"))?;
                return Ok(Transition::Extended { lease, before });
            }
            "released" => End::Released,
            "forced" => End::Forced,
            "expired" => End::Expired,
            "abandoned" => End::Abandoned,
            "unconfirmed" => End::Unconfirmed,
            _ => return Err(BadReply("kind")),
        };
        let due = time.ok_or(BadReply("time"))?;
        Ok(Transition::Ended { lease, cause, due })
    }

    /// What one waiter is to hear.
    pub(super) fn news(&mut self, name: &LockName) -> Result<(Ticket, Wake), BadReply> {
        let ticket = self.ticket()?;
        let wake = match self.text("kind")?.as_str() {
            "granted" => Wake::Granted(self.lease(name)?),
            "timed_out" => Wake::TimedOut(soon(name)),
            "exhausted" => Wake::FencesExhausted,
            _ => return Err(BadReply("kind")),
        };
        Ok((ticket, wake))
    }

    /// What came of asking for a lock; none when the call was abandoned before it arrived.
    pub(super) fn acquired(
        &mut self,
        name: &LockName,
        ticket: Ticket,
    ) -> Result<Option<Acquired>, BadReply> {
        Ok(Some(match self.text("outcome")?.as_str() {
            "granted" => Acquired::Granted(self.lease(name)?),
            "held" => Acquired::Held(self.obstacle(name)?),
            "full" => Acquired::QueueFull(self.obstacle(name)?),
            "queued" => {
                let obstacle = self.obstacle(name)?;
                let arrival = self.number("position")?;
                Acquired::Queued {
                    obstacle,
                    position: Position { arrival, ticket },
                    until: self.time()?,
                }
            }
            "timed_out" => Acquired::TimedOut,
            "exhausted" => Acquired::FencesExhausted,
            "undone" => return Ok(None),
            _ => return Err(BadReply("outcome")),
        }))
    }

    fn obstacle(&mut self, name: &LockName) -> Result<Obstacle, BadReply> {
        Ok(Obstacle {
            blocked_by: vec![name.clone()],
            look_at: self.time()?,
        })
    }

    pub(super) fn abandoned(&mut self, name: &LockName) -> Result<Abandoned, BadReply> {
        Ok(match self.text("outcome")?.as_str() {
            "returned" => Abandoned::Returned(self.lease(name)?),
            "left_queue" => Abandoned::LeftQueue(self.obstacle(name)?),
            "nothing" => Abandoned::Nothing,
            _ => return Err(BadReply("outcome")),
        })
    }

    /// A lease, or why there was none to act on.
    pub(super) fn held(&mut self, name: &LockName) -> Result<Result<Lease, NotHeld>, BadReply> {
        Ok(Err(match self.text("outcome")?.as_str() {
            "done" => return self.lease(name).map(Ok),
            "not_found" => NotHeld::NotFound,
            "already_released" => NotHeld::AlreadyReleased { forced: false },
            "taken_away" => NotHeld::AlreadyReleased { forced: true },
            "owned_by_another" => NotHeld::OwnedByAnother,
            _ => return Err(BadReply("outcome")),
        }))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.as_slice().is_empty()
    }
}

/// Each part as the parts that it has itself.
impl Iterator for Parts {
    type Item = Value;

    fn next(&mut self) -> Option<Value> {
        self.0.next()
    }
}

/// A call that left the queue is not told for how long the lock is held: asking again soon is never too late.
pub(super) fn soon(name: &LockName) -> Obstacle {
    Obstacle {
        blocked_by: vec![name.clone()],
        look_at: Timestamp::from_millis(0),
    }
}
