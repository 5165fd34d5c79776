//! `extend`: an owner needs its lock for longer.

use forrst_lock::{Fence, LockName, Owner};
use forrst_protocol::RawObject;
use serde_json::json;

use super::{Prepared, act, arguments_of, audit_for_owner, check_lock, not_held, store_failed};
use crate::extension::atomic_lock::read_ttl;
use crate::fields::parsed;
use crate::limits::Limits;
use crate::time::timestamp;

pub(super) fn prepare(arguments: &RawObject<'_>, limits: &Limits) -> Prepared {
    let mut fields = arguments_of(arguments);
    let key = fields.required("key", parsed(LockName::parse));
    let owner = fields.required("owner", parsed(Owner::parse));
    let ttl = read_ttl(&mut fields, limits);
    let fence = fields.optional("fence", parsed(str::parse::<Fence>));
    let (key, (owner, ttl)) = fields.finish_with(key.zip(owner.zip(ttl)))?;
    Ok(act(async move |context| {
        context.note_lock(&key);
        check_lock(&context, &key)?;
        let extended = context.server.locks.extend(&key, owner, fence, ttl).await;
        match extended.map_err(|error| store_failed(&error))? {
            Ok(lease) => {
                context.server.held.lasts(&lease, ttl.as_duration());
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
