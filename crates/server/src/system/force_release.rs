//! `force-release`: an operator frees a lock, whoever's it is.

use forrst_lock::{Lease, LockName, NotHeld};
use forrst_protocol::{ErrorObject, RawObject};
use serde_json::json;

use super::{Prepared, act, arguments_of, audit, check_lock, not_held, store_failed};
use crate::Context;
use crate::fields::parsed;

pub(super) fn prepare(arguments: &RawObject<'_>) -> Prepared {
    let mut fields = arguments_of(arguments);
    let key = fields.required("key", parsed(LockName::parse));
    let key = fields.finish_with(key)?;
    Ok(act(async move |context| {
        context.note_lock(&key);
        check_lock(&context, &key)?;
        let lease = force_release(&context, &key).await;
        audit(&context, "force-release", &key, lease.as_ref());
        let lease = lease?;
        tracing::info!(fence = %lease.fence, caller = context.caller_name(), "a lock was released by force");
        Ok(json!({"released": true, "key": key.as_str(), "forced": true}))
    }))
}

async fn force_release(context: &Context, key: &LockName) -> Result<Lease, ErrorObject> {
    let forced = context.server.locks.force_release(key).await;
    let lease = forced.map_err(|error| store_failed(&error))?;
    let lease = lease.ok_or_else(|| not_held(NotHeld::NotFound, key))?;
    context.server.held.ended(&lease);
    Ok(lease)
}
