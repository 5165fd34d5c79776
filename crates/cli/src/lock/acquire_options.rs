//! The options of an acquisition.

use std::time::Duration;

use clap::Args;
use forrst_client::{Acquire, Client};
use serde_json::Value;

use super::refuse_full_key;
use crate::error::CommandError;
use crate::time;

/// The options that `forrst run` and `forrst lock acquire` share.
#[derive(Args)]
pub(crate) struct AcquireOptions {
    /// Take a shared lock: others that use --shared can hold it at the same time
    #[arg(long, conflicts_with = "limit")]
    shared: bool,

    /// Let at most COUNT leases hold it at once; all of them have to name the same limit
    #[arg(long, value_name = "COUNT")]
    limit: Option<u32>,

    /// What the lock is held for, shown to people who inspect it; must not contain secrets
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,

    /// How long to wait while another client holds it [default: not at all]
    #[arg(long, value_name = "DURATION", value_parser = time::parse)]
    block: Option<Duration>,

    /// The token that releases it [default: a random one]
    #[arg(long, value_name = "TOKEN")]
    owner: Option<String>,

    /// Take the lock that callers of this function share, instead of the global one
    #[arg(long, value_name = "FUNCTION")]
    pub(crate) function: Option<String>,
}

impl AcquireOptions {
    /// `mode` or `limit`, as the server echoes it.
    pub(crate) fn echo_kind(&self, data: &mut Value) {
        if self.shared {
            data["mode"] = "shared".into();
        }
        if let Some(limit) = self.limit {
            data["limit"] = limit.into();
        }
    }

    /// Refuses full keys.
    pub(crate) fn check(&self, keys: &[String]) -> Result<(), CommandError> {
        let function = self.function.as_deref();
        keys.iter()
            .try_for_each(|key| refuse_full_key(key, function))
    }

    /// The acquisition of a lock on one key, or on all of several.
    pub(crate) fn acquire(&self, client: &Client, keys: &[String], ttl: Duration) -> Acquire {
        let lock = match keys {
            [key] => client.lock(key),
            keys => client.lock_all(keys),
        };
        let mut lock = lock.ttl(ttl);
        if self.shared {
            lock = lock.shared();
        }
        if let Some(limit) = self.limit {
            lock = lock.limit(limit);
        }
        if let Some(note) = &self.note {
            lock = lock.note(note);
        }
        if let Some(block) = self.block {
            lock = lock.wait(block);
        }
        if let Some(owner) = &self.owner {
            lock = lock.owner(owner);
        }
        if let Some(function) = &self.function {
            lock = lock.function(function);
        }
        lock
    }
}
