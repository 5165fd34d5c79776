//! The [`Extension`] trait, the pipeline of a call, and the extensions of the server.
//!
//! A pipeline is a list of [`Around`]s with the function in the middle. Each gets the rest as [`Next`], as in a middleware of axum.

pub(crate) mod atomic_lock;
mod cancellation;
mod deadline;
mod retry;
mod tracing;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use ::tracing::Instrument;
use async_trait::async_trait;
use forrst_protocol::{
    ErrorCode, ErrorObject, Errors, ExtensionData, FunctionName, Pointer, RawObject, Urn, Version,
};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use serde::Serialize;
use serde::de::DeserializeOwned;
use smallvec::SmallVec;

pub use self::deadline::Deadline;
pub use self::tracing::Trace;
use crate::Context;
use crate::access::Caller;
use crate::context::{CallInfo, ServedCall};
use crate::core::{CoreHandle, Extensions, NotedLocks, ToCompletion};
use crate::error::{internal_error, unavailable};
use crate::function::{CallResult, PreparedCall, read_json};
use crate::limits::{Refusal, ResultRoom};
use crate::span;

pub(crate) use self::atomic_lock::AtomicLock;
pub(crate) use self::cancellation::{
    CancelError, CancellableCall, CancellationExtension, cancel, cancelled_call, read_token,
};
pub(crate) use self::deadline::{DeadlineExtension, millis};
pub(crate) use self::retry::{Retry, guidance, retry_after, whole_seconds};
pub(crate) use self::tracing::Tracing;

/// Something that callers can ask for around a call, by naming it in the request's `extensions`.
///
/// A call has two phases. First [`prepare`](Self::prepare) checks the options of each extension, and nothing else has
/// happened when one is wrong. Then each [`Around`] runs, from the outermost to the innermost, and the function in the
/// middle. The order is always the same: `deadline`, `tracing`, `retry`, `cancellation`, those registered for [`Stage::BeforeLock`],
/// `atomicLock`, those for [`Stage::InsideLock`]; those of a stage in the order of their registration.
pub trait Extension: Send + Sync + 'static {
    /// The name in requests, such as `urn:acme:forrst:ext:audit`.
    fn urn(&self) -> &str;

    /// Another name of the extension.
    fn alias(&self) -> Option<&str> {
        None
    }

    /// The extension's version, for `capabilities`.
    fn version(&self) -> Version {
        Version::new(1, 0, 0)
    }

    /// Whether it runs around the lock of a call or inside it.
    fn stage(&self) -> Stage {
        Stage::InsideLock
    }

    /// Checks the options and returns what will run.
    ///
    /// # Errors
    ///
    /// Everything that is wrong with the options, with pointers below [`ExtensionCall::pointer`].
    fn prepare(&self, call: &ExtensionCall<'_>) -> Result<Box<dyn Around>, Errors>;
}

/// The part of the pipeline in which an extension runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Around the lock: it runs before the call waits for one, and sees the outcome of that. It is dropped when the client
    /// disconnects.
    BeforeLock,
    /// Around the function: it runs only when the lock was granted, and, like the function, to completion, even if the client
    /// disconnects.
    InsideLock,
}

/// An extension in a request, with what [`Extension::prepare`] may need to know of the call.
#[derive(Debug)]
pub struct ExtensionCall<'a> {
    /// The name that the request uses, and that the answer has to use.
    pub urn: &'a Urn,
    /// The options, if there are any.
    pub options: Option<&'a RawObject<'a>>,
    /// The function that is called.
    pub function: &'a FunctionName,
    /// Its index in the `extensions` of the request; `None` if the request does not name it.
    pub(crate) index: Option<usize>,
    pub(crate) caller: &'a Caller,
    /// The W3C `traceparent` that came with the request.
    pub(crate) traceparent: Option<&'a str>,
    pub(crate) locks: &'a NotedLocks,
}

impl ExtensionCall<'_> {
    /// The pointer to it in the request, such as `/extensions/0`.
    pub fn pointer(&self) -> Pointer {
        match self.index {
            Some(index) => extension_pointer(index),
            None => Pointer::root(),
        }
    }

    /// Deserializes the options; an empty object if there are none.
    ///
    /// # Errors
    ///
    /// `INVALID_ARGUMENTS`, with a pointer to the first invalid option.
    pub fn read_options<T: DeserializeOwned>(&self) -> Result<T, Errors> {
        let at = self.pointer().key("options");
        let options = self.options.cloned().unwrap_or_default();
        read_json(&options, at).map_err(Errors::from)
    }
}

