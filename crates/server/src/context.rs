//! [`Context`]: what a function knows about its call, such as the caller, the deadline, the lease and the state of the
//! application.

mod builder;
mod cancellation;
mod values;

use std::ops::Deref;
use std::sync::Arc;

use forrst_lock::{Fence, Lease, LockName, LossNotice};
use forrst_protocol::{FunctionName, RawObject, RequestId, Version};
use smallvec::SmallVec;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use self::builder::ContextBuilder;
pub(crate) use self::cancellation::{Cancellation, Stop};
pub use self::values::MissingState;
pub(crate) use self::values::Values;
use crate::access::{Caller, Credential};
use crate::core::{CoreHandle, NotedLocks};
use crate::extension::{Deadline, Trace};

/// What a function is given besides its arguments. Cheap to clone.
///
/// A unit test of a function makes one with [`builder`](Self::builder).
#[derive(Debug, Clone)]
pub struct Context {
    pub(crate) call: Arc<CallInfo>,
    pub(crate) deadline: Option<Arc<Deadline>>,
    pub(crate) trace: Option<Arc<Trace>>,
    pub(crate) lease: Option<Arc<HeldLease>>,
    /// What extensions have added.
    pub(crate) values: Values,
}

/// What is the same for the whole call.
#[derive(Debug)]
pub(crate) struct CallInfo {
    pub(crate) id: RequestId,
    pub(crate) function: FunctionName,
    pub(crate) version: Version,
    pub(crate) context: Option<RawObject<'static>>,
    pub(crate) caller: Caller,
    /// How the caller authenticated; it may be revoked while the call is under way.
    pub(crate) credential: Credential,
    /// The address that the request came from.
    pub(crate) from: Option<Arc<str>>,
    pub(crate) received: Instant,
    pub(crate) locks: NotedLocks,
    /// The state of the application.
    pub(crate) state: Values,
    pub(crate) cancellation: Cancellation,
}

/// A call with the server that serves it, for the server's own functions.
#[derive(Debug, Clone)]
pub(crate) struct ServedCall {
    pub(crate) server: CoreHandle,
    pub(crate) context: Context,
}

impl Deref for ServedCall {
    type Target = Context;

    fn deref(&self) -> &Context {
        &self.context
    }
}

impl Context {
    /// Makes a context for a unit test of a function.
    pub fn builder() -> ContextBuilder {
        ContextBuilder::default()
    }

    /// Notes which locks the call is about, for the log.
    pub(crate) fn note_locks<'a>(&self, names: impl IntoIterator<Item = &'a LockName>) {
        // The first call counts: it has the locks of the request.
        let _ = self.call.locks.set(names.into_iter().cloned().collect());
    }

    /// The id of the request.
    pub fn request_id(&self) -> &RequestId {
        &self.call.id
    }

    /// The function that was called.
    pub fn function(&self) -> &FunctionName {
        &self.call.function
    }

    /// The version of the function that runs.
    pub fn version(&self) -> &Version {
        &self.call.version
    }

    /// The name of the caller's API key or certificate; `None` if the server does not authenticate callers.
    pub fn caller_name(&self) -> Option<&str> {
        self.call.caller.name().map(forrst_lock::Caller::as_str)
    }

    /// What the caller sent as `context`, unchanged.
    pub fn caller_context(&self) -> Option<&RawObject<'static>> {
        self.call.context.as_ref()
    }

    /// How long the function may still take; `None` if the caller set no deadline.
    pub fn remaining(&self) -> Option<std::time::Duration> {
        let deadline = self.deadline.as_ref()?;
        Some(deadline.at().saturating_duration_since(Instant::now()))
    }

    /// Returns when the caller has cancelled the call, with the extension `cancellation`, or when the function has to end for another
    /// reason: see [`cancellation`](Self::cancellation).
    ///
    /// A function that its caller has cancelled is not dropped: it should stop at a point where nothing is half done, and return.
    /// Its lock is held until then. Whatever it returns, the caller gets `CANCELLED`.
    pub async fn cancelled(&self) {
        self.cancellation().cancelled().await;
    }

    /// Cancelled when the function has to end: when its caller cancels the call, at its deadline, or at the end of the drain timeout.
    ///
    /// In the last two cases the function itself is dropped; tasks that it has spawned can watch this token.
    pub fn cancellation(&self) -> &CancellationToken {
        self.call.cancellation.token()
    }

    /// The lease of the lock that the caller asked for, if any.
    pub fn lease(&self) -> Option<&HeldLease> {
        self.lease.as_deref()
    }

    /// The trace that the call is part of, to be passed on in calls to other services.
    pub fn trace(&self) -> Option<&Trace> {
        self.trace.as_deref()
    }

    /// What the server was given as [`state`](crate::ServerBuilder::state): a pool of database connections, for example.
    ///
    /// # Errors
    ///
    /// If the server has no state of this type. With `?` in a function, the log names the type, and the caller gets
    /// `INTERNAL_ERROR`.
    pub fn state<T: Send + Sync + 'static>(&self) -> Result<&T, MissingState> {
        self.call.state.get().ok_or_else(MissingState::of::<T>)
    }

    /// A value that an extension added with [`with`](Self::with) for the inner extensions and the function.
    pub fn get<T: Send + Sync + 'static>(&self) -> Option<&T> {
        self.values.get()
    }

    /// Adds a value for the inner extensions and the function, and replaces one of the same type.
    #[must_use]
    pub fn with<T: Send + Sync + 'static>(mut self, value: T) -> Self {
        self.values.insert(value);
        self
    }
}

/// The lock that is held while the function runs.
#[derive(Debug)]
pub struct HeldLease {
    lease: Lease,
    /// In the order of the request.
    names: SmallVec<[LockName; 1]>,
    loss: LossNotice,
}

impl HeldLease {
    pub(crate) fn new(lease: Lease, names: SmallVec<[LockName; 1]>, loss: LossNotice) -> Self {
        Self { lease, names, loss }
    }

    /// What the protected resource compares: it refuses a write whose fence is smaller than the largest it has seen.
    pub fn fence(&self) -> Fence {
        self.lease.fence
    }

    /// The token that releases the lock.
    pub fn owner(&self) -> &str {
        self.lease.owner.as_str()
    }

    /// The full key of the lock; of a set, the first that the request named.
    pub fn key(&self) -> &str {
        let first = self.names.first();
        first.unwrap_or(self.lease.name()).as_str()
    }

    /// The full keys of the lease, in the order of the request: one, or those of a set. All of them are held until the lease ends.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &str> {
        self.names.iter().map(LockName::as_str)
    }

    /// Returns when the lease is over and another owner may hold the lock: when it expires, or as soon as it was released,
    /// force-released or shortened through this server. The function is not stopped by that.
    pub async fn lost(&self) {
        self.loss.lost().await;
    }

    /// How long the lease is certain to last.
    pub fn remaining(&self) -> std::time::Duration {
        self.loss.remaining()
    }

    /// Whether the lease is over. Once true, it stays true.
    pub fn is_lost(&self) -> bool {
        self.loss.is_lost()
    }
}
