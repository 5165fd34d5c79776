//! `acquire`: takes a lock for work that runs outside the server.

use forrst_protocol::{ErrorCode, RawObject};

use super::{CALLER, Prepared, STORE_UNAVAILABLE, Spec, call};
use crate::context::ServedCall;
use crate::extension::atomic_lock::{LeaseTimes, LockOptions, acquire, acquired_data};
use crate::extension::cancelled_call;
use crate::limits::{Limits, Refusal};

pub(super) const SPEC: Spec = Spec {
    names: &["urn:cline:forrst:ext:atomic-lock:fn:acquire"],
    schema: "acquire",
    needs: CALLER,
    is_cancellable: true,
    errors: &[
        (
            ErrorCode::LockAcquisitionFailed,
            "It is held, and the caller does not wait",
        ),
        (
            ErrorCode::LockTimeout,
            "It was held for as long as the caller wanted to wait",
        ),
        (
            ErrorCode::LockAlreadyReleased,
            "The attempt was withdrawn before",
        ),
        (
            ErrorCode::InvalidArguments,
            "The attempt was made before with other keys or kinds, or the store does not have such locks",
        ),
        STORE_UNAVAILABLE,
    ],
    prepare,
};

fn prepare(arguments: &RawObject<'_>, limits: &Limits) -> Prepared {
    let options = LockOptions::read_arguments(arguments, limits)?;
    Ok(call(async move |context: ServedCall| {
        context.note_locks(options.keys.locks.names());
        let allowed = options.keys.check(&context.call.caller, options.at);
        allowed.inspect_err(|_| context.server.metrics.refused(Refusal::Forbidden))?;
        let guard = acquire(&context.server, &context, &options).await?;
        if context.call.cancellation.finish().await {
            context.server.held.ended(&guard.lease());
            guard.release().await;
            return Err(cancelled_call().into());
        }
        let times = LeaseTimes::read(context.call.received, &guard);
        let lease = guard.keep();
        Ok(acquired_data(&options, &lease, times))
    }))
}
