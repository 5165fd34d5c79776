//! A lock that was acquired, as the server's answer describes it.

use std::time::{Duration, SystemTime};

use forrst_protocol::Response;
use serde::Deserialize;

use crate::{Fence, lock_options};

/// A lock that was acquired. Nothing here renews or releases it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "WireHeld")]
#[non_exhaustive]
pub struct Held {
    /// The keys that were requested, in that order and normalised by the server; more than one for a lock on several.
    pub keys: Vec<String>,
    /// Their full keys. The lock can be released by any of them.
    pub full_keys: Vec<String>,
    /// The owner token, which releases and extends it.
    pub owner: String,
    /// The fencing token, for the resource that the lock protects.
    pub fence: Fence,
    /// When it ends by the server's clock, which need not agree with this machine's.
    pub expires_at: SystemTime,
    /// How long the server had the request before it answered. A server with only the bare extension does not say.
    pub elapsed: Option<Duration>,
    /// What was left of the lease then. A server with only the bare extension does not say.
    pub ttl_remaining: Option<Duration>,
}

impl Held {
    /// The lock that a call ran under, from the answer to it. `None` if the call had no lock, or did not get it.
    pub fn from_response(response: &Response) -> Option<Self> {
        response.extension(lock_options::URN)?.deserialize().ok()
    }

    /// How long after the request was sent the lease ends at the earliest.
    pub(crate) fn span_from_request(&self) -> Option<Duration> {
        self.elapsed?.checked_add(self.ttl_remaining?)
    }

    /// The full key; the first that was requested, for a lock on several.
    pub fn full_key(&self) -> &str {
        self.full_keys.first().map_or("", String::as_str)
    }
}

#[derive(Deserialize)]
struct WireHeld {
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

impl TryFrom<WireHeld> for Held {
    type Error = &'static str;

    fn try_from(wire: WireHeld) -> Result<Self, Self::Error> {
        let one_or_all = |one: Option<String>, all: Option<Vec<String>>| {
            let keys = all.or_else(|| one.map(|key| vec![key]));
            keys.filter(|keys| !keys.is_empty())
        };
        let keys = one_or_all(wire.key, wire.keys).ok_or("the answer names no key")?;
        let full_keys = one_or_all(wire.full_key, wire.full_keys);
        Ok(Self {
            keys,
            full_keys: full_keys.ok_or("the answer names no full key")?,
            owner: wire.owner,
            fence: wire.fence,
            expires_at: wire.expires_at,
            elapsed: wire.elapsed_ms.map(Duration::from_millis),
            ttl_remaining: wire.ttl_remaining_ms.map(Duration::from_millis),
        })
    }
}
