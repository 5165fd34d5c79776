//! A lock that was taken, as the server tells it.

use std::time::{Duration, SystemTime};

use forrst_protocol::Response;
use serde::Deserialize;

use crate::{Fence, lock_options};

/// A lock that was taken: the server's words, which nothing here renews or releases.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Granted")]
#[non_exhaustive]
pub struct Held {
    /// The keys that were asked for, in that order and in the form that the server compares; one, unless it is a lock on several.
    pub keys: Vec<String>,
    /// Their full names, by any one of which it is released.
    pub full_keys: Vec<String>,
    /// The token that proves whose it is.
    pub owner: String,
    /// What a protected resource compares.
    pub fence: Fence,
    /// When it ends by the server's clock, which need not agree with this machine's.
    pub expires_at: SystemTime,
    /// How long the server had the request, before it answered. A server of the bare extension does not say.
    pub elapsed: Option<Duration>,
    /// What was left of the lease then. A server of the bare extension does not say.
    pub ttl_remaining: Option<Duration>,
}

impl Held {
    /// The lock that a call ran under, from the whole answer to it; none when it ran without, or did not get it.
    pub fn by_call(response: &Response) -> Option<Self> {
        response.extension(lock_options::URN)?.deserialize().ok()
    }

    /// So long after the request was sent the lease may end at the earliest.
    pub(crate) fn span_from_request(&self) -> Option<Duration> {
        self.elapsed?.checked_add(self.ttl_remaining?)
    }

    /// The full key; of a lock on several, the first that was asked for.
    pub fn full_key(&self) -> &str {
        self.full_keys.first().map_or("", String::as_str)
    }
}

/// As it is on the wire.
#[derive(Deserialize)]
struct Granted {
    key: Option<String>,
    keys: Option<Vec<String>>,
    full_key: Option<String>,
    full_keys: Option<Vec<String>>,
    owner: String,
    fence: Fence,
    #[serde(deserialize_with = "crate::wire_time::deserialize")]
    expires_at: SystemTime,
    ttl_remaining_ms: Option<u64>,
    elapsed_ms: Option<u64>,
}

impl TryFrom<Granted> for Held {
    type Error = &'static str;

    fn try_from(granted: Granted) -> Result<Self, Self::Error> {
        let one_or_all = |one: Option<String>, all: Option<Vec<String>>| {
            let keys = all.or_else(|| one.map(|key| vec![key]));
            keys.filter(|keys| !keys.is_empty())
        };
        let keys = one_or_all(granted.key, granted.keys).ok_or("the answer names no key")?;
        let full_keys = one_or_all(granted.full_key, granted.full_keys);
        Ok(Self {
            keys,
            full_keys: full_keys.ok_or("the answer names no full key")?,
            owner: granted.owner,
            fence: granted.fence,
            expires_at: granted.expires_at,
            elapsed: granted.elapsed_ms.map(Duration::from_millis),
            ttl_remaining: granted.ttl_remaining_ms.map(Duration::from_millis),
        })
    }
}
