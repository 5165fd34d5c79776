//! What can be done around a call: the extension trait, the pipeline, and the extensions that come with the server.

pub(crate) mod atomic_lock;
mod deadline;
mod retry;
mod tracing;

use std::panic::AssertUnwindSafe;
use std::vec;

use ::tracing::Instrument;
use async_trait::async_trait;
use forrst_protocol::{
    ErrorCode, ErrorObject, Errors, FunctionName, Pointer, RawObject, Urn, Version,
};
use futures_util::FutureExt;
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use self::deadline::Deadline;
pub use self::tracing::Trace;
use crate::Context;
use crate::access::Caller;
use crate::core::NotedLocks;
use crate::error::{internal_error, unavailable};
use crate::function::{CallResult, PreparedCall, read_json};
use crate::limits::{Refusal, ResultRoom};
use crate::span;

pub(crate) use self::atomic_lock::AtomicLock;
pub(crate) use self::deadline::{DeadlineExtension, millis};
pub(crate) use self::retry::Retry;
pub(crate) use self::tracing::Tracing;

/// Something that callers can ask for around a call, by naming it in the request's `extensions`.
///
/// A call has two phases. First [`prepare`](Self::prepare) checks the options of each extension, and nothing else has
/// happened when one is wrong. Then each [`Around`] runs, from the outermost to the innermost, and the function in the
/// middle. The order is always the same: `deadline`, `tracing`, `retry`, `atomicLock`, then those that were registered, in the
/// order of their registration. So a registered extension runs only when the lock was granted, and, like the function, to its
/// end, even if the caller hangs up.
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

    /// Checks the options and gives what will run.
    ///
    /// # Errors
    ///
    /// All that is wrong with the options, with pointers below [`ExtensionCall::pointer`].
    fn prepare(&self, call: &ExtensionCall<'_>) -> Result<Box<dyn Around>, Errors>;
}

/// An extension as a request names it.
#[derive(Debug)]
pub struct ExtensionCall<'a> {
    /// The name that the request used, and that the answer has to use.
    pub urn: &'a Urn,
    /// The options, if there are any.
    pub options: Option<&'a RawObject<'a>>,
    /// Where it stands in the request: `/extensions/0`.
    pub pointer: Pointer,
    /// The function that is called.
    pub function: &'a FunctionName,
    pub(crate) caller: &'a Caller,
    /// The W3C `traceparent` that came with the request.
    pub(crate) traceparent: Option<&'a str>,
    pub(crate) locks: &'a NotedLocks,
}

impl ExtensionCall<'_> {
    /// The options as a type; those that were left out are an empty object.
    ///
    /// # Errors
    ///
    /// `INVALID_ARGUMENTS`, with a pointer to the first option that does not fit.
    pub fn read_options<T: DeserializeOwned>(&self) -> Result<T, Errors> {
        let at = self.pointer.clone().key("options");
        let options = self.options.cloned().unwrap_or_default();
        read_json(&options, at).map_err(Errors::from)
    }
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
    data: Vec<(Urn, RawObject<'static>)>,
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
    pub fn with_data(mut self, urn: Urn, data: &impl Serialize) -> Self {
        match RawObject::from_serialize(data) {
            Ok(data) => self.data.push((urn, data)),
            Err(error) => ::tracing::error!(%urn, %error, "extension data is no JSON object"),
        }
        self
    }

    pub(crate) fn into_parts(self) -> (CallResult, Vec<(Urn, RawObject<'static>)>) {
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
    steps: vec::IntoIter<Step>,
    end: End,
}

/// An extension that will run.
pub(crate) struct Step {
    /// Where it stands in the pipeline.
    pub(crate) place: usize,
    pub(crate) around: Box<dyn Around>,
}

impl Step {
    /// Whether it may run around a call that is known to fail: those before `atomicLock` only watch.
    pub(crate) fn is_harmless(&self) -> bool {
        self.place < PLACE_OF_ATOMIC_LOCK
    }
}

/// Where `atomicLock` stands in the pipeline.
pub(crate) const PLACE_OF_ATOMIC_LOCK: usize = 3;

/// What stands in the middle.
pub(crate) enum End {
    Call(PreparedCall, ResultRoom),
    /// The call is known to be wrong; the outer extensions still have their say.
    Fail(Errors),
}

impl Next {
    /// The extensions in any order, and what stands in the middle.
    pub(crate) fn new(mut steps: Vec<Step>, end: End) -> Self {
        if matches!(end, End::Fail(_)) {
            steps.retain(Step::is_harmless);
        }
        steps.sort_by_key(|step| step.place);
        Self {
            steps: steps.into_iter(),
            end,
        }
    }

    /// Runs nothing but those who watch, around a call that has failed already.
    pub(crate) async fn fail(self, context: Context, errors: impl Into<Errors>) -> Outcome {
        let failed = Self::new(self.steps.collect(), End::Fail(errors.into()));
        failed.run(context).await
    }

    /// Runs it.
    pub async fn run(mut self, context: Context) -> Outcome {
        match self.steps.next() {
            // A registered extension may do something after the function, and has to come to it.
            Some(step) if step.place > PLACE_OF_ATOMIC_LOCK => {
                let server = context.server.clone();
                let work = |context| async move { step.around.run(context, self).await };
                server.detach(context, work).await
            }
            Some(step) => step.around.run(context, self).await,
            None => match self.end {
                End::Fail(errors) => Outcome::failure(errors),
                End::Call(call, room) if context.is_detached => run_call(call, room, context).await,
                End::Call(call, room) => {
                    let server = context.server.clone();
                    server
                        .detach(context, |context| run_call(call, room, context))
                        .await
                }
            },
        }
    }
}

/// The function itself: ended by its deadline or the server's end, and its panics caught.
async fn run_call(call: PreparedCall, room: ResultRoom, context: Context) -> Outcome {
    let metrics = context.server.metrics.clone();
    let deadline = context.deadline.clone();
    let stop = context.server.stop.clone();
    let cancellation = context.cancellation.clone();
    let _tell_children = cancellation.drop_guard();
    let call = AssertUnwindSafe(async move { call(context).await }.instrument(span::function()))
        .catch_unwind();
    let result = tokio::select! {
        biased;
        error = exceeded(deadline.as_deref()) => {
            return Outcome { is_past_deadline: true, ..Outcome::failure(error) };
        }
        () = stop.cancelled() => Err(unavailable("The server is shutting down").into()),
        result = call => result.unwrap_or_else(|_| Err(internal_error().into())),
    };
    match result {
        // Here, before the next one is ready: there may be a thousand of them.
        Ok(result) if !room.holds(result.get().len()) => {
            metrics.refused(Refusal::Bytes);
            let message = "The function has run, and there is no room for its result";
            Outcome::failure(ErrorObject::new(ErrorCode::InternalError, message))
        }
        result => result.into(),
    }
}

/// The error of a deadline, once it has passed.
pub(crate) async fn exceeded(deadline: Option<&Deadline>) -> ErrorObject {
    match deadline {
        Some(deadline) => deadline.passed().await,
        None => std::future::pending().await,
    }
}
