//! `status`: whether a lock is held, and by whom.

use forrst_lock::LockName;
use forrst_protocol::RawObject;
use serde_json::json;

use super::{Prepared, arguments_of, call, check_lock, show, store_failed};
use crate::fields::parsed;

pub(super) fn prepare(arguments: &RawObject<'_>) -> Prepared {
    let mut fields = arguments_of(arguments);
    let key = fields.required("key", parsed(LockName::parse));
    let key = fields.finish_with(key)?;
    Ok(call(async move |context| {
        context.note_lock(&key);
        check_lock(&context, &key)?;
        let (status, now) = context
            .server
            .locks
            .inspect(&key)
            .await
            .map_err(|error| store_failed(&error))?;
        Ok(match status {
            Some(status) => show(&status, now, &context.call.caller, &context.server.secret),
            None => json!({"key": key.as_str(), "locked": false}),
        })
    }))
}
