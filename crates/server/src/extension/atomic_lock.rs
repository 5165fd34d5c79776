//! `atomicLock`: the function runs while the caller holds a lock, and only then.
//!
//! This is the one place where the wire and the lock domain meet: options become a name, an owner and a ttl, and outcomes
//! become answers.

mod options;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use forrst_lock::{
    AcquireOutcome, AcquireRequest, Lease, LeaseGuard, LockError, ReleaseOutcome, WaiterLimit,
};
use forrst_protocol::{ErrorCode, ErrorObject, Errors, Urn};
use serde_json::{Value, json};
use tracing::Instrument;

pub(crate) use self::options::{LockOptions, Scope, read_ttl, read_ttl_and_block};
use super::deadline::millis;
use super::{Around, Extension, ExtensionCall, Next, Outcome, exceeded};
use crate::Context;
use crate::context::HeldLease;
use crate::error::unavailable;
use crate::fields::Fields;
use crate::limits::{Limits, Refusal};
use crate::span;
use crate::time::timestamp;

pub(crate) struct AtomicLock {
    pub(crate) limits: Arc<Limits>,
}

impl AtomicLock {
    pub(crate) const URN: &'static str = "urn:forrst:ext:atomicLock";
}

impl Extension for AtomicLock {
    fn urn(&self) -> &str {
        Self::URN
    }

    fn alias(&self) -> Option<&str> {
        Some("urn:cline:forrst:ext:atomic-lock")
    }

    fn prepare(&self, call: &ExtensionCall<'_>) -> Result<Box<dyn Around>, Errors> {
        let at = call.pointer.clone().key("options");
        let fields = Fields::read(call.options, at.clone());
        let options = LockOptions::read(fields, call.function, &self.limits)?;
        let _ = call.lock.set(options.name.clone());
        let allowed = call.caller.check_lock(&options.name);
        allowed.map_err(|refusal| refusal.at(at.key("key")))?;
        Ok(Box::new(Run {
            urn: call.urn.clone(),
            options,
        }))
    }
}

struct Run {
    urn: Urn,
    options: LockOptions,
}

#[async_trait]
impl Around for Run {
    async fn run(self: Box<Self>, mut context: Context, next: Next) -> Outcome {
        let Self { urn, options } = *self;
        let deadline = context.deadline.clone();
        let acquired = tokio::select! {
            biased;
            // A lock for a function that is not going to run would be held for nothing.
            () = context.server.stop.cancelled() => Err(unavailable("The server is shutting down")),
            acquired = acquire(&context, &options) => acquired,
            error = exceeded(deadline.as_deref()) => Err(error),
        };
        let mut guard = match acquired {
            Ok(guard) => guard,
            Err(error) => {
                let data = json!({"key": options.key.as_str(), "acquired": false});
                return Outcome::failure(error).with_data(urn, &data);
            }
        };
        if options.renew {
            guard.renew(options.ttl);
        }
        context.lease = Some(HeldLease::new(guard.lease(), guard.loss()));
        // From here on the caller may hang up: the function ends in peace, and then the lock is released.
        let server = context.server.clone();
        let held = server.held.clone();
        let work = |context: Context| async move {
            let caller = context.clone();
            let running = next.run(context);
            tokio::pin!(running);
            let outcome = if options.renew {
                tokio::select! {
                    biased;
                    outcome = running.as_mut() => outcome,
                    _ = caller.revoked() => {
                        // The lease ends by its clock, and the function learns of it by its notice of loss.
                        tracing::warn!(fence = %guard.lease().fence, "the caller was revoked: its lock is not renewed");
                        guard.stop_renewal();
                        running.await
                    }
                }
            } else {
                running.await
            };
            // Whoever set a deadline that has passed may be gone, and never learn the token.
            let is_kept = !options.auto_release && !outcome.is_past_deadline;
            let lease = give_back(guard, is_kept).await;
            if is_kept {
                held.lasts(&lease, options.ttl.as_duration());
            } else {
                held.ended(&lease);
            }
            outcome.with_data(urn, &acquired_data(&options, &lease))
        };
        server.detach(context, work).await
    }
}

async fn give_back(guard: LeaseGuard, is_kept: bool) -> Lease {
    let lease = guard.lease();
    if is_kept {
        return guard.keep();
    }
    match guard.release().await {
        ReleaseOutcome::Released => {}
        ReleaseOutcome::Lost(why) => {
            tracing::warn!(fence = %lease.fence, ?why, "a lock was lost before its function ended");
        }
        ReleaseOutcome::Pending(error) => {
            tracing::warn!(fence = %lease.fence, %error, "a lock could not be released yet");
        }
    }
    lease
}

