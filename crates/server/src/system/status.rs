//! `status`: whether a lock is held, as which kind, and by which holders.

use forrst_lock::{Kind, Lease, LockName, LockStatus, Timestamp};
use forrst_protocol::RawObject;
use serde_json::{Map, Value, json};

use super::{
    OBSERVER, Party, Prepared, STORE_UNAVAILABLE, Spec, arguments_of, call, check_lock,
    store_failed,
};
use crate::context::ServedCall;
use crate::fields::parsed;
use crate::limits::Limits;
use crate::time::timestamp;

pub(super) const SPEC: Spec = Spec {
    names: &["urn:cline:forrst:ext:atomic-lock:fn:status"],
    schema: "status",
    needs: OBSERVER,
    is_cancellable: false,
    errors: &[STORE_UNAVAILABLE],
    prepare,
};

fn prepare(arguments: &RawObject<'_>, _: &Limits) -> Prepared {
    let mut fields = arguments_of(arguments);
    let key = fields.required("key", parsed(LockName::parse));
    let key = fields.finish_with(key)?;
    Ok(call(async move |context| {
        context.note_locks([&key]);
        check_lock(&context, &key)?;
        let status = context.server.locks.inspect(&key).await;
        let (status, now) = status.map_err(|error| store_failed(&error))?;
        Ok(show(&status, now, &context))
    }))
}

/// A lock as `status` and `list` show it.
pub(super) fn show(status: &LockStatus, now: Timestamp, context: &ServedCall) -> Value {
    let Some(first) = status.holder() else {
        return json!({
            "key": status.name.as_str(),
            "locked": false,
            "waiters": status.waiters,
        });
    };
    let holder = |lease| show_holder(lease, now, context);
    let mut shown = holder(first);
    // Each holder has its own set of keys.
    shown.remove("full_keys");
    let mut add = |name: &str, value: Value| shown.insert(name.to_owned(), value);
    add("key", status.name.as_str().into());
    add("locked", true.into());
    match status.kind {
        Some(Kind::Exclusive) => add("mode", "exclusive".into()),
        Some(Kind::Shared) => add("mode", "shared".into()),
        Some(Kind::Limit(limit)) => add("limit", limit.into()),
        None => None,
    };
    if let Some(available) = status.available() {
        add("available", available.into());
    }
    add("holders", status.holders.iter().map(holder).collect());
    add("holder_count", status.holder_count.into());
    add("waiters", status.waiters.into());
    shown.into()
}

fn show_holder(lease: &Lease, now: Timestamp, context: &ServedCall) -> Map<String, Value> {
    let left = lease.expires_at.remaining(now).as_millis();
    let left = u64::try_from(left).unwrap_or(u64::MAX);
    let names = lease.locks.names();
    let visible: Vec<&LockName> = names
        .filter(|name| context.call.caller.may_see(name))
        .collect();
    let party = Party {
        owner: &lease.owner,
        caller: lease.caller.as_ref(),
        note: lease.note.as_ref(),
        may_use_all_keys: visible.len() == lease.locks.names().len(),
    };
    let mut shown = party.show(context);
    let mut add = |name: &str, value: Value| shown.insert(name.to_owned(), value);
    add("acquired_at", timestamp(lease.acquired_at).into());
    add("expires_at", timestamp(lease.expires_at).into());
    add("ttl_remaining", left.div_ceil(1000).into());
    add("ttl_remaining_ms", left.into());
    add("fence", lease.fence.to_string().into());
    if lease.locks.is_set() {
        add(
            "full_keys",
            visible.into_iter().map(LockName::as_str).collect(),
        );
    }
    shown
}
