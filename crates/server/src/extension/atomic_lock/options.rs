//! The options of a lock, checked.

use std::time::Duration as StdDuration;

use forrst_lock::{Attempt, LockKey, LockName, Owner, Ttl};
use forrst_protocol::{Duration, Errors, FunctionName};

use crate::error::internal_error;
use crate::fields::{Fields, boolean, one_of, parsed};
use crate::limits::Limits;

/// Whose callers share the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    Function,
    Global,
}

impl Scope {
    const WORDS: [(&'static str, Self); 2] =
        [("function", Self::Function), ("global", Self::Global)];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Function => "function",
            Self::Global => "global",
        }
    }
}

/// What a caller wants of a lock.
#[derive(Debug)]
pub(crate) struct LockOptions {
    pub(crate) key: LockKey,
    pub(crate) scope: Scope,
    pub(crate) name: LockName,
    pub(crate) owner: Owner,
    pub(crate) ttl: Ttl,
    /// As it was sent, and what it means.
    pub(crate) block: Option<(Duration, StdDuration)>,
    pub(crate) attempt: Option<Attempt>,
    pub(crate) auto_release: bool,
    pub(crate) renew: bool,
}

impl LockOptions {
    /// The options of the extension, for a call of `function`.
    pub(crate) fn read(
        mut fields: Fields,
        function: &FunctionName,
        limits: &Limits,
    ) -> Result<Self, Errors> {
        let key = fields.required("key", parsed(LockKey::parse));
        let (ttl, block) = read_ttl_and_block(&mut fields, limits);
        let scope = fields.optional("scope", one_of(&Scope::WORDS));
        let owner = fields.optional("owner", parsed(Owner::parse));
        let auto_release = fields.optional("auto_release", boolean);
        let renew = fields.optional("renew", boolean);
        let (key, ttl) = fields.finish_with(key.zip(ttl))?;
        let scope = scope.unwrap_or(Scope::Function);
        let name = match scope {
            Scope::Global => LockName::global(&key),
            Scope::Function => LockName::scoped(function.as_str(), &key)
                .map_err(|_| Errors::from(internal_error()))?,
        };
        Ok(Self {
            key,
            scope,
            name,
            owner: owner.unwrap_or_else(Owner::random),
            ttl,
            block,
            attempt: None,
            auto_release: auto_release.unwrap_or(true),
            renew: renew.unwrap_or(false),
        })
    }
}

/// `ttl`, which is needed, and `block`, which is not; both within the server's limits.
pub(crate) fn read_ttl_and_block(
    fields: &mut Fields,
    limits: &Limits,
) -> (Option<Ttl>, Option<(Duration, StdDuration)>) {
    let ttl = read_ttl(fields, limits);
    let block = fields.optional_duration("block");
    if let Some((_, wait)) = block
        && wait > limits.max_block
    {
        let max = Duration::from_std(limits.max_block);
        fields.refuse("block", format!("must be at most {max}"));
    }
    (ttl, block)
}

pub(crate) fn read_ttl(fields: &mut Fields, limits: &Limits) -> Option<Ttl> {
    let (_, time) = fields.required_duration("ttl")?;
    let ttl = Ttl::at_most(time, limits.max_ttl).ok();
    if ttl.is_none() {
        let max = Duration::from_std(limits.max_ttl);
        fields.refuse("ttl", format!("must be at most {max}"));
    }
    ttl
}
