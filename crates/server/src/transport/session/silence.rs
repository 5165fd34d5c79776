//! The idle timeout of a session: a silent client gets a ping at half of the time, and is disconnected at its end.

use std::time::Duration;

use tokio::time::Instant;

/// How long a client has sent nothing.
pub(super) struct Silence {
    since: Instant,
    limit: Duration,
    /// Whether the client gets a ping at half of the limit.
    pub(super) sends_pings: bool,
    has_pinged: bool,
}

/// What is due for a silent client.
pub(super) enum IdleAction {
    Ping,
    Close,
}

impl Silence {
    pub(super) fn new(limit: Duration, sends_pings: bool) -> Self {
        Self {
            since: Instant::now(),
            limit,
            sends_pings,
            has_pinged: false,
        }
    }

    pub(super) fn ends(&mut self) {
        self.since = Instant::now();
        self.has_pinged = false;
    }

    /// A ping was sent.
    pub(super) fn pinged(&mut self) {
        self.has_pinged = true;
    }

    pub(super) fn at(&self, now: Instant) -> Option<IdleAction> {
        if self.since + self.limit <= now {
            return Some(IdleAction::Close);
        }
        let is_due = self.sends_pings && !self.has_pinged && self.since + self.limit / 2 <= now;
        is_due.then_some(IdleAction::Ping)
    }

    /// When to check again.
    pub(super) fn due(&self, now: Instant) -> Instant {
        let limit = match self.sends_pings && !self.has_pinged {
            true => self.limit / 2,
            false => self.limit,
        };
        // A client that is overdue may be exempt for now, while its calls run or it is not read from. It is checked again later.
        (self.since + limit).max(now + self.limit / 8)
    }
}
