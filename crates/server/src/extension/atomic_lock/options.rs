//! The options of a lock, checked.

use std::time::Duration as StdDuration;

use forrst_lock::{Attempt, Note, Owner, Ttl};
use forrst_protocol::{Duration, Errors, FunctionName, Pointer};
use serde_json::Value;

use super::keys::{AskedKeys, NamedKeys};
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
    pub(crate) keys: NamedKeys,
    pub(crate) scope: Scope,
    pub(crate) owner: Owner,
    pub(crate) note: Option<Note>,
    pub(crate) ttl: Ttl,
    /// As it was sent, and what it means.
    pub(crate) block: Option<(Duration, StdDuration)>,
    pub(crate) attempt: Option<Attempt>,
    pub(crate) auto_release: bool,
    pub(crate) renew: bool,
    /// Where they stand in the request.
    pub(crate) at: Pointer,
}

impl LockOptions {
    /// The options of the extension, for a call of `function`.
    pub(crate) fn read(
        mut fields: Fields,
        function: &FunctionName,
        limits: &Limits,
    ) -> Result<Self, Errors> {
        let at = fields.pointer().clone();
        let common = Common::read(&mut fields, limits);
        let scope = fields.optional("scope", one_of(&Scope::WORDS));
        let auto_release = fields.optional("auto_release", boolean);
        let renew = fields.optional("renew", boolean);
        let common = fields.finish_with(common)?;
        let scope = scope.unwrap_or(Scope::Function);
        let function = match scope {
            Scope::Function => Some(function),
            Scope::Global => None,
        };
        Ok(Self {
            keys: common.keys.named(function)?,
            scope,
            owner: common.owner,
            note: common.note,
            ttl: common.ttl,
            block: common.block,
            attempt: None,
            auto_release: auto_release.unwrap_or(true),
            renew: renew.unwrap_or(false),
            at,
        })
    }

    /// The arguments of `acquire`.
    pub(crate) fn read_arguments(mut fields: Fields, limits: &Limits) -> Result<Self, Errors> {
        let at = fields.pointer().clone();
        let common = Common::read(&mut fields, limits);
        let function = fields.optional("function", parsed(FunctionName::parse));
        let attempt = fields.optional("attempt", parsed(Attempt::parse));
        let common = fields.finish_with(common)?;
        let scope = match function {
            Some(_) => Scope::Function,
            None => Scope::Global,
        };
        Ok(Self {
            keys: common.keys.named(function.as_ref())?,
            scope,
            owner: common.owner,
            note: common.note,
            ttl: common.ttl,
            block: common.block,
            attempt,
            auto_release: false,
            renew: false,
            at,
        })
    }
}

/// What the extension and `acquire` have in common.
struct Common {
    keys: AskedKeys,
    owner: Owner,
    note: Option<Note>,
    ttl: Ttl,
    block: Option<(Duration, StdDuration)>,
}

impl Common {
    fn read(fields: &mut Fields, limits: &Limits) -> Option<Self> {
        let keys = AskedKeys::read(fields);
        let ttl = read_ttl(fields, limits);
        let block = read_block(fields, limits);
        let owner = fields.optional("owner", parsed(Owner::parse));
        let note = fields.optional("note", note).flatten();
        Some(Self {
            keys: keys?,
            owner: owner.unwrap_or_else(Owner::random),
            note,
            ttl: ttl?,
            block,
        })
    }
}

/// An empty note is none.
fn note(value: &Value) -> Result<Option<Note>, String> {
    match value.as_str() {
        Some("") => Ok(None),
        _ => parsed(Note::parse)(value).map(Some),
    }
}

/// `block`, within the server's limit.
fn read_block(fields: &mut Fields, limits: &Limits) -> Option<(Duration, StdDuration)> {
    let block = fields.optional_duration("block");
    if let Some((_, wait)) = block
        && wait > limits.max_block
    {
        let max = Duration::from_std(limits.max_block);
        fields.refuse("block", format!("must be at most {max}"));
    }
    block
}

/// `ttl`, which is needed, within the server's limit.
pub(crate) fn read_ttl(fields: &mut Fields, limits: &Limits) -> Option<Ttl> {
    let (_, time) = fields.required_duration("ttl")?;
    let ttl = Ttl::at_most(time, limits.max_ttl).ok();
    if ttl.is_none() {
        let max = Duration::from_std(limits.max_ttl);
        fields.refuse("ttl", format!("must be at most {max}"));
    }
    ttl
}
