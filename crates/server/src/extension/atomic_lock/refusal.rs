//! The errors of calls that acquire no lock: one for each outcome that is not a grant, and for failures of the store.

use forrst_lock::{AcquireOutcome, LockError, LockName, StoreError, WaiterLimit};
use forrst_protocol::{ErrorCode, ErrorObject};
use serde_json::json;

use super::options::LockOptions;
use crate::core::Core;
use crate::error::{internal_error, unavailable};
use crate::extension::millis;
use crate::limits::Refusal;

/// When a caller that holds too many locks may try again: it has to release one first.
const RETRY_AFTER: std::time::Duration = std::time::Duration::from_secs(1);

/// The error for every outcome that is not a grant.
pub(super) fn refusal(
    outcome: AcquireOutcome,
    server: &Core,
    options: &LockOptions,
) -> ErrorObject {
    let (error, blocked_by, retry_after) = match outcome {
        AcquireOutcome::Held {
            blocked_by,
            retry_after,
        } => (held(), blocked_by, retry_after),
        AcquireOutcome::TimedOut {
            blocked_by,
            retry_after,
        } => (timed_out(options), blocked_by, retry_after),
        AcquireOutcome::TooManyWaiters {
            limit,
            blocked_by,
            retry_after,
        } => (too_many_waiters(limit, server), blocked_by, retry_after),
        AcquireOutcome::Withdrawn => return withdrawn(),
        AcquireOutcome::AttemptMismatch => return another_attempt(options),
        // A grant is not refused.
        AcquireOutcome::Granted(_) => return internal_error(),
    };
    with_details(error, options, &blocked_by, retry_after)
}

fn with_details(
    error: ErrorObject,
    options: &LockOptions,
    blocked_by: &[LockName],
    retry_after: std::time::Duration,
) -> ErrorObject {
    let [key, full_key] = options.keys.as_details();
    let blocked_by: Vec<&str> = blocked_by.iter().map(LockName::as_str).collect();
    error
        .with_detail(key.0, key.1)
        .with_detail("scope", options.scope.as_str())
        .with_detail(full_key.0, full_key.1)
        .with_detail("blocked_by", blocked_by)
        .with_detail("retry_after", json!(millis(retry_after)))
}

fn held() -> ErrorObject {
    ErrorObject::new(ErrorCode::LockAcquisitionFailed, "Unable to acquire lock")
}

fn timed_out(options: &LockOptions) -> ErrorObject {
    let (block, _) = options.block.unzip();
    let waited = block.map(|block| block.to_string()).unwrap_or_default();
    let message = format!("Lock acquisition timed out after {waited}");
    ErrorObject::new(ErrorCode::LockTimeout, message).with_detail("waited", json!(block))
}

fn too_many_waiters(limit: WaiterLimit, server: &Core) -> ErrorObject {
    let (refusal, message) = match limit {
        WaiterLimit::PerKey => (
            Refusal::WaitersOfLock,
            "Too many callers wait for this lock already",
        ),
        WaiterLimit::PerProcess => (
            Refusal::Waiters,
            "Too many callers wait for locks on this server already",
        ),
    };
    server.metrics.refused(refusal);
    ErrorObject::new(ErrorCode::RateLimited, message)
}

fn withdrawn() -> ErrorObject {
    ErrorObject::new(ErrorCode::LockAlreadyReleased, "The attempt was withdrawn")
}

fn another_attempt(options: &LockOptions) -> ErrorObject {
    let message = "`attempt` was made before, with other keys or kinds";
    let at = options.at.pointer().key("attempt");
    ErrorObject::new(ErrorCode::InvalidArguments, message).at(at)
}

/// The error for a caller that would hold more keys than allowed.
pub(super) fn too_many_locks(options: &LockOptions, max: Option<usize>) -> ErrorObject {
    let keys = options.keys.locks.names().len();
    let error = match max {
        // Not retryable: even without other locks, the caller may not have so many.
        Some(max) if keys > max => {
            let message = format!(
                "`keys` has {keys} keys, but one caller may have at most {max} on this server"
            );
            let at = options.at.pointer().key("keys");
            ErrorObject::new(ErrorCode::InvalidArguments, message).at(at)
        }
        _ => {
            let message = "You hold or wait for as many locks as one caller may on this server";
            let error = ErrorObject::new(ErrorCode::RateLimited, message);
            error.with_detail("retry_after", json!(millis(RETRY_AFTER)))
        }
    };
    error.with_detail("max_locks_per_caller", max)
}

/// The error for a call that has no outcome.
pub(super) fn failed(error: LockError, options: &LockOptions) -> ErrorObject {
    match error {
        LockError::Closed => unavailable("The server is shutting down"),
        // Not `UNAVAILABLE`: a retry would not help.
        LockError::Store(error @ StoreError::Unsupported(_)) => {
            let at = options.at.pointer().key(options.keys.special_option());
            ErrorObject::new(ErrorCode::InvalidArguments, error.to_string()).at(at)
        }
        LockError::Store(error) => {
            tracing::error!(%error, "the lock store failed");
            unavailable("The lock store is unavailable")
        }
        LockError::FencesExhausted => {
            tracing::error!(%error, "no more locks can be granted");
            ErrorObject::new(ErrorCode::InternalError, error.to_string())
        }
    }
}
