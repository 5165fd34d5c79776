//! What can be done around a call: the extension trait, the pipeline, and the extensions that come with the server.

pub(crate) mod atomic_lock;
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
use crate::core::{Extensions, NotedLocks, Served, ToEnd};
use crate::error::{internal_error, unavailable};
use crate::function::{CallResult, PreparedCall, read_json};
use crate::limits::{Refusal, ResultRoom};
use crate::span;

pub(crate) use self::atomic_lock::AtomicLock;
pub(crate) use self::deadline::{DeadlineExtension, millis};
pub(crate) use self::retry::{Retry, guidance, retry_after, whole_seconds};
pub(crate) use self::tracing::Tracing;

/// Something that callers can ask for around a call, by naming it in the request's `extensions`.
///
/// A call has two phases. First [`prepare`](Self::prepare) checks the options of each extension, and nothing else has
/// happened when one is wrong. Then each [`Around`] runs, from the outermost to the innermost, and the function in the
/// middle. The order is always the same: `deadline`, `tracing`, `retry`, those registered for [`Stage::BeforeLock`],
/// `atomicLock`, those for [`Stage::InsideLock`]; those of a stage in the order of their registration.
pub trait Extension: Send + Sync + 'static {
    /// The name in requests, such as `urn:acme:forrst:ext:audit`.
    fn urn(&self) -> &str;

    /// Another name for the same.
    fn alias(&self) -> Option<&str> {
        None
    }

    /// The extension's version, for `capabilities`.
    fn version(&self) -> Version {
        Version::new(1, 0, 0)
    }

    /// Whether it runs around the lock of a call or inside of it.
    fn stage(&self) -> Stage {
        Stage::InsideLock
    }

    /// Checks the options and gives what will run.
    ///
    /// # Errors
    ///
    /// All that is wrong with the options, with pointers below [`ExtensionCall::pointer`].
    fn prepare(&self, call: &ExtensionCall<'_>) -> Result<Box<dyn Around>, Errors>;
}

/// Where an extension stands among those of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Around the lock: it runs before the call waits for one, and sees how that went. It is dropped when the client
    /// disconnects.
    BeforeLock,
    /// Around the function: it runs only when the lock was granted, and, like the function, to its end, even if the client
    /// disconnects.
    InsideLock,
}

/// An extension as a request names it.
#[derive(Debug)]
pub struct ExtensionCall<'a> {
    /// The name that the request used, and that the answer has to use.
    pub urn: &'a Urn,
    /// The options, if there are any.
    pub options: Option<&'a RawObject<'a>>,
    /// The function that is called.
    pub function: &'a FunctionName,
    /// Which of the request's extensions it is; none if the request does not name it.
    pub(crate) index: Option<usize>,
    pub(crate) caller: &'a Caller,
    /// The W3C `traceparent` that came with the request.
    pub(crate) traceparent: Option<&'a str>,
    pub(crate) locks: &'a NotedLocks,
}

impl ExtensionCall<'_> {
    /// Where it stands in the request: `/extensions/0`.
    pub fn pointer(&self) -> Pointer {
        match self.index {
            Some(index) => extension_pointer(index),
            None => Pointer::root(),
        }
    }

    /// The options as a type; those that were left out are an empty object.
    ///
    /// # Errors
    ///
    /// `INVALID_ARGUMENTS`, with a pointer to the first option that does not fit.
    pub fn read_options<T: DeserializeOwned>(&self) -> Result<T, Errors> {
        let at = self.pointer().key("options");
        let options = self.options.cloned().unwrap_or_default();
        read_json(&options, at).map_err(Errors::from)
    }
}

/// Where the extension of that index stands in a request.
pub(crate) fn extension_pointer(index: usize) -> Pointer {
    Pointer::root().key("extensions").index(index)
}

/// What an extension does with one call.
#[async_trait]
pub trait Around: Send {
    /// Runs what comes next, or does not, and says how it went.
    async fn run(self: Box<Self>, context: Context, next: Next) -> Outcome;
}

/// How a call went, seen from outside of what has run so far.
#[derive(Debug)]
pub struct Outcome {
    /// The function's result, or what went wrong.
    pub result: CallResult,
    data: Vec<ExtensionData>,
    /// Whether the function was ended by the deadline of its caller.
    is_past_deadline: bool,
}

impl Outcome {
    /// A call that was not made, or failed.
    pub fn failure(errors: impl Into<Errors>) -> Self {
        Err(errors.into()).into()
    }

