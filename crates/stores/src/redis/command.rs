//! The commands of the function library: the steps of the model, and two that only this store has.
//!
//! Each is packed as a list of values in msgpack, the first of which is the number of the command.

use forrst_lock::model::{Acquire, Claim, Command, LeaseRef, Wait};
use forrst_lock::{Attempt, Caller, Fence, Kind, LockName, Note, Share, Ticket};
use rmp::encode;

/// One command, as the library runs it.
#[derive(Debug, Clone)]
pub(super) enum LibraryCommand {
    /// A step of the model.
    Step(Command),
    /// Queries the state of some calls of this node that wait for a lock.
    CheckWaiters {
        name: LockName,
        tickets: Vec<Ticket>,
        /// Whether to settle the lock first, as [`Command::Settle`] does.
        settles: bool,
    },
    /// The heartbeat of this node.
    Heartbeat,
}

impl LibraryCommand {
    /// The locks that it names.
    pub(super) fn names(&self) -> Vec<LockName> {
        match self {
            Self::Step(command) => command.names().cloned().collect(),
            Self::CheckWaiters { name, .. } => vec![name.clone()],
            Self::Heartbeat => Vec::new(),
        }
    }

    /// Whether it runs on a server that is full: all commands but acquires free memory, or need little.
    pub(super) fn runs_when_full(&self) -> bool {
        !matches!(self, Self::Step(Command::Acquire(_)))
    }

    /// `tombstone_millis` is the lifetime of the tombstone of a call that was abandoned before it arrived.
    pub(super) fn pack(&self, tombstone_millis: u64) -> Vec<u8> {
        let mut packed = Packer::default();
        match self {
            Self::Step(Command::Acquire(acquire)) => pack_acquire(&mut packed, acquire),
            Self::Step(Command::Abandon { ticket, .. }) => {
                packed.number(2).ticket(*ticket).number(tombstone_millis);
            }
            Self::Step(Command::Release(held)) => {
                packed.number(3).held(held);
            }
            Self::Step(Command::Extend(held, ttl)) => {
                let ttl = millis(ttl.as_duration());
                packed.number(4).held(held).number(ttl);
            }
            Self::Step(Command::ForceRelease { fences, .. }) => {
                packed.number(5).list(fences.len());
                for fence in fences {
                    packed.number(fence.number());
                }
            }
            Self::Step(Command::Withdraw { owner, attempt, .. }) => {
                let (owner, attempt) = (owner.as_str(), attempt.as_str());
                packed.number(6).text(owner).text(attempt);
            }
            Self::Step(Command::Confirm { fence, .. }) => {
                packed.number(7).number(fence.number());
            }
            Self::Step(Command::Settle(_)) => {
                packed.number(8).list(0).flag(true);
            }
            Self::CheckWaiters {
                tickets, settles, ..
            } => {
                packed.number(8).list(tickets.len());
                for ticket in tickets {
                    packed.ticket(*ticket);
                }
                packed.flag(*settles);
            }
            Self::Heartbeat => {
                packed.number(9);
            }
        }
        packed.0
    }
}

fn pack_acquire(packed: &mut Packer, acquire: &Acquire) {
    let Acquire {
        claim,
        ticket,
        wait,
        ..
    } = acquire;
    let Claim {
        locks,
        owner,
        caller,
        note,
        attempt,
        ttl,
    } = claim;
    packed
        .number(1)
        .ticket(*ticket)
        .text(owner.as_str())
        .text(caller.as_ref().map_or("", Caller::as_str))
        .text(note.as_ref().map_or("", Note::as_str))
        .text(attempt.as_ref().map_or("", Attempt::as_str))
        .number(millis(ttl.as_duration()));
    match locks.as_slice() {
        [(_, share)] => packed.share(*share),
        several => {
            packed.list(several.len());
            for (_, share) in several {
                packed.share(*share);
            }
        }
    }
    let rejoin = match wait {
        Some(Wait {
            timeout,
            max_queue,
            rejoin,
        }) => {
            packed.number(millis(*timeout)).number(*max_queue as u64);
            rejoin.as_ref()
        }
        None => {
            packed.signed(-1).number(0);
            None
        }
    };
    match rejoin {
        Some((position, until)) => packed
            .number(position.arrival)
            .ticket(position.ticket)
            .number(until.as_millis()),
        None => packed.number(0).text("").number(0),
    };
}

pub(super) fn millis(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Writes msgpack to memory, which cannot fail.
#[derive(Debug, Default)]
pub(super) struct Packer(pub(super) Vec<u8>);

impl Packer {
    pub(super) fn list(&mut self, length: usize) -> &mut Self {
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        let _ = encode::write_array_len(&mut self.0, length);
        self
    }

    pub(super) fn number(&mut self, number: u64) -> &mut Self {
        let _ = encode::write_uint(&mut self.0, number);
        self
    }

    fn signed(&mut self, number: i64) -> &mut Self {
        let _ = encode::write_sint(&mut self.0, number);
        self
    }

    pub(super) fn flag(&mut self, flag: bool) -> &mut Self {
        let _ = encode::write_bool(&mut self.0, flag);
        self
    }

    pub(super) fn text(&mut self, text: &str) -> &mut Self {
        let _ = encode::write_str(&mut self.0, text);
        self
    }

    /// As a string: Lua does not distinguish strings from bytes.
    fn ticket(&mut self, ticket: Ticket) -> &mut Self {
        let bytes = ticket.0.to_be_bytes();
        let _ = encode::write_str_len(&mut self.0, 16);
        self.0.extend_from_slice(&bytes);
        self
    }

    fn held(&mut self, held: &LeaseRef) -> &mut Self {
        let fence = held.fence.map_or(0, Fence::number);
        self.text(held.owner.as_str()).number(fence)
    }

    fn share(&mut self, share: Share) {
        match share.kind() {
            Kind::Exclusive => self.number(0),
            Kind::Shared => self.signed(-1),
            Kind::Limit(limit) => self.number(limit.into()),
        };
    }
}