/// Takes the lock as the options say. Dropped, it leaves nothing behind.
pub(crate) async fn acquire(
    context: &Context,
    options: &LockOptions,
) -> Result<LeaseGuard, ErrorObject> {
    let server = &context.server;
    let caller = context.call.caller.name();
    let Some(asked) = server
        .held
        .ask(caller, &options.name, options.attempt.as_ref())
    else {
        server.metrics.refused(Refusal::Locks);
        return Err(too_many_locks(server.limits.max_locks_per_caller));
    };
    let request = AcquireRequest {
        name: options.name.clone(),
        owner: options.owner.clone(),
        caller: caller.cloned(),
        ttl: options.ttl,
        wait: options.block.map(|(_, wait)| wait),
        attempt: options.attempt.clone(),
    };
    let acquired = server.locks.acquire(request).instrument(span::wait());
    let acquired = match options.block {
        None => acquired.await,
        Some(_) => tokio::select! {
            biased;
            acquired = acquired => acquired,
            // Dropped, the call leaves its queue.
            refusal = context.revoked() => {
                server.metrics.refused(Refusal::Unauthorized);
                return Err(refusal);
            }
        },
    };
    let (error, retry_after) = match acquired.map_err(unlockable)? {
        AcquireOutcome::Granted(guard) => {
            let time = if options.renew {
                WHILE_IT_RUNS
            } else {
                options.ttl.as_duration()
            };
            asked.granted(&guard.lease(), options.attempt.clone(), time);
            return Ok(guard);
        }
        AcquireOutcome::Held { retry_after } => (not_acquired(), retry_after),
        AcquireOutcome::TimedOut { retry_after } => {
            let (block, _) = options.block.unzip();
            let waited = block.map(|block| block.to_string()).unwrap_or_default();
            let message = format!("Lock acquisition timed out after {waited}");
            let error = ErrorObject::new(ErrorCode::LockTimeout, message);
            (error.with_detail("waited", json!(block)), retry_after)
        }
        AcquireOutcome::TooManyWaiters { limit, retry_after } => {
            let (refusal, message) = match limit {
                WaiterLimit::OfLock => (
                    Refusal::WaitersOfLock,
                    "Too many callers wait for this lock already",
                ),
                WaiterLimit::OfProcess => (
                    Refusal::Waiters,
                    "Too many callers wait for locks on this server already",
                ),
            };
            server.metrics.refused(refusal);
            let error = ErrorObject::new(ErrorCode::RateLimited, message);
            (error, retry_after)
        }
        AcquireOutcome::Superseded { retry_after } => (
            not_acquired().with_detail("reason", "the same attempt was made again"),
            retry_after,
        ),
    };
    Err(error
        .with_detail("key", options.key.as_str())
        .with_detail("scope", options.scope.as_str())
        .with_detail("full_key", options.name.as_str())
        .with_detail("retry_after", json!(millis(retry_after))))
}

/// A lock that is renewed counts until its function has ended, however long that takes.
const WHILE_IT_RUNS: Duration = Duration::from_secs(365 * 24 * 60 * 60);

fn too_many_locks(most: Option<usize>) -> ErrorObject {
    let message = "You hold or wait for as many locks as one caller may on this server";
    ErrorObject::new(ErrorCode::RateLimited, message).with_detail("max_locks_per_caller", most)
}

fn not_acquired() -> ErrorObject {
    ErrorObject::new(ErrorCode::LockAcquisitionFailed, "Unable to acquire lock")
}

fn unlockable(error: LockError) -> ErrorObject {
    match error {
        LockError::Closed => unavailable("The server is shutting down"),
        LockError::Store(error) => {
            tracing::error!(%error, "the lock store failed");
            unavailable("The lock store is unavailable")
        }
        LockError::FencesExhausted => {
            tracing::error!(%error, "nothing can be locked any more");
            ErrorObject::new(ErrorCode::InternalError, error.to_string())
        }
    }
}

/// What the caller is told about a lock that was taken.
pub(crate) fn acquired_data(options: &LockOptions, lease: &Lease) -> Value {
    json!({
        "key": options.key.as_str(),
        "acquired": true,
        "owner": lease.owner.as_str(),
        "scope": options.scope.as_str(),
        "expires_at": timestamp(lease.expires_at),
        "full_key": lease.name.as_str(),
        "fence": lease.fence.to_string(),
    })
}
