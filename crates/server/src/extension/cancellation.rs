//! `cancellation`: the caller can cancel the call by a token, through any node that shares the store.
//!
//! A call under way is a lease in the store, on a [name](LockName::call) made from the caller and the token. To cancel the call is to
//! release that lease, so one atomic step decides between the end of the call and its cancellation, and the store notifies the
//! node of the call. Nothing else is needed between nodes, and a node that crashes leaves a lease that expires.

use std::time::Duration;

use async_trait::async_trait;
use forrst_lock::model::LeaseRef;
use forrst_lock::{
    AcquireOutcome, AcquireRequest, CallToken, Caller, LeaseGuard, LockError, LockName, Locks,
    NotHeld, Owner, ReleaseOutcome, StoreError, Ttl,
};
use forrst_protocol::{ErrorCode, ErrorObject, Errors, Pointer};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{Around, Extension, ExtensionCall, Next, Outcome, stopping};
use crate::Context;
use crate::core::Core;
use crate::error::unavailable;
use crate::fields::{Fields, parsed};

/// After a crash of its node, a call seems to be under way for that long.
const TTL: Duration = Duration::from_secs(30);
/// The same owner for all, because the token is what a caller has to know.
const OWNER: &str = "call";

pub(crate) struct CancellationExtension;

impl Extension for CancellationExtension {
    fn urn(&self) -> &'static str {
        "urn:forrst:ext:cancellation"
    }

    fn alias(&self) -> Option<&str> {
        Some("urn:cline:forrst:ext:cancellation")
    }

    fn prepare(&self, call: &ExtensionCall<'_>) -> Result<Box<dyn Around>, Errors> {
        let at = call.pointer().key("options");
        let mut fields = Fields::read(call.options, at.clone());
        let token = read_token(&mut fields);
        Ok(Box::new(CancellableCallStep {
            token: fields.finish_with(token)?,
            at: at.key("token"),
        }))
    }
}

pub(crate) fn read_token(fields: &mut Fields<'_>) -> Option<CallToken> {
    fields.required("token", parsed(CallToken::parse))
}

/// Cancels a caller's call with this token.
pub(crate) async fn cancel(
    server: &Core,
    caller: Option<&Caller>,
    token: &CallToken,
) -> Result<(), CancelError> {
    let lease_ref = LeaseRef {
        name: LockName::call(caller, token),
        owner: owner(),
        fence: None,
    };
    match server.locks.release(lease_ref).await? {
        Ok(_) => Ok(()),
        Err(NotHeld::AlreadyReleased { .. }) => Err(CancelError::TooLate),
        Err(NotHeld::NotFound | NotHeld::OwnedByAnother | NotHeld::Ambiguous) => {
            Err(CancelError::Unknown)
        }
    }
}

/// Why a call could not be cancelled.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CancelError {
    /// The call has ended, or was cancelled before.
    #[error("The call has already ended")]
    TooLate,
    /// There is no such call of this caller.
    #[error("No call of yours with this token is known")]
    Unknown,
    #[error(transparent)]
    Store(#[from] StoreError),
}

fn ttl() -> Ttl {
    Ttl::new(TTL).expect("a positive ttl")
}

fn owner() -> Owner {
    Owner::parse(OWNER).expect("a short text")
}

/// A call under way that its caller can cancel.
#[derive(Debug)]
pub(crate) struct CancellableCall {
    cancelled: CancellationToken,
    /// Cancelled when the call has ended: by [`end`](Self::end), or when this is dropped.
    ended: CancellationToken,
    /// Whether the call was cancelled; `None` until it has ended.
    verdict: watch::Receiver<Option<bool>>,
}

