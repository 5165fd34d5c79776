//! `atomicLock`: the function runs while the caller holds a lock, and only then.
//!
//! This is the one place where the wire and the lock domain meet: options become a name, an owner and a ttl, and outcomes
//! become answers.

mod options;

use std::sync::Arc;

use async_trait::async_trait;
use forrst_lock::{
    AcquireOutcome, AcquireRequest, Lease, LeaseGuard, LockError, LockService, ReleaseOutcome,
};
use forrst_protocol::{ErrorCode, ErrorObject, Errors, Urn};
use serde_json::{Value, json};

pub(crate) use self::options::{LockOptions, Scope, read_ttl, read_ttl_and_block};
use super::deadline::millis;
use super::{Around, Extension, ExtensionCall, Next, Outcome, exceeded};
use crate::Context;
use crate::context::HeldLease;
use crate::error::unavailable;
use crate::fields::Fields;
use crate::server::Limits;
use crate::time::timestamp;

pub(crate) struct AtomicLock {
    pub(crate) locks: LockService,
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
        let fields = Fields::read(call.options, at);
        Ok(Box::new(Run {
            urn: call.urn.clone(),
            options: LockOptions::read(fields, call.function, &self.limits)?,
            locks: self.locks.clone(),
        }))
    }
}

struct Run {
    urn: Urn,
    options: LockOptions,
    locks: LockService,
}

#[async_trait]
impl Around for Run {
    async fn run(self: Box<Self>, mut context: Context, next: Next) -> Outcome {
        let Self {
            urn,
            options,
            locks,
        } = *self;
        let deadline = context.deadline.clone();
        let acquired = tokio::select! {
            biased;
            // A lock for a function that is not going to run would be held for nothing.
            () = context.server.stop.cancelled() => Err(unavailable("The server is shutting down")),
            acquired = acquire(&locks, &options) => acquired,
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
        let work = |context| async move {
            let outcome = next.run(context).await;
            let lease = give_back(guard, options.auto_release).await;
            outcome.with_data(urn, &acquired_data(&options, &lease))
        };
        server.detach(context, work).await
    }
}

async fn give_back(guard: LeaseGuard, auto_release: bool) -> Lease {
    let lease = guard.lease();
    if !auto_release {
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
    locks: &LockService,
    options: &LockOptions,
) -> Result<LeaseGuard, ErrorObject> {
    let request = AcquireRequest {
        name: options.name.clone(),
        owner: options.owner.clone(),
        ttl: options.ttl,
        wait: options.block.map(|(_, wait)| wait),
        attempt: options.attempt.clone(),
    };
    let (error, retry_after) = match locks.acquire(request).await.map_err(unlockable)? {
        AcquireOutcome::Granted(guard) => return Ok(guard),
        AcquireOutcome::Held { retry_after } => (not_acquired(), Some(retry_after)),
        AcquireOutcome::TimedOut { retry_after } => {
            let (block, _) = options.block.unzip();
            let waited = block.map(|block| block.to_string()).unwrap_or_default();
            let message = format!("Lock acquisition timed out after {waited}");
            let error = ErrorObject::new(ErrorCode::LockTimeout, message);
            (error.with_detail("waited", json!(block)), Some(retry_after))
        }
        AcquireOutcome::TooManyWaiters { retry_after } => {
            let error = ErrorObject::new(
                ErrorCode::RateLimited,
                "Too many callers wait for this lock already",
            );
            (error, Some(retry_after))
        }
        AcquireOutcome::Superseded => (
            not_acquired().with_detail("reason", "the same attempt was made again"),
            None,
        ),
    };
    let mut error = error
        .with_detail("key", options.key.as_str())
        .with_detail("scope", options.scope.as_str())
        .with_detail("full_key", options.name.as_str());
    if let Some(retry_after) = retry_after {
        error = error.with_detail("retry_after", json!(millis(retry_after)));
    }
    Err(error)
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
