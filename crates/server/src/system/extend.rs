//! `extend`: gives an owner's lease a new ttl.

use forrst_protocol::RawObject;
use serde_json::json;

use super::{
    HOLDER, NOT_HELD, Prepared, Spec, arguments_of, audit_for_owner, check_lock, mutating_call,
    not_held, read_held, store_failed,
};
use crate::extension::atomic_lock::read_ttl;
use crate::limits::Limits;
use crate::time::timestamp;

pub(super) const SPEC: Spec = Spec {
    names: &["urn:cline:forrst:ext:atomic-lock:fn:extend"],
    schema: "extend",
    needs: HOLDER,
    is_cancellable: false,
    errors: NOT_HELD,
    prepare,
};

fn prepare(arguments: &RawObject<'_>, limits: &Limits) -> Prepared {
    let mut fields = arguments_of(arguments);
    let held = read_held(&mut fields);
    let ttl = read_ttl(&mut fields, limits);
    let (held, ttl) = fields.finish_with(held.zip(ttl))?;
    Ok(mutating_call(async move |context| {
        let key = held.name.clone();
        context.note_locks([&key]);
        check_lock(&context, &key)?;
        let extended = context.server.locks.extend(held, ttl).await;
        match extended.map_err(|error| store_failed(&error))? {
            Ok(lease) => {
                context.server.held.set_remaining(&lease, ttl.as_duration());
                audit_for_owner(&context, "extend", &lease).await;
                Ok(json!({
                    "key": key.as_str(),
                    "extended": true,
                    "expires_at": timestamp(lease.expires_at),
                    "fence": lease.fence.to_string(),
                }))
            }
            Err(why) => Err(not_held(why, &key)),
        }
    }))
}