    /// Adds what the extension has to tell the caller. What is no JSON object is left out.
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

/// The rest of the way to the function.
pub struct Next {
    server: Served,
    /// In their order, the next one last.
    steps: SmallVec<[Step; 1]>,
    end: End,
    /// The client may disconnect: a task of its own runs the call, or a system function that does not outlive its caller.
    is_detached: bool,
    /// A function that blocks its thread must not keep its caller beyond the deadline, so it is not run on the caller's thread.
    has_deadline: bool,
}

/// An extension that will run.
pub(crate) struct Step {
    /// Its index among the extensions of the server.
    pub(crate) place: usize,
    pub(crate) around: Box<dyn Around>,
}

/// What stands in the middle.
pub(crate) enum End {
    Call(PreparedCall, ResultRoom),
    /// The call is known to be wrong; the outer extensions still have their say.
    Fail(Errors),
}

impl Next {
    /// The extensions in any order, and what stands in the middle.
    pub(crate) fn new(
        server: Served,
        mut steps: SmallVec<[Step; 1]>,
        end: End,
        is_detached: bool,
    ) -> Self {
        if matches!(end, End::Fail(_)) {
            // Those only watch, and say something about every call.
            steps.retain(|step| step.place < Extensions::FIRST_OF_USERS);
        }
        steps.sort_unstable_by_key(|step| std::cmp::Reverse(step.place));
        Self {
            has_deadline: steps.iter().any(|step| step.place == Extensions::DEADLINE),
            server,
            steps,
            end,
            is_detached,
        }
    }

    pub(crate) fn server(&self) -> &Served {
        &self.server
    }

    /// Runs nothing but those who watch, around a call that has failed already.
    pub(crate) async fn fail(self, context: Context, errors: impl Into<Errors>) -> Outcome {
        let end = End::Fail(errors.into());
        let failed = Self::new(self.server, self.steps, end, self.is_detached);
        failed.run(context).await
    }

    /// Runs it.
    pub fn run(mut self, context: Context) -> BoxFuture<'static, Outcome> {
        match self.steps.pop() {
            None => self.run_end(context),
            Some(Step { place, around }) if place <= self.server.extensions.lock_place() => {
                around.run(context, self)
            }
            // It may do something after the function, and has to come to it.
            Some(Step { around, .. }) => self.detach(|next| around.run(context, next)).boxed(),
        }
    }

    fn run_end(self, context: Context) -> BoxFuture<'static, Outcome> {
        if !self.is_detached && matches!(self.end, End::Call(..)) {
            return self.detach(|next| next.run_end(context)).boxed();
        }
        let server = self.server;
        match self.end {
            End::Call(call, room) => run_call(call, room, ServedCall { server, context }).boxed(),
            End::Fail(errors) => ready(Outcome::failure(errors)).boxed(),
        }
    }

    /// Runs the rest of a call so that the disconnect of its caller does not end it: at once if it need not wait, else in a task
    /// of its own.
    pub(crate) fn detach<F, Fut>(
        mut self,
        work: F,
    ) -> impl Future<Output = Outcome> + Send + use<F, Fut>
    where
        F: FnOnce(Self) -> Fut,
        Fut: Future<Output = Outcome> + Send + 'static,
    {
        let (server, is_apart) = (self.server.clone(), self.has_deadline);
        let is_detached = std::mem::replace(&mut self.is_detached, true);
        let mut work = ToEnd::new(work(self));
        async move {
            let done = if is_detached {
                (&mut work).await
            } else {
                server.run_to_end(work, is_apart).await
            };
            done.unwrap_or_else(|| Outcome::failure(internal_error()))
        }
    }
}

/// The function itself: ended by its deadline or the server's end, and its panics caught.
async fn run_call(call: PreparedCall, room: ResultRoom, served: ServedCall) -> Outcome {
    let ServedCall { server, context } = &served;
    let (server, info, deadline) = (
        server.clone(),
        context.call.clone(),
        context.deadline.clone(),
    );
    let _end = EndOfCall(info);
    if server.stop.is_stopped() {
        return Outcome::failure(stopping());
    }
    // Whatever came before it may have taken that long, and a function that need not wait would not be stopped any more.
    if let Some(Err(error)) = deadline.as_deref().map(Deadline::check) {
        return past_deadline(error);
    }
    let call = AssertUnwindSafe(async move { call(served).await }.instrument(span::function()))
        .catch_unwind();
    let result = tokio::select! {
        biased;
        result = call => result.unwrap_or_else(|_| Err(internal_error().into())),
        error = exceeded(deadline.as_deref()) => {
            return past_deadline(error);
        }
        () = server.stop.stopped() => Err(stopping().into()),
    };
    match result {
        // Here, before the next one is ready: there may be a thousand of them.
        Ok(result) if !room.holds(result.get().len()) => {
            server.metrics.refused(Refusal::Bytes);
            let message = "The function has run, and there is no room for its result";
            Outcome::failure(ErrorObject::new(ErrorCode::InternalError, message))
        }
        result => result.into(),
    }
}

fn past_deadline(error: ErrorObject) -> Outcome {
    Outcome {
        is_past_deadline: true,
        ..Outcome::failure(error)
    }
}

/// Dropped, it cancels the token of the call: the function has ended, however that went.
struct EndOfCall(Arc<CallInfo>);

impl Drop for EndOfCall {
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
