//! `force-release`: an admin ends the leases on a key, whichever owner they have. Every one is recorded in the audit log before it is
//! done.

use forrst_lock::{Fence, Lease, LockName, NotHeld};
use forrst_protocol::{ErrorCode, ErrorObject, RawObject};
use serde_json::json;

use super::{
    ADMIN, Prepared, STORE_UNAVAILABLE, Spec, arguments_of, audited, check_lock, mutating_call,
    not_held, store_failed,
};
use crate::context::ServedCall;
use crate::fields::parsed;
use crate::limits::{Limits, Refusal};

pub(super) const SPEC: Spec = Spec {
    names: &["urn:cline:forrst:ext:atomic-lock:fn:force-release"],
    schema: "force-release",
    needs: ADMIN,
    is_cancellable: false,
    errors: &[
        (
            ErrorCode::Forbidden,
            "The caller is not an admin, or may not use every key of a lease",
        ),
        (ErrorCode::LockNotFound, "The lock is not held"),
        (
            ErrorCode::LockOwnershipMismatch,
            "It is held, but not by a lease with this fence",
        ),
        STORE_UNAVAILABLE,
    ],
    prepare,
};

fn prepare(arguments: &RawObject<'_>, _: &Limits) -> Prepared {
    let mut fields = arguments_of(arguments);
    let key = fields.required("key", parsed(LockName::parse));
    let fence = fields.optional("fence", parsed(str::parse::<Fence>));
    let key = fields.finish_with(key)?;
    Ok(mutating_call(async move |context| {
        context.note_locks([&key]);
        check_lock(&context, &key)?;
        let work = async {
            let leases = if context.call.caller.is_confined() {
                force_release_within_rights(&context, &key, fence).await?
            } else {
                force_release(&context, &key, fence).await?
            };
            leases.map_err(|why| not_forced(why, &key))
        };
        let leases = audited(&context, "force-release", &key, work).await?;
        for lease in &leases {
            context.server.held.ended(lease);
            tracing::info!(fence = %lease.fence, caller = context.caller_name(), "a lock was released by force");
        }
        Ok(json!({
            "released": true,
            "key": key.as_str(),
            "forced": true,
            "leases": leases.len(),
        }))
    }))
}

type Forced = Result<Vec<Lease>, NotHeld>;

async fn force_release(
    context: &ServedCall,
    key: &LockName,
    fences: impl IntoIterator<Item = Fence> + Send,
) -> Result<Forced, ErrorObject> {
    let forced = context.server.locks.force_release(key, fences).await;
    forced.map_err(|error| store_failed(&error))
}

/// For an admin that is confined to some locks: nothing ends unless the admin may use every key of every lease.
///
/// The leases are inspected first, and then ended by their fences in one step, so that only leases that were inspected end.
async fn force_release_within_rights(
    context: &ServedCall,
    key: &LockName,
    fence: Option<Fence>,
) -> Result<Forced, ErrorObject> {
    let status = context.server.locks.inspect(key).await;
    let (status, _) = status.map_err(|error| store_failed(&error))?;
    let is_target = |lease: &&Lease| fence.is_none_or(|fence| fence == lease.fence);
    let targets: Vec<&Lease> = status.holders.iter().filter(is_target).collect();
    let is_found = fence.is_some() && !targets.is_empty();
    if status.holder_count > status.holders.len() && !is_found {
        let message = format!(
            "{} leases hold this key: too many to check whether this caller may use all of their keys",
            status.holder_count
        );
        return Err(forbidden(context, key, &message));
    }
    let may_end = |lease: &&Lease| {
        let mut names = lease.locks.names();
        names.all(|name| context.call.caller.may_see(name))
    };
    // The message does not name the other keys, because this caller may not see them.
    if !targets.iter().all(may_end) {
        let message = "A lease on this key has other keys, too, which this caller may not use";
        return Err(forbidden(context, key, message));
    }
    if targets.is_empty() {
        // A force-release without fences would end what was granted since the inspection.
        return Ok(Err(match status.holder() {
            Some(_) => NotHeld::OwnedByAnother,
            None => NotHeld::NotFound,
        }));
    }
    let fences: Vec<Fence> = targets.iter().map(|lease| lease.fence).collect();
    force_release(context, key, fences).await
}

fn forbidden(context: &ServedCall, key: &LockName, message: &str) -> ErrorObject {
    context.server.metrics.refused(Refusal::Forbidden);
    ErrorObject::new(ErrorCode::Forbidden, message).with_detail("key", key.as_str())
}

fn not_forced(why: NotHeld, key: &LockName) -> ErrorObject {
    match why {
        NotHeld::OwnedByAnother => ErrorObject::new(
            ErrorCode::LockOwnershipMismatch,
            "The lock is held by a lease with another fence",
        )
        .with_detail("key", key.as_str()),
        why => not_held(why, key),
    }
}
