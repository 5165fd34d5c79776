//! `force-release`: an operator frees a lock, whoever's it is.

use forrst_lock::{LockName, NotHeld};
use forrst_protocol::RawObject;
use serde_json::json;

use super::{Prepared, arguments_of, call, not_held, store_failed};
use crate::fields::parsed;

pub(super) fn prepare(arguments: &RawObject<'_>) -> Prepared {
    let mut fields = arguments_of(arguments);
    let key = fields.required("key", parsed(LockName::parse));
    let key = fields.finish_with(key)?;
    Ok(call(async move |context| {
        let forced = context.server.locks.force_release(&key).await;
        match forced.map_err(|error| store_failed(&error))? {
            Some(lease) => {
                tracing::info!(fence = %lease.fence, "a lock was released by force");
                Ok(json!({"released": true, "key": key.as_str(), "forced": true}))
            }
            None => Err(not_held(NotHeld::NotFound, &key)),
        }
    }))
}
