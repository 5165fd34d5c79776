//! A lock that was taken, as the server tells it.

use std::time::SystemTime;

use forrst_protocol::Response;
use serde::Deserialize;

use crate::{Fence, lock_options};

/// A lock that was taken: the server's words, which nothing here renews or releases.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct Held {
    /// The key that was asked for, in the form that the server compares.
    pub key: String,
    /// The name of the lock, by which it is released.
    pub full_key: String,
    /// The token that proves whose it is.
    pub owner: String,
    /// What a protected resource compares.
    pub fence: Fence,
    /// When it ends by the server's clock, which need not agree with this machine's.
    #[serde(deserialize_with = "crate::wire_time::deserialize")]
    pub expires_at: SystemTime,
}

impl Held {
    /// The lock that a call ran under, from the whole answer to it; none when it ran without, or did not get it.
    pub fn by_call(response: &Response) -> Option<Self> {
        response.extension(lock_options::URN)?.deserialize().ok()
    }
}