/// The pointer to an extension in a request.
pub(crate) fn extension_pointer(index: usize) -> Pointer {
    Pointer::root().key("extensions").index(index)
}

/// What an extension does with one call.
#[async_trait]
pub trait Around: Send {
    /// Runs the rest of the call, or does not, and returns the outcome.
    async fn run(self: Box<Self>, context: Context, next: Next) -> Outcome;
}

/// The outcome of a call, and the data of the extensions that have run so far.
#[derive(Debug)]
pub struct Outcome {
    /// The function's result, or the errors.
    pub result: CallResult,
    data: Vec<ExtensionData>,
    /// Whether the deadline of the caller ended the function.
    is_past_deadline: bool,
}

impl Outcome {
    /// The outcome of a call that failed, or was not made.
    pub fn failure(errors: impl Into<Errors>) -> Self {
        Err(errors.into()).into()
    }

    /// Adds data of the extension for the caller. Data that is not a JSON object is left out, and logged.
    #[must_use]
    pub fn with_data(self, urn: Urn, data: &impl Serialize) -> Self {
        match RawObject::from_serialize(data) {
            Ok(data) => self.with_object(urn, data),
            Err(error) => {
                ::tracing::error!(%urn, %error, "extension data is not a JSON object");
                self
            }
        }
    }

    pub(crate) fn with_object(mut self, urn: Urn, data: RawObject<'static>) -> Self {
        self.data.push(ExtensionData::new(urn, data));
        self
    }

    /// The same outcome, but with this error as its result.
    pub(crate) fn failed(self, error: ErrorObject) -> Self {
        Self {
            result: Err(error.into()),
            ..self
        }
    }

    pub(crate) fn into_parts(self) -> (CallResult, Vec<ExtensionData>) {
        (self.result, self.data)
    }
}

impl From<CallResult> for Outcome {
    fn from(result: CallResult) -> Self {
        Self {
            result,
            data: Vec::new(),
            is_past_deadline: false,
        }
    }
}

/// The rest of a call: the inner extensions and the function.
pub struct Next {
    server: CoreHandle,
    /// In reverse order: the next one is the last.
    steps: SmallVec<[Step; 1]>,
    innermost: Innermost,
    /// Whether it calls a system function, which ends when the client disconnects.
    is_system: bool,
    /// Whether no further [`detach`](Self::detach) is needed: the call is detached, or need not be.
    is_detached: bool,
    /// Whether the call has a deadline. It then runs in a task of its own from the start, so that a function that blocks its thread
    /// cannot delay the answer beyond the deadline.
    has_deadline: bool,
}

/// An extension that will run.
pub(crate) struct Step {
    /// Its index in the pipeline of the server.
    pub(crate) index: usize,
    pub(crate) around: Box<dyn Around>,
}

/// What the pipeline ends with.
pub(crate) enum Innermost {
    Call(PreparedCall, ResultRoom),
    /// The call has failed already; the outer extensions still add their data.
    Fail(Errors),
}

impl Next {
    /// Takes the extensions in any order.
    pub(crate) fn new(
        server: CoreHandle,
        mut steps: SmallVec<[Step; 1]>,
        innermost: Innermost,
        is_system: bool,
    ) -> Self {
        if matches!(innermost, Innermost::Fail(_)) {
            // They only observe, and add data to every answer.
            steps.retain(|step| step.index < Extensions::CANCELLATION);
        }
        steps.sort_unstable_by_key(|step| std::cmp::Reverse(step.index));
        Self {
            has_deadline: steps.iter().any(|step| step.index == Extensions::DEADLINE),
            server,
            steps,
            innermost,
            is_system,
            is_detached: is_system,
        }
    }

    pub(crate) fn server(&self) -> &CoreHandle {
        &self.server
    }

    /// Whether it calls a system function, which ends when the client disconnects.
    pub(crate) fn is_system(&self) -> bool {
        self.is_system
    }

    /// Runs only the extensions that observe, around a call that has failed already.
    pub(crate) async fn fail(self, context: Context, errors: impl Into<Errors>) -> Outcome {
        let innermost = Innermost::Fail(errors.into());
        let failed = Self::new(self.server, self.steps, innermost, self.is_system);
        failed.run(context).await
    }

