//! `release`: an owner gives its lock back.

use forrst_lock::{Fence, LockName, Owner};
use forrst_protocol::RawObject;
use serde_json::json;

use super::{Prepared, act, arguments_of, audit_for_owner, check_lock, not_held, store_failed};
use crate::fields::parsed;

pub(super) fn prepare(arguments: &RawObject<'_>) -> Prepared {
    let mut fields = arguments_of(arguments);
    let key = fields.required("key", parsed(LockName::parse));
    let owner = fields.required("owner", parsed(Owner::parse));
    let fence = fields.optional("fence", parsed(str::parse::<Fence>));
    let (key, owner) = fields.finish_with(key.zip(owner))?;
    Ok(act(async move |context| {
        context.note_lock(&key);
        check_lock(&context, &key)?;
        let released = context.server.locks.release(&key, owner, fence).await;
        match released.map_err(|error| store_failed(&error))? {
            Ok(lease) => {
                context.server.held.ended(&lease);
                audit_for_owner(&context, "release", &lease).await;
                Ok(json!({"released": true, "key": key.as_str()}))
            }
            Err(why) => Err(not_held(why, &key)),
        }
    }))
}
