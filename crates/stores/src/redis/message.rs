//! The messages that nodes publish to each other: what one node's step means for another.

use forrst_lock::model::Wake;
use forrst_lock::{Fence, LockName, Ticket, Timestamp};

use super::unpack::{BadReply, Unpacker};

/// One message to this node.
#[derive(Debug)]
pub(super) struct Message {
    /// Counted for each node and lane.
    pub(super) number: u64,
    pub(super) lane_key: String,
    pub(super) news: Vec<News>,
}

/// What another node's step means for this one.
#[derive(Debug)]
pub(super) enum News {
    /// A call of this node was granted a lease, which it has to confirm.
    Granted(LockName, Ticket, Fence),
    /// A call of this node has left its queue.
    Woken(Ticket, Wake),
    /// A lease that was granted through this node has ended, or has another end.
    Ended(LockName, Fence),
    Changed(LockName, Fence, Timestamp),
}

impl Unpacker<'_> {
    pub(super) fn message(&mut self) -> Result<Message, BadReply> {
        self.list("message")?;
        let number = self.number("number")?;
        let lane_key = self.text("lane")?.to_owned();
        let count = self.list("news")?;
        let news = (0..count).map(|_| {
            self.list("news")?;
            Ok(match self.number("kind")? {
                1 => {
                    let ticket = self.ticket()?;
                    News::Granted(self.name()?, ticket, self.fence()?)
                }
                5 => News::Ended(self.name()?, self.fence()?),
                6 => News::Changed(self.name()?, self.fence()?, self.time()?),
                kind => {
                    let ticket = self.ticket()?;
                    News::Woken(ticket, self.wake(kind)?)
                }
            })
        });
        let news = news.collect::<Result<_, BadReply>>()?;
        Ok(Message {
            number,
            lane_key,
            news,
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