    /// Runs the rest of the call.
    pub fn run(mut self, context: Context) -> BoxFuture<'static, Outcome> {
        match self.steps.pop() {
            None => self.run_innermost(context),
            Some(Step { index, around }) if index <= self.server.extensions.lock_index() => {
                around.run(context, self)
            }
            // It may have work to do after the function, which a disconnect must not prevent.
            Some(Step { around, .. }) => self.detach(|next| around.run(context, next)).boxed(),
        }
    }

    fn run_innermost(self, context: Context) -> BoxFuture<'static, Outcome> {
        if !self.is_detached && matches!(self.innermost, Innermost::Call(..)) {
            return self.detach(|next| next.run_innermost(context)).boxed();
        }
        let server = self.server;
        match self.innermost {
            Innermost::Call(call, room) => {
                run_call(call, room, ServedCall { server, context }).boxed()
            }
            Innermost::Fail(errors) => ready(Outcome::failure(errors)).boxed(),
        }
    }

    /// Runs `work` to completion even if the client disconnects: in place while it need not wait, then in a task of its own.
    pub(crate) fn detach<F, Fut>(
        mut self,
        work: F,
    ) -> impl Future<Output = Outcome> + Send + use<F, Fut>
    where
        F: FnOnce(Self) -> Fut,
        Fut: Future<Output = Outcome> + Send + 'static,
    {
        let (server, in_own_task) = (self.server.clone(), self.has_deadline);
        let is_detached = std::mem::replace(&mut self.is_detached, true);
        let mut work = ToCompletion::new(work(self));
        async move {
            let done = if is_detached {
                (&mut work).await
            } else {
                server.run_to_completion(work, in_own_task).await
            };
            done.unwrap_or_else(|| Outcome::failure(internal_error()))
        }
    }
}

/// Runs the function, until its deadline or the end of the server, and catches its panics.
async fn run_call(call: PreparedCall, room: ResultRoom, served: ServedCall) -> Outcome {
    let ServedCall { server, context } = &served;
    let (server, info, deadline) = (
        server.clone(),
        context.call.clone(),
        context.deadline.clone(),
    );
    let _cancel = CancelOnDrop(info);
    if server.stop.is_stopped() {
        return Outcome::failure(stopping());
    }
    if context.call.cancellation.is_cancelled_by_caller() {
        return Outcome::failure(cancelled_call());
    }
    // The deadline may have passed by now, and a function that is ready at once would win against it below.
    if let Some(Err(error)) = deadline.as_deref().map(Deadline::check) {
        return past_deadline(error);
    }
    let call = AssertUnwindSafe(async move { call(served).await }.instrument(span::function()))
        .catch_unwind();
    let result = tokio::select! {
        biased;
        result = call => match result {
            // It has ended early, because the server ends.
            Ok(Err(errors)) if server.stop.is_stopped() && is_cancelled(&errors) => {
                Err(stopping().into())
            }
            result => result.unwrap_or_else(|_| Err(internal_error().into())),
        },
        error = exceeded(deadline.as_deref()) => {
            return past_deadline(error);
        }
        () = server.stop.stopped() => Err(stopping().into()),
    };
    match result {
        // Checked here, so that the results of many calls do not pile up first.
        Ok(result) if !room.holds(result.get().len()) => {
            server.metrics.refused(Refusal::Bytes);
            let message = "The function has run, but there is no memory for its result";
            Outcome::failure(ErrorObject::new(ErrorCode::InternalError, message))
        }
        result => result.into(),
    }
}

fn is_cancelled(errors: &Errors) -> bool {
    errors
        .iter()
        .all(|error| error.code == ErrorCode::Cancelled)
}

fn past_deadline(error: ErrorObject) -> Outcome {
    Outcome {
        is_past_deadline: true,
        ..Outcome::failure(error)
    }
}

/// Cancels the token of the call when the function has ended, in whatever way.
struct CancelOnDrop(Arc<CallInfo>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancellation.end();
    }
}

pub(crate) fn stopping() -> ErrorObject {
    unavailable("The server is shutting down")
}

/// The error of a deadline, once it has passed.
pub(crate) async fn exceeded(deadline: Option<&Deadline>) -> ErrorObject {
    match deadline {
        Some(deadline) => deadline.passed().await,
        None => std::future::pending().await,
    }
}
