//! `acquire`: takes a lock for work that runs elsewhere.

use forrst_lock::{Attempt, LockKey, LockName, Owner};
use forrst_protocol::{FunctionName, RawObject};

use super::{Prepared, arguments_of, call, check_lock};
use crate::extension::atomic_lock::{
    LockOptions, Scope, acquire, acquired_data, read_ttl_and_block,
};
use crate::fields::parsed;
use crate::limits::Limits;

pub(super) fn prepare(arguments: &RawObject<'_>, limits: &Limits) -> Prepared {
    let mut fields = arguments_of(arguments);
    let key = fields.required("key", parsed(LockKey::parse));
    let (ttl, block) = read_ttl_and_block(&mut fields, limits);
    let owner = fields.optional("owner", parsed(Owner::parse));
    let function = fields.optional("function", parsed(FunctionName::parse));
    let attempt = fields.optional("attempt", parsed(Attempt::parse));
    let scope = match function {
        Some(_) => Scope::Function,
        None => Scope::Global,
    };
    let name = key.as_ref().and_then(|key| match &function {
        Some(function) => LockName::scoped(function.as_str(), key).ok(),
        None => Some(LockName::global(key)),
    });
    let (key, (ttl, name)) = fields.finish_with(key.zip(ttl.zip(name)))?;
    let options = LockOptions {
        key,
        scope,
        name,
        owner: owner.unwrap_or_else(Owner::random),
        ttl,
        block,
        attempt,
        auto_release: false,
        renew: false,
    };
    Ok(call(async move |context| {
        context.note_lock(&options.name);
        check_lock(&context, &options.name)?;
        let guard = acquire(&context, &options).await?;
        Ok(acquired_data(&options, &guard.keep()))
    }))
}
