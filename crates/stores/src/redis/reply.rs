//! What scripts answer.

use std::vec;

use forrst_lock::{
    Caller, Fence, Lease, LockName, NotHeld, Owner, StoreError, Ticket, Timestamp, Wake,
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

    pub(super) fn parts(&mut self) -> Self {
        Self::of(self.0.next().unwrap_or(Value::Null))
    }

    pub(super) fn ticket(&mut self) -> Result<Ticket, BadReply> {
        ticket_from(&self.text("ticket")?).ok_or(BadReply("ticket"))
    }

    pub(super) fn owner(&mut self) -> Result<Owner, BadReply> {
        Owner::parse(&self.text("owner")?).map_err(|_| BadReply("owner"))
    }

    pub(super) fn caller(&mut self) -> Result<Option<Caller>, BadReply> {
        match self.text("caller")?.as_str() {
            "" => Ok(None),
            caller => Caller::parse(caller)
                .map(Some)
                .map_err(|_| BadReply("caller")),
        }
    }

    pub(super) fn lease(&mut self, name: &LockName) -> Result<Lease, BadReply> {
        let owner = self.owner()?;
        let caller = self.caller()?;
        let fence = Fence::new(self.number("fence")?).ok_or(BadReply("fence"))?;
        Ok(Lease {
            name: name.clone(),
            owner,
            caller,
            fence,
            acquired_at: self.time()?,
            expires_at: self.time()?,
        })
    }

    /// What one waiter is to hear.
    pub(super) fn news(&mut self, name: &LockName) -> Result<(Ticket, Wake), BadReply> {
        let ticket = self.ticket()?;
        let wake = match self.text("kind")?.as_str() {
            "granted" => Wake::Granted(self.lease(name)?),
            "timed_out" => Wake::TimedOut,
            "superseded" => Wake::Superseded,
            "exhausted" => Wake::FencesExhausted,
            _ => return Err(BadReply("kind")),
        };
        Ok((ticket, wake))
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
