//! `withdraw`: rolls back an attempt whose answer the caller did not get, whether it waits, holds the lock or never arrived.

use std::time::Duration;

use forrst_lock::model::Withdrawn;
use forrst_lock::{Attempt, LockName, Owner, StoreError};
use forrst_protocol::{ErrorCode, ErrorObject, RawObject};
use serde_json::json;

use super::{
    HOLDER, Prepared, STORE_UNAVAILABLE, Spec, arguments_of, audit_for_owner, check_lock,
    mutating_call, store_failed,
};
use crate::error::arguments_pointer;
use crate::extension::millis;
use crate::fields::parsed;
use crate::limits::{Limits, Refusal};

pub(super) const SPEC: Spec = Spec {
    names: &["urn:cline:forrst:ext:atomic-lock:fn:withdraw"],
    schema: "withdraw",
    needs: HOLDER,
    is_cancellable: false,
    errors: &[
        (
            ErrorCode::RateLimited,
            "Too many attempts were withdrawn within the last minute",
        ),
        (
            ErrorCode::InvalidArguments,
            "The store cannot withdraw attempts",
        ),
        STORE_UNAVAILABLE,
    ],
    prepare,
};

/// A withdrawal is remembered for a minute, so at an even rate some expire every second.
const RETRY_AFTER: Duration = Duration::from_secs(1);

fn prepare(arguments: &RawObject<'_>, _: &Limits) -> Prepared {
    let mut fields = arguments_of(arguments);
    let key = fields.required("key", parsed(LockName::parse));
    let owner = fields.required("owner", parsed(Owner::parse));
    let attempt = fields.required("attempt", parsed(Attempt::parse));
    let (key, (owner, attempt)) = fields.finish_with(key.zip(owner.zip(attempt)))?;
    Ok(mutating_call(async move |context| {
        context.note_locks([&key]);
        check_lock(&context, &key)?;
        let withdrawn = context.server.locks.withdraw(&key, owner, attempt).await;
        let withdrawn = withdrawn.map_err(|error| match &error {
            StoreError::Unsupported(_) => {
                store_failed(&error).at(arguments_pointer().key("attempt"))
            }
            _ => store_failed(&error),
        })?;
        let was = match withdrawn {
            Withdrawn::Held(lease) => {
                context.server.held.ended(&lease);
                audit_for_owner(&context, "withdraw", &lease).await;
                "held"
            }
            Withdrawn::Waiting => "waiting",
            Withdrawn::Unknown => "unknown",
            Withdrawn::TooMany => {
                context.server.metrics.refused(Refusal::Withdrawals);
                let message = "Too many attempts were withdrawn within the last minute";
                let error = ErrorObject::new(ErrorCode::RateLimited, message);
                return Err(error.with_detail("retry_after", json!(millis(RETRY_AFTER))));
            }
        };
        Ok(json!({"withdrawn": true, "key": key.as_str(), "was": was}))
    }))
}
