//! `force-release`: an operator ends the lease of any owner.

use forrst_lock::{Fence, Lease, LockName, NotHeld};
use forrst_protocol::{ErrorCode, ErrorObject, RawObject};
use serde_json::json;

use super::{Prepared, act, arguments_of, audited, check_lock, not_held, store_failed};
use crate::Context;
use crate::fields::parsed;

pub(super) fn prepare(arguments: &RawObject<'_>) -> Prepared {
    let mut fields = arguments_of(arguments);
    let key = fields.required("key", parsed(LockName::parse));
    let fence = fields.optional("fence", parsed(str::parse::<Fence>));
    let key = fields.finish_with(key)?;
    Ok(act(async move |context| {
        context.note_lock(&key);
        check_lock(&context, &key)?;
        let work = force_release(&context, &key, fence);
        let lease = audited(&context, "force-release", &key, work).await?;
        tracing::info!(fence = %lease.fence, caller = context.caller_name(), "a lock was released by force");
        Ok(json!({"released": true, "key": key.as_str(), "forced": true}))
    }))
}

async fn force_release(
    context: &Context,
    key: &LockName,
    fence: Option<Fence>,
) -> Result<Lease, ErrorObject> {
    let forced = context.server.locks.force_release(key, fence).await;
    let forced = forced.map_err(|error| store_failed(&error))?;
    let lease = forced.map_err(|why| match why {
        NotHeld::OwnedByAnother => ErrorObject::new(
            ErrorCode::LockOwnershipMismatch,
            "The lock is held by a lease with another fence",
        )
        .with_detail("key", key.as_str()),
        why => not_held(why, key),
    })?;
    context.server.held.ended(&lease);
    Ok(lease)
}
