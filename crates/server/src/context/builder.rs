//! [`ContextBuilder`]: contexts for unit tests of functions, without a server.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use forrst_lock::{Fence, Lease, LockName, Locks, LossNotice, Owner, Timestamp};
use forrst_protocol::{FunctionName, RawObject, RequestId, Version};
use smallvec::smallvec;
use tokio::time::Instant;

use super::{CallInfo, Cancellation, Context, HeldLease, Stop, Values};
use crate::access::{Caller, Credential};
use crate::core::NotedLocks;
use crate::extension::Deadline;

/// Builds a [`Context`] for a unit test of a function, without a server. By default, the call has no API key, no lock and no
/// deadline.
///
/// ```
/// use std::time::Duration;
///
/// use forrst_server::{Context, FunctionError};
///
/// async fn charge(context: Context, amount: u64) -> Result<String, FunctionError> {
///     let fence = context.lease().map(|lease| lease.fence().number());
///     Ok(format!("{} charges {amount} under fence {fence:?}", context.state::<String>()?))
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let context = Context::builder()
///     .state("the till".to_owned())
///     .lease("lock:user:1", 7, Duration::from_secs(30))
///     .build()?;
/// assert_eq!(charge(context, 100).await.unwrap(), "the till charges 100 under fence Some(7)");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct ContextBuilder {
    id: String,
    function: String,
    version: String,
    caller: Option<String>,
    context: Option<RawObject<'static>>,
    deadline: Option<Duration>,
    lease: Option<(String, u64, Duration)>,
    state: Values,
    values: Values,
}

impl Default for ContextBuilder {
    fn default() -> Self {
        Self {
            id: "test".to_owned(),
            function: "test.function".to_owned(),
            version: "1.0.0".to_owned(),
            caller: None,
            context: None,
            deadline: None,
            lease: None,
            state: Values::default(),
            values: Values::default(),
        }
    }
}

impl ContextBuilder {
    /// The id of the request; `test` by default.
    #[must_use]
    pub fn request_id(mut self, id: impl Into<String>) -> Self {
        self.id = id.into();
        self
    }

    /// The function that was called, and its version; `test.function` in 1.0.0 by default.
    #[must_use]
    pub fn function(mut self, name: impl Into<String>, version: impl Into<String>) -> Self {
        self.function = name.into();
        self.version = version.into();
        self
    }

    /// The name of the caller's key or certificate.
    #[must_use]
    pub fn caller(mut self, name: impl Into<String>) -> Self {
        self.caller = Some(name.into());
        self
    }

    /// What the caller sent as `context`.
    #[must_use]
    pub fn caller_context(mut self, context: RawObject<'static>) -> Self {
        self.context = Some(context);
        self
    }

    /// How long the function may take, from [`build`](Self::build) on.
    #[must_use]
    pub fn deadline(mut self, time: Duration) -> Self {
        self.deadline = Some(time);
        self
    }

    /// The lock that the call holds: its full key, its fence, and how long it lasts from [`build`](Self::build) on.
    #[must_use]
    pub fn lease(mut self, key: impl Into<String>, fence: u64, ttl: Duration) -> Self {
        self.lease = Some((key.into(), fence, ttl));
        self
    }

    /// As [`ServerBuilder::state`](crate::ServerBuilder::state).
    #[must_use]
    pub fn state<T: Send + Sync + 'static>(mut self, state: T) -> Self {
        self.state.insert(state);
        self
    }

    /// A value that an extension would have added: see [`Context::with`].
    #[must_use]
    pub fn value<T: Send + Sync + 'static>(mut self, value: T) -> Self {
        self.values.insert(value);
        self
    }

    /// The context.
    ///
    /// # Errors
    ///
    /// If one of the values is not valid in a request.
    pub fn build(self) -> Result<Context, Box<dyn Error + Send + Sync>> {
        let received = Instant::now();
        let caller = self.caller.as_deref().map(forrst_lock::Caller::parse);
        let lease = self.lease.map(|(key, fence, ttl)| held(&key, fence, ttl));
        let deadline = self.deadline.map(|time| Deadline::after(time, received));
        Ok(Context {
            call: Arc::new(CallInfo {
                id: RequestId::parse(&self.id)?,
                function: FunctionName::parse(&self.function)?,
                version: Version::parse(&self.version)?,
                context: self.context,
                caller: Caller::with_all_rights(caller.transpose()?),
                credential: Credential::Local,
                from: None,
                received,
                locks: NotedLocks::default(),
                state: self.state,
                cancellation: Cancellation::new(Arc::new(Stop::default())),
            }),
            deadline: deadline.map(Arc::new),
            trace: None,
            lease: lease.transpose()?.map(Arc::new),
            values: self.values,
        })
    }
}

fn held(key: &str, fence: u64, ttl: Duration) -> Result<HeldLease, Box<dyn Error + Send + Sync>> {
    let name = LockName::parse(key)?;
    let now = Timestamp::from_millis(0);
    let lease = Lease {
        locks: Locks::exclusive(name.clone()),
        owner: Owner::random(),
        caller: None,
        note: None,
        fence: Fence::new(fence).ok_or("the fence is out of range")?,
        acquired_at: now,
        expires_at: now + ttl,
    };
    Ok(HeldLease::new(
        lease,
        smallvec![name],
        LossNotice::after(ttl),
    ))
}
