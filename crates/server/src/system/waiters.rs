//! `waiters`: who waits for a lock, and since when.

use forrst_lock::LockName;
use forrst_protocol::RawObject;
use serde_json::{Value, json};

use super::{Prepared, arguments_of, call, check_lock, store_failed};
use crate::fields::{at_most, parsed};
use crate::time::timestamp;

const DEFAULT_LIMIT: usize = 100;
const MAX_LIMIT: usize = 1000;

pub(super) fn prepare(arguments: &RawObject<'_>) -> Prepared {
    let mut fields = arguments_of(arguments);
    let key = fields.required("key", parsed(LockName::parse));
    let limit = fields.optional("limit", at_most(MAX_LIMIT));
    let key = fields.finish_with(key)?;
    Ok(call(async move |context| {
        context.note_lock(&key);
        check_lock(&context, &key)?;
        let caller = &context.call.caller;
        let secret = &context.server.secret;
        let limit = limit.unwrap_or(DEFAULT_LIMIT);
        let queue = context.server.locks.queue(&key, limit).await;
        let (queue, _) = queue.map_err(|error| store_failed(&error))?;
        let waiters: Vec<Value> = queue
            .iter()
            .map(|waiting| {
                let mut shown = json!({
                    "owner": caller.sees_owner(&waiting.owner, waiting.caller.as_ref(), secret),
                    "since": timestamp(waiting.since),
                    "until": timestamp(waiting.until),
                });
                if let Some(caller) = &waiting.caller {
                    shown["caller"] = caller.as_str().into();
                }
                shown
            })
            .collect();
        Ok(json!({"key": key.as_str(), "waiters": waiters}))
    }))
}
