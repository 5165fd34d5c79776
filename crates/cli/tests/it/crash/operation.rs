//! The requests of callers and their outcomes.

use std::time::Duration;

use crate::crash::lease::Span;
use forrst_testkit::Shown;

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Action {
    Acquire {
        ttl: Duration,
        block: Option<Duration>,
        attempt: Option<String>,
    },
    /// A locked call that keeps its lock.
    Hold {
        ttl: Duration,
    },
    /// A locked call that releases its lock.
    Call {
        ttl: Duration,
    },
    Release {
        fence: u64,
    },
    Extend {
        fence: u64,
        ttl: Duration,
    },
    ForceRelease,
    Status,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Outcome {
    Granted(Shown),
    /// Another owner holds the lock.
    Refused,
    Released,
    Extended {
        expires_at: u64,
    },
    /// The lease has ended.
    Gone {
        code: String,
    },
    /// What a status shows.
    Held {
        shown: Shown,
        acquired_at: u64,
    },
    Free,
    /// The server was killed before it answered. The request may have been carried out or not.
    Unanswered,
}

/// One request and its outcome.
#[derive(Debug, Clone)]
pub(crate) struct Operation {
    pub(crate) caller: usize,
    /// Which start of the server was asked.
    pub(crate) start: usize,
    /// Which of the locks.
    pub(crate) lock: usize,
    pub(crate) owner: String,
    pub(crate) action: Action,
    /// From when it was sent until it was answered, or until the server was dead.
    pub(crate) span: Span,
    pub(crate) outcome: Outcome,
}

impl Operation {
    /// The ttl of a request for a lease.
    pub(crate) fn ttl(&self) -> Option<Duration> {
        match self.action {
            Action::Acquire { ttl, .. } | Action::Hold { ttl } | Action::Call { ttl } => Some(ttl),
            _ => None,
        }
    }

    pub(crate) fn is_unanswered(&self) -> bool {
        self.outcome == Outcome::Unanswered
    }
}
