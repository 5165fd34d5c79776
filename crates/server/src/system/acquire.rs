//! `acquire`: takes a lock for work that runs outside the server.

use forrst_lock::Lease;
use forrst_protocol::{ErrorCode, RawObject};

use super::{CALLER, CANCELLED, Prepared, STORE_UNAVAILABLE, Spec, call};
use crate::context::ServedCall;
use crate::extension::atomic_lock::{LeaseTimes, LockOptions, acquire, acquired_data};
use crate::extension::cancelled_call;
use crate::limits::{HeldLocks, Limits, Refusal};

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
        CANCELLED,
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
        if context.call.cancellation.is_allowed() {
            let counted = CountedLease::new(&context.server.held, guard.lease());
            if context.call.cancellation.finish().await {
                // The guard rolls back this call alone: another call of its attempt may have the same lease.
                return Err(cancelled_call().into());
            }
            counted.keep();
        }
        let times = LeaseTimes::read(context.call.received, &guard);
        let lease = guard.keep();
        Ok(acquired_data(&options, &lease, times))
    }))
}

/// A lease in the tally of its caller, which is taken out again when the call ends before the lease is kept.
struct CountedLease<'a> {
    held: &'a HeldLocks,
    lease: Option<Lease>,
}

impl<'a> CountedLease<'a> {
    fn new(held: &'a HeldLocks, lease: Lease) -> Self {
        let lease = Some(lease);
        Self { held, lease }
    }

    fn keep(mut self) {
        self.lease = None;
    }
}

impl Drop for CountedLease<'_> {
    fn drop(&mut self) {
        if let Some(lease) = &self.lease {
            self.held.ended(lease);
        }
    }
}
