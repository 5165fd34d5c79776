//! What a caller asks, and what it hears.

use std::time::Duration;

use crate::crash::lease::Span;
use forrst_testkit::Shown;

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Ask {
    Acquire {
        ttl: Duration,
        block: Option<Duration>,
        attempt: Option<String>,
    },
    /// A locked call that keeps its lock.
    Hold {
        ttl: Duration,
    },
    /// A locked call that gives its lock back.
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
    /// Somebody else has it.
    Refused,
    Released,
    Extended {
        expires_at: u64,
    },
    /// There is no such lease.
    Gone {
        code: String,
    },
    /// What a status shows.
    Held {
        shown: Shown,
        acquired_at: u64,
    },
    Free,
    /// The server was killed before it answered. It may have happened or not.
    Unanswered,
}

/// One request, and what came of it.
#[derive(Debug, Clone)]
pub(crate) struct Operation {
    pub(crate) caller: usize,
    /// Which start of the server was asked.
    pub(crate) start: usize,
    /// Which of the locks.
    pub(crate) lock: usize,
    pub(crate) owner: String,
    pub(crate) ask: Ask,
    /// From when it was sent until it was answered, or until the server was gone.
    pub(crate) span: Span,
    pub(crate) outcome: Outcome,
}

impl Operation {
    /// The ttl of a request for a lease.
    pub(crate) fn ttl(&self) -> Option<Duration> {
        match self.ask {
            Ask::Acquire { ttl, .. } | Ask::Hold { ttl } | Ask::Call { ttl } => Some(ttl),
            _ => None,
        }
    }

    pub(crate) fn is_unanswered(&self) -> bool {
        self.outcome == Outcome::Unanswered
    }
}
