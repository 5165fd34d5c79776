//! The messages that nodes publish to each other: what one node's step means for another.
//!
//! They only save time: each is numbered, so a node notices a lost one, and queries Redis.

use forrst_lock::model::Wake;
use forrst_lock::{Fence, LockName, Ticket, Timestamp};

use super::unpack::{BadReply, Unpacker};

/// A message to this node.
#[derive(Debug)]
pub(super) struct NodeMessage {
    /// Counts the messages of a group to this node.
    pub(super) number: u64,
    pub(super) group_key: String,
    pub(super) notifications: Vec<Notification>,
}

/// What another node's step has changed for this one.
#[derive(Debug)]
pub(super) enum Notification {
    /// A call of this node was granted a lease, which it has to confirm.
    Granted(LockName, Ticket, Fence),
    /// A call of this node has left its queue.
    Woken(Ticket, Wake),
    /// A lease that was granted through this node has ended, or has another expiry.
    Ended(LockName, Fence),
    Changed(LockName, Fence, Timestamp),
}

impl Unpacker<'_> {
    /// The numbers of the kinds are those in `constants.lua`.
    pub(super) fn message(&mut self) -> Result<NodeMessage, BadReply> {
        self.list("message")?;
        let number = self.number("number")?;
        let group_key = self.text("group")?.to_owned();
        let count = self.list("notifications")?;
        let notifications = (0..count).map(|_| {
            self.list("notification")?;
            Ok(match self.number("kind")? {
                1 => {
                    let ticket = self.ticket()?;
                    Notification::Granted(self.name()?, ticket, self.fence()?)
                }
                5 => Notification::Ended(self.name()?, self.fence()?),
                6 => Notification::Changed(self.name()?, self.fence()?, self.time()?),
                kind => {
                    let ticket = self.ticket()?;
                    Notification::Woken(ticket, self.wake(kind)?)
                }
            })
        });
        let notifications = notifications.collect::<Result<_, BadReply>>()?;
        Ok(NodeMessage {
            number,
            group_key,
            notifications,
        })
    }

    /// How a call without a lease has left its queue.
    pub(super) fn wake(&mut self, kind: u64) -> Result<Wake, BadReply> {
        Ok(match kind {
            2 => Wake::TimedOut(self.obstacle()?),
            3 => Wake::Withdrawn,
            4 => Wake::FencesExhausted,
            _ => return Err(BadReply("kind")),
        })
    }
}
