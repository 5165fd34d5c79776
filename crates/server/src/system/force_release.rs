//! `force-release`: an operator frees a lock, whoever's it is.

use forrst_lock::{Lease, LockName, NotHeld};
use forrst_protocol::{ErrorObject, RawObject};
use serde_json::json;

use super::{Prepared, arguments_of, call, check_lock, not_held, store_failed};
use crate::fields::parsed;
use crate::{AuditEntry, Context};

pub(super) fn prepare(arguments: &RawObject<'_>) -> Prepared {
    let mut fields = arguments_of(arguments);
    let key = fields.required("key", parsed(LockName::parse));
    let key = fields.finish_with(key)?;
    Ok(call(async move |context| {
        context.note_lock(&key);
        let lease = force_release(&context, &key).await;
        record(&context, &key, lease.as_ref());
        let lease = lease?;
        tracing::info!(fence = %lease.fence, caller = context.caller_name(), "a lock was released by force");
        Ok(json!({"released": true, "key": key.as_str(), "forced": true}))
    }))
}

async fn force_release(context: &Context, key: &LockName) -> Result<Lease, ErrorObject> {
    check_lock(context, key)?;
    let forced = context.server.locks.force_release(key).await;
    let lease = forced.map_err(|error| store_failed(&error))?;
    let lease = lease.ok_or_else(|| not_held(NotHeld::NotFound, key))?;
    context.server.held.ended(&lease);
    Ok(lease)
}

fn record(context: &Context, key: &LockName, lease: Result<&Lease, &ErrorObject>) {
    let ended = lease.ok();
    context.server.audit.record(&AuditEntry {
        who: context.caller_name(),
        act: "force-release",
        result: lease.err().map_or("OK", |error| error.code.as_str()),
        function: Some(context.function().as_str()),
        request: Some(context.request_id().as_str()),
        lock: Some(key.as_str()),
        holder: ended.map(|lease| lease.owner.as_str()),
        fence: ended.map(|lease| lease.fence.to_string()),
    });
}
