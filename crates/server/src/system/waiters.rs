//! `waiters`: the queue of a lock, in its order, with the time since when each call waits.

use forrst_lock::{LockName, Waiter};
use forrst_protocol::RawObject;
use serde_json::{Value, json};

use super::{
    DEFAULT_LIMIT, MAX_LIMIT, OBSERVER, Party, Prepared, STORE_UNAVAILABLE, Spec, arguments_of,
    call, check_lock, store_failed,
};
use crate::context::ServedCall;
use crate::fields::{at_most, parsed};
use crate::limits::Limits;
use crate::time::timestamp;

pub(super) const SPEC: Spec = Spec {
    names: &["urn:cline:forrst:ext:atomic-lock:fn:waiters"],
    schema: "waiters",
    needs: OBSERVER,
    is_cancellable: false,
    errors: &[STORE_UNAVAILABLE],
    prepare,
};

fn prepare(arguments: &RawObject<'_>, _: &Limits) -> Prepared {
    let mut fields = arguments_of(arguments);
    let key = fields.required("key", parsed(LockName::parse));
    let limit = fields.optional("limit", at_most(MAX_LIMIT));
    let key = fields.finish_with(key)?;
    Ok(call(async move |context| {
        context.note_locks([&key]);
        check_lock(&context, &key)?;
        let limit = limit.unwrap_or(DEFAULT_LIMIT);
        let queue = context.server.locks.queue(&key, limit).await;
        let (queue, _) = queue.map_err(|error| store_failed(&error))?;
        let waiters = (1..).zip(&queue);
        let waiters = waiters.map(|(position, waiter)| show(position, waiter, &context));
        let waiters: Vec<Value> = waiters.collect();
        Ok(json!({"key": key.as_str(), "waiters": waiters}))
    }))
}

fn show(position: usize, waiter: &Waiter, context: &ServedCall) -> Value {
    let party = Party {
        owner: &waiter.owner,
        caller: waiter.caller.as_ref(),
        note: waiter.note.as_ref(),
        // It may wait for a set, and the queue of one key does not have the other keys.
        may_use_all_keys: !context.call.caller.is_confined(),
    };
    let mut shown = party.show(context);
    let mut add = |name: &str, value: Value| shown.insert(name.to_owned(), value);
    add("position", position.into());
    add("since", timestamp(waiter.since).into());
    add("until", timestamp(waiter.until).into());
    shown.into()
}
