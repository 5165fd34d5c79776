//! When a client has been silent for so long that it is asked whether it is there, or given up.

use std::time::Duration;

use tokio::time::Instant;

/// How long a client has said nothing.
pub(super) struct Silence {
    since: Instant,
    limit: Duration,
    /// Whether the client is asked, at half of the time, if it is there.
    pub(super) is_asked_about: bool,
    has_asked: bool,
}

/// What is to be done about a silent client.
pub(super) enum Silent {
    /// It is to be asked.
    ForLong,
    TooLong,
}

impl Silence {
    pub(super) fn new(limit: Duration, is_asked_about: bool) -> Self {
        Self {
            since: Instant::now(),
            limit,
            is_asked_about,
            has_asked: false,
        }
    }

    pub(super) fn ends(&mut self) {
        self.since = Instant::now();
        self.has_asked = false;
    }

    /// The client is being asked.
    pub(super) fn asked(&mut self) {
        self.has_asked = true;
    }

    pub(super) fn at(&self, now: Instant) -> Option<Silent> {
        if self.since + self.limit <= now {
            return Some(Silent::TooLong);
        }
        let asks = self.is_asked_about && !self.has_asked && self.since + self.limit / 2 <= now;
        asks.then_some(Silent::ForLong)
    }

    /// When to look again.
    pub(super) fn due(&self, now: Instant) -> Instant {
        let limit = match self.is_asked_about && !self.has_asked {
            true => self.limit / 2,
            false => self.limit,
        };
        // Where it is over and does not count for now, it may count in a while.
        (self.since + limit).max(now + self.limit / 8)
    }
}
