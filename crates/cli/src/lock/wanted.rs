//! As what kind a lock is taken, and what else is said about it.

use std::time::Duration;

use clap::Args;
use forrst_client::{Acquire, Client};
use serde_json::Value;

use super::check_own_key;
use crate::error::CommandError;
use crate::time;

/// What `forrst run` and `forrst lock acquire` have in common.
#[derive(Args)]
pub(crate) struct Wanted {
    /// Hold it together with others that take it as shared, but never beside one that does not
    #[arg(long, conflicts_with = "limit")]
    shared: bool,

    /// Let at most so many hold it at once; all of them have to name the same limit
    #[arg(long, value_name = "COUNT")]
    limit: Option<u32>,

    /// What it is held for, shown to people who look at it; not a secret
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,

    /// How long to wait while it is held [default: not at all]
    #[arg(long, value_name = "DURATION", value_parser = time::parse)]
    block: Option<Duration>,

    /// The token that it is released by [default: a random one]
    #[arg(long, value_name = "TOKEN")]
    owner: Option<String>,

    /// Take the lock that callers of this function share; without it, the global one
    #[arg(long, value_name = "FUNCTION")]
    pub(crate) function: Option<String>,
}

impl Wanted {
    /// `mode` or `limit`, as the server echoes it.
    pub(crate) fn echo_kind(&self, data: &mut Value) {
        if self.shared {
            data["mode"] = "shared".into();
        }
        if let Some(limit) = self.limit {
            data["limit"] = limit.into();
        }
    }

    /// Refuses keys that cannot be meant.
    pub(crate) fn check(&self, keys: &[String]) -> Result<(), CommandError> {
        let function = self.function.as_deref();
        keys.iter().try_for_each(|key| check_own_key(key, function))
    }

    /// The lock on these keys, at least one of them: on one alone, or on all of them at once.
    pub(crate) fn lock(&self, client: &Client, keys: &[String], ttl: Duration) -> Acquire {
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
