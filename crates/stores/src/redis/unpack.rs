//! Reads the values in the replies of the library: msgpack, from left to right, into the types of the model.

use forrst_lock::model::Obstacle;
use forrst_lock::{
    Caller, Fence, Lease, LockName, Locks, Note, Owner, Share, StoreError, Ticket, Timestamp,
};
use rmp::Marker;
use rmp::decode;

use super::keyspace::name_of;

/// A reply that does not have the format of this version of the library.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("cannot read the answer of Redis: `{0}` is missing or invalid")]
pub(super) struct BadReply(pub(super) &'static str);

impl From<BadReply> for StoreError {
    fn from(error: BadReply) -> Self {
        Self::MaybeDone(Box::new(error))
    }
}

/// Reads packed values from left to right.
pub(super) struct Unpacker<'a>(&'a [u8]);

impl<'a> Unpacker<'a> {
    pub(super) fn new(packed: &'a [u8]) -> Self {
        Self(packed)
    }

    pub(super) fn list(&mut self, what: &'static str) -> Result<usize, BadReply> {
        let length = decode::read_array_len(&mut self.0).map_err(|_| BadReply(what))?;
        usize::try_from(length).map_err(|_| BadReply(what))
    }

    pub(super) fn number(&mut self, what: &'static str) -> Result<u64, BadReply> {
        decode::read_int(&mut self.0).map_err(|_| BadReply(what))
    }

    pub(super) fn size(&mut self) -> Result<usize, BadReply> {
        usize::try_from(self.number("count")?).map_err(|_| BadReply("count"))
    }

    pub(super) fn time(&mut self) -> Result<Timestamp, BadReply> {
        self.number("time").map(Timestamp::from_millis)
    }

    pub(super) fn flag(&mut self) -> Result<bool, BadReply> {
        decode::read_bool(&mut self.0).map_err(|_| BadReply("flag"))
    }

    pub(super) fn bytes(&mut self, what: &'static str) -> Result<&'a [u8], BadReply> {
        let length = decode::read_str_len(&mut self.0).map_err(|_| BadReply(what))?;
        let length = usize::try_from(length).map_err(|_| BadReply(what))?;
        let (bytes, rest) = self.0.split_at_checked(length).ok_or(BadReply(what))?;
        self.0 = rest;
        Ok(bytes)
    }

    pub(super) fn text(&mut self, what: &'static str) -> Result<&'a str, BadReply> {
        std::str::from_utf8(self.bytes(what)?).map_err(|_| BadReply(what))
    }

    pub(super) fn ticket(&mut self) -> Result<Ticket, BadReply> {
        let bytes = self.bytes("ticket")?.try_into();
        let bytes = bytes.map_err(|_| BadReply("ticket"))?;
        Ok(Ticket(u128::from_be_bytes(bytes)))
    }

    /// The lock of a state key.
    pub(super) fn name(&mut self) -> Result<LockName, BadReply> {
        name_of(self.text("key")?).ok_or(BadReply("key"))
    }

    pub(super) fn names(&mut self) -> Result<Vec<LockName>, BadReply> {
        let count = self.list("keys")?;
        (0..count).map(|_| self.name()).collect()
    }

    pub(super) fn fence(&mut self) -> Result<Fence, BadReply> {
        Fence::new(self.number("fence")?).ok_or(BadReply("fence"))
    }

    pub(super) fn share(&mut self) -> Result<Share, BadReply> {
        let number: i64 = decode::read_int(&mut self.0).map_err(|_| BadReply("share"))?;
        match number {
            0 => Ok(Share::EXCLUSIVE),
            -1 => Ok(Share::SHARED),
            limit => {
                let limit = u32::try_from(limit).ok().and_then(Share::limit);
                limit.ok_or(BadReply("share"))
            }
        }
    }

    /// Whether `false` comes next, which stands for an absent list. If so, it is skipped.
    pub(super) fn skip_false(&mut self) -> bool {
        let is_false = self.0.first().map(|byte| Marker::from_u8(*byte)) == Some(Marker::False);
        if is_false {
            self.0 = &self.0[1..];
        }
        is_false
    }

    pub(super) fn owner(&mut self) -> Result<Owner, BadReply> {
        Owner::parse(self.text("owner")?).map_err(|_| BadReply("owner"))
    }

    pub(super) fn caller(&mut self) -> Result<Option<Caller>, BadReply> {
        match self.text("caller")? {
            "" => Ok(None),
            caller => Caller::parse(caller)
                .map(Some)
                .map_err(|_| BadReply("caller")),
        }
    }

    pub(super) fn note(&mut self) -> Result<Option<Note>, BadReply> {
        match self.text("note")? {
            "" => Ok(None),
            note => Note::parse(note).map(Some).map_err(|_| BadReply("note")),
        }
    }

    /// A lease on this lock, and possibly on others.
    pub(super) fn lease(&mut self, name: &LockName) -> Result<Lease, BadReply> {
        let mut lease = Unpacker(self.bytes("lease")?);
        lease.list("lease")?;
        lease.fields_of_lease(name)
    }

    fn fields_of_lease(&mut self, name: &LockName) -> Result<Lease, BadReply> {
        let fence = self.fence()?;
        let (acquired_at, expires_at) = (self.time()?, self.time()?);
        let (owner, caller, note) = (self.owner()?, self.caller()?, self.note()?);
        for what in ["attempt", "calls"] {
            self.bytes(what)?;
        }
        self.number("confirm")?;
        self.bytes("nodes")?;
        let set = match self.skip_false() {
            true => None,
            false => Some(self.set()?),
        };
        let share = self.share()?;
        let locks = set.unwrap_or_else(|| Locks::one(name.clone(), share));
        Ok(Lease {
            locks,
            owner,
            caller,
            note,
            fence,
            acquired_at,
            expires_at,
        })
    }

    fn set(&mut self) -> Result<Locks, BadReply> {
        let length = self.list("locks")?;
        let locks = (0..length / 2).map(|_| Ok((self.name()?, self.share()?)));
        let locks = locks.collect::<Result<_, BadReply>>()?;
        Locks::new(locks).map_err(|_| BadReply("locks"))
    }

    pub(super) fn obstacle(&mut self) -> Result<Obstacle, BadReply> {
        Ok(Obstacle {
            blocked_by: self.names()?,
            retry_at: self.time()?,
        })
    }

    /// Whether a boolean comes next.
    pub(super) fn is_at_flag(&self) -> bool {
        let marker = self.0.first().map(|byte| Marker::from_u8(*byte));
        matches!(marker, Some(Marker::True | Marker::False))
    }

    /// Whether the number 0 comes next. If so, it is skipped.
    pub(super) fn skip_zero(&mut self) -> bool {
        let is_zero = self.0.first() == Some(&0);
        if is_zero {
            self.0 = &self.0[1..];
        }
        is_zero
    }
}
