//! The lock that a function runs under: the options of the atomicLock extension.

use std::time::Duration;

use forrst_protocol::{ExtensionRequest, RawObject, Urn};
use serde::Serialize;

use crate::keys::{Keys, RequestedKind};
use crate::wire_duration::millis;
use crate::{Error, Key};

/// The URN of the atomicLock extension in requests and answers.
pub(crate) const URN: &str = "urn:forrst:ext:atomicLock";

/// The lock that a function runs under. Without the lock, the function does not run.
///
/// ```
/// use std::time::Duration;
/// use forrst_client::Lock;
///
/// let lock = Lock::key("user:123").ttl(Duration::from_secs(30)).wait(Duration::from_secs(5));
/// ```
#[derive(Debug, Clone)]
pub struct Lock {
    keys: Keys,
    ttl: Duration,
    wait: Option<Duration>,
    is_global: bool,
    owner: Option<String>,
    note: Option<String>,
    is_kept: bool,
    is_renewed: bool,
}

impl Lock {
    /// The lock that callers of the same function share under this key, for 30 seconds and without waiting.
    pub fn key(key: impl Into<String>) -> Self {
        Self::with_keys(Keys::one(key.into()))
    }

    /// A lock on 2 to 16 keys: all of them or none, in one step. No order of the keys can deadlock.
    ///
    /// ```
    /// use forrst_client::{Key, Lock};
    ///
    /// let transfer = Lock::keys(["account:1", "account:2"]);
    /// let report = Lock::keys([Key::new("report").exclusive(), Key::new("accounts")]).shared();
    /// ```
    pub fn keys<K: Into<Key>>(keys: impl IntoIterator<Item = K>) -> Self {
        Self::with_keys(Keys::several(keys))
    }

    fn with_keys(keys: Keys) -> Self {
        Self {
            keys,
            ttl: crate::DEFAULT_TTL,
            wait: None,
            is_global: false,
            owner: None,
            note: None,
            is_kept: false,
            is_renewed: false,
        }
    }

    /// Holds the lock together with other shared leases, but never beside an exclusive one. With several keys, this applies to
    /// those that have no kind of their own.
    #[must_use]
    pub fn shared(mut self) -> Self {
        self.keys.kind = RequestedKind::SHARED;
        self
    }

    /// Lets at most `limit` leases hold the lock at once: a counting semaphore. All of them have to name the same limit.
    #[must_use]
    pub fn limit(mut self, limit: u32) -> Self {
        self.keys.kind = RequestedKind::limit(limit);
        self
    }

    /// Who or what holds the lock, for people who inspect it. It must not contain secrets.
    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.note = Some(note.into());
        self
    }

    /// How long the lock is held at most, unless it is renewed; 30 seconds by default.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// How long to wait in the queue when another client holds the lock. By default, it does not wait.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = Some(wait);
        self
    }

    /// Shares the lock with the callers of all functions.
    #[must_use]
    pub fn global(mut self) -> Self {
        self.is_global = true;
        self
    }

    /// The token that the lock is released with; random by default.
    #[must_use]
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.owner = Some(owner.into());
        self
    }

    /// Keeps the lock after the function has ended, until its owner releases it or it expires.
    #[must_use]
    pub fn keep(mut self) -> Self {
        self.is_kept = true;
        self
    }

    /// Lets the server extend the lock while the function runs.
    #[must_use]
    pub fn renew(mut self) -> Self {
        self.is_renewed = true;
        self
    }

    pub(crate) fn wait_time(&self) -> Option<Duration> {
        self.wait
    }

    /// The extension of the request, with what is left of the wait.
    pub(crate) fn extension(
        &self,
        wait: Option<Duration>,
    ) -> Result<ExtensionRequest<'static>, Error> {
        let options = Options {
            keys: &self.keys,
            ttl: millis(self.ttl),
            block: wait.map(millis),
            scope: if self.is_global { "global" } else { "function" },
            owner: self.owner.as_deref(),
            note: self.note.as_deref(),
            auto_release: !self.is_kept,
            renew: self.is_renewed,
        };
        let options = RawObject::from_serialize(&options);
        let options = options.map_err(|why| Error::InvalidRequest(why.into()))?;
        let urn = Urn::parse(URN).map_err(|why| Error::InvalidRequest(why.into()))?;
        Ok(ExtensionRequest::new(urn).with_options(options))
    }
}

#[derive(Serialize)]
struct Options<'a> {
    #[serde(flatten)]
    keys: &'a Keys,
    ttl: forrst_protocol::Duration,
    #[serde(skip_serializing_if = "Option::is_none")]
    block: Option<forrst_protocol::Duration>,
    scope: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<&'a str>,
    auto_release: bool,
    renew: bool,
}
