//! Acquires locks for work that runs in this process.
//!
//! An acquisition may take several requests, some of whose answers get lost. The server recognises them by owner and attempt, so
//! that together they result in one lease. An acquisition that is given up is withdrawn.

mod lost_answers;
mod withdrawal;

use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;
use tracing::Instrument;

use self::lost_answers::LostAnswers;
use self::withdrawal::Withdrawal;
use crate::clock::Moment;
use crate::keys::{Keys, RequestedKind};
use crate::locks::ACQUIRE;
use crate::tries::{Repeat, Tries};
use crate::wait::{Wait, is_contended};
use crate::wire_duration::millis;
use crate::{Client, DEFAULT_TTL, Error, Held, Lease, Retry};

/// The acquisition of a lock, which [`acquire`](Self::acquire) or [`hold`](Self::hold) starts.
///
/// It is also retried when an answer was lost: the server recognises it by its owner and attempt, and returns the lease that
/// it has granted already.
#[must_use = "nothing is locked until it is acquired"]
#[derive(Debug, Clone)]
pub struct Acquire {
    client: Client,
    keys: Keys,
    function: Option<String>,
    owner: Option<String>,
    note: Option<String>,
    attempt: Option<String>,
    ttl: Duration,
    wait: Option<Duration>,
    deadline: Option<Duration>,
    retry: Retry,
}

/// A lock that the server granted.
pub(crate) struct Grant {
    pub(crate) held: Held,
    /// Just before the first request that may have been granted was sent: the lease began no earlier.
    pub(crate) since: Moment,
    /// Just before the request that was answered was sent.
    pub(crate) sent: Moment,
}

impl Acquire {
    pub(crate) fn new(client: Client, keys: Keys) -> Self {
        Self {
            retry: client.retry().clone(),
            client,
            keys,
            function: None,
            owner: None,
            note: None,
            attempt: None,
            ttl: DEFAULT_TTL,
            wait: None,
            deadline: None,
        }
    }

    /// Holds the lock together with other shared leases, but never beside an exclusive one. With several keys, this applies to
    /// those that have no kind of their own.
    pub fn shared(mut self) -> Self {
        self.keys.kind = RequestedKind::SHARED;
        self
    }

    /// Lets at most `limit` leases hold the lock at once: a counting semaphore. All of them have to name the same limit.
    pub fn limit(mut self, limit: u32) -> Self {
        self.keys.kind = RequestedKind::limit(limit);
        self
    }

    /// Who or what holds the lock, for people who inspect it. It must not contain secrets.
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.note = Some(note.into());
        self
    }

    /// How long the lease lasts after each renewal; 30 seconds by default.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// How long to wait in the queue when another client holds the lock. By default, it does not wait.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = Some(wait);
        self
    }

    /// Takes the lock that callers of this function share (`lock:{function}:{key}`) instead of the global one (`lock:{key}`).
    pub fn function(mut self, function: impl Into<String>) -> Self {
        self.function = Some(function.into());
        self
    }

    /// The token that the lock is released with; random by default.
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.owner = Some(owner.into());
        self
    }

    /// Names this acquisition, so that it can be repeated after a crash: the same owner with the same attempt gets the same
    /// lease, not a second one. Random by default, which is enough for the retries of this client.
    pub fn attempt(mut self, attempt: impl Into<String>) -> Self {
        self.attempt = Some(attempt.into());
        self
    }

    /// How long the acquisition may take, retries and pauses included. The server receives what is left, and ends the wait then.
    pub fn deadline(mut self, time: Duration) -> Self {
        self.deadline = Some(time);
        self
    }

    /// How the acquisition is retried.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    /// Takes the lock and keeps it by renewing it, until the lease is released or dropped.
    ///
    /// Dropped while it waits, it leaves the queue, and releases a lock that was granted at that moment.
    ///
    /// # Errors
    ///
    /// [`Error::Contended`] and [`Error::TimedOut`] when another client holds it; [`Error::Lost`] when the lease had ended before
    /// its grant was known here.
    pub async fn acquire(self) -> Result<Lease, Error> {
        let (client, ttl) = (self.client.clone(), self.ttl);
        let grant = self.granted().await?;
        Lease::begin(client, grant, ttl).await
    }

    /// Takes the lock, and neither renews nor releases it: it ends when it expires, or by
    /// [`Locks::release`](crate::Locks::release).
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn hold(self) -> Result<Held, Error> {
        self.granted().await.map(|grant| grant.held)
    }

    async fn granted(self) -> Result<Grant, Error> {
        let random = || uuid::Uuid::new_v4().to_string();
        let is_owner_unique = self.owner.is_none();
        let arguments = Arguments {
            keys: self.keys,
            function: self.function,
            owner: self.owner.unwrap_or_else(random),
            note: self.note,
            attempt: self.attempt.unwrap_or_else(random),
            ttl: millis(self.ttl),
            block: None,
        };
        let deadline = self
            .deadline
            .and_then(|time| Instant::now().checked_add(time));
        let span = tracing::info_span!("forrst.acquire", attempt = arguments.attempt);
        let withdrawal =
            Withdrawal::unarmed(self.client.clone(), arguments.clone(), is_owner_unique);
        let acquisition = Acquisition {
            client: self.client,
            arguments,
            deadline,
            tries: Tries::start(self.retry, Repeat::Always, deadline),
            wait: Wait::start(self.wait),
            lost_answers: LostAnswers::default(),
            withdrawal,
        };
        acquisition.run().instrument(span).await
    }
}

/// An acquisition under way.
struct Acquisition {
    client: Client,
    arguments: Arguments,
    deadline: Option<Instant>,
    tries: Tries,
    wait: Wait,
    lost_answers: LostAnswers,
    withdrawal: Withdrawal,
}

impl Acquisition {
    async fn run(mut self) -> Result<Grant, Error> {
        loop {
            let error = match self.ask().await {
                Ok(grant) => return Ok(grant),
                Err(error) => error,
            };
            let was_contended = is_contended(&error);
            self.tries.last_until(self.wait.end());
            self.tries.after(error).await?;
            if was_contended {
                self.wait.restart();
            }
        }
    }

    async fn ask(&mut self) -> Result<Grant, Error> {
        self.arguments.block = self.wait.left().map(millis);
        let patience = self.client.patience(self.deadline, self.wait.left());
        let sent = Moment::now();
        // If the caller stops waiting from here on, the answer does not arrive.
        self.withdrawal.arm();
        let answer = self.client.ask_once(ACQUIRE, &self.arguments, patience);
        let answer = answer.await;
        let since = self.lost_answers.since.unwrap_or(sent);
        self.lost_answers = match &answer {
            Ok(_) => LostAnswers::default(),
            Err(error) => self.lost_answers.after(sent, error),
        };
        if !self.lost_answers.may_be_granted {
            self.withdrawal.disarm();
        }
        let held = answer?;
        Ok(Grant { held, since, sent })
    }
}

/// The arguments of the function `acquire`.
#[derive(Debug, Clone, Serialize)]
struct Arguments {
    #[serde(flatten)]
    keys: Keys,
    #[serde(skip_serializing_if = "Option::is_none")]
    function: Option<String>,
    owner: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
    attempt: String,
    ttl: forrst_protocol::Duration,
    #[serde(skip_serializing_if = "Option::is_none")]
    block: Option<forrst_protocol::Duration>,
}

impl Arguments {
    /// The full key of its first key, as servers derive it.
    fn full_key(&self) -> String {
        let key = self.keys.first();
        match &self.function {
            Some(function) => format!("lock:{function}:{key}"),
            None => format!("lock:{key}"),
        }
    }
}
