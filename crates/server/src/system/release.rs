//! `release`: an owner ends its lease.

use forrst_protocol::RawObject;
use serde_json::json;

use super::{
    HOLDER, NOT_HELD, Prepared, Spec, arguments_of, audit_for_owner, check_lock, mutating_call,
    not_held, read_held, store_failed,
};
use crate::limits::Limits;

pub(super) const SPEC: Spec = Spec {
    names: &["urn:cline:forrst:ext:atomic-lock:fn:release"],
    schema: "release",
    needs: HOLDER,
    is_cancellable: false,
    errors: NOT_HELD,
    prepare,
};

fn prepare(arguments: &RawObject<'_>, _: &Limits) -> Prepared {
    let mut fields = arguments_of(arguments);
    let held = read_held(&mut fields);
    let held = fields.finish_with(held)?;
    Ok(mutating_call(async move |context| {
        let key = held.name.clone();
        context.note_locks([&key]);
        check_lock(&context, &key)?;
        let released = context.server.locks.release(held).await;
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