impl CancellableCall {
    /// `cancelled` is the token of the function, which fires when the caller cancels the call.
    fn start(server: &Core, mut guard: LeaseGuard, function: CancellationToken) -> Self {
        guard.renew(ttl());
        let (decided, verdict) = watch::channel(None);
        let call = Self {
            cancelled: CancellationToken::new(),
            ended: CancellationToken::new(),
            verdict,
        };
        let (cancelled, ended) = (call.cancelled.clone(), call.ended.clone());
        server.tasks.spawn(async move {
            let loss = guard.loss();
            tokio::select! {
                () = ended.cancelled() => {}
                () = loss.lost() => {}
            }
            // The store knows whether the lease was released by a cancellation, or has expired while the store could not be reached. If
            // the token is in use again by then, the time tells.
            let is_early = !guard.remaining().is_zero();
            let is_cancelled = match guard.release().await {
                ReleaseOutcome::Lost(NotHeld::AlreadyReleased { .. }) => true,
                ReleaseOutcome::Lost(NotHeld::OwnedByAnother) => is_early,
                _ => false,
            };
            decided.send_replace(Some(is_cancelled));
            if is_cancelled {
                cancelled.cancel();
                function.cancel();
            } else if !ended.is_cancelled() {
                tracing::warn!("a call cannot be cancelled any more: the store was unavailable");
            }
        });
        call
    }

    pub(crate) async fn cancelled(&self) {
        self.cancelled.cancelled().await;
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.is_cancelled()
    }

    /// The call has ended.
    pub(crate) fn end(&self) {
        self.ended.cancel();
    }

    /// Ends the call. Returns whether it was cancelled before.
    pub(crate) async fn finish(&self) -> bool {
        self.end();
        let mut verdict = self.verdict.clone();
        // The task ends only after its verdict.
        let decided = verdict.wait_for(Option::is_some).await;
        decided.is_ok_and(|verdict| *verdict == Some(true))
    }
}

impl Drop for CancellableCall {
    fn drop(&mut self) {
        self.end();
    }
}

struct CancellableCallStep {
    token: CallToken,
    /// Where the token is in the request.
    at: Pointer,
}

#[async_trait]
impl Around for CancellableCallStep {
    async fn run(self: Box<Self>, context: Context, next: Next) -> Outcome {
        let server = next.server().clone();
        let call = context.call.clone();
        match self.register(&server, call.caller.name()).await {
            Ok(guard) => {
                let function = call.cancellation.token().clone();
                let cancellable = CancellableCall::start(&server, guard, function);
                call.cancellation.allow(cancellable);
            }
            Err(error) => return Outcome::failure(error),
        }
        let is_system = next.is_system();
        let mut rest = next.run(context);
        let outcome = tokio::select! {
            biased;
            outcome = &mut rest => outcome,
            () = call.cancellation.cancelled_by_caller() => {
                if is_system {
                    drop(rest);
                    return Outcome::failure(cancelled(&self.token));
                }
                // A wait for the lock ends by itself, and a function that has begun runs to completion.
                rest.await
            }
        };
        if call.cancellation.finish().await {
            return outcome.failed(cancelled(&self.token));
        }
        outcome
    }
}

impl CancellableCallStep {
    /// Takes the lease that stands for the call.
    async fn register(
        &self,
        server: &Core,
        caller: Option<&Caller>,
    ) -> Result<LeaseGuard, ErrorObject> {
        let request = AcquireRequest {
            locks: Locks::exclusive(LockName::call(caller, &self.token)),
            owner: owner(),
            caller: caller.cloned(),
            note: None,
            ttl: ttl(),
            wait: None,
            attempt: None,
        };
        match server.locks.acquire(request).await {
            Ok(AcquireOutcome::Granted(guard)) => Ok(guard),
            Ok(_) => {
                let message = "`token` is in use by another call of yours";
                let error = ErrorObject::new(ErrorCode::InvalidArguments, message);
                Err(error.at(self.at.clone()))
            }
            Err(LockError::Closed) => Err(stopping()),
            Err(error @ LockError::FencesExhausted) => Err(ErrorObject::new(
                ErrorCode::InternalError,
                error.to_string(),
            )),
            Err(LockError::Store(error)) => {
                tracing::error!(%error, "a call with a cancellation token could not be registered");
                Err(unavailable("The lock store is unavailable"))
            }
        }
    }
}

/// The error of a call that its caller has cancelled.
fn cancelled(token: &CallToken) -> ErrorObject {
    cancelled_call().with_detail("token", token.as_str())
}

/// The same where the token is not known. The extension adds it.
pub(crate) fn cancelled_call() -> ErrorObject {
    ErrorObject::new(ErrorCode::Cancelled, "The call was cancelled by its caller")
}
