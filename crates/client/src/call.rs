//! Calls of functions: built step by step, sent when they are awaited, and retried where that is safe.

use std::marker::PhantomData;
use std::pin::Pin;
use std::time::Duration;

use forrst_protocol::{ExtensionRequest, RawObject, Request, Response, Version};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use tracing::Instrument;

use crate::cancel::Tokens;
use crate::client::{request_to, result_of};
use crate::tries::{Repeat, Tries};
use crate::wait::{Wait, is_contended};
use crate::{CancelHandle, Client, Error, Lock, Retry};

/// A call of a function. It is sent when it is awaited, and gives the function's result.
///
/// # Retries
///
/// A function may charge a card, so by default a call is retried only if the function certainly did not begin: the server could
/// not be reached, or it answered `RATE_LIMITED`, that it is under maintenance, or `UNAVAILABLE` before the call's lock was
/// acquired. (Without a lock, `UNAVAILABLE` proves nothing: it is also the answer when a server that shuts down ends the function.)
/// Whether a call is retried when its lock is held is up to [`Retry::on_contention`].
///
/// [`idempotent`](Self::idempotent) calls are also retried after a broken connection, a timeout, any `UNAVAILABLE`, and errors
/// that the protocol calls retryable.
///
/// # Cancellation
///
/// Over HTTP, a call that is dropped disconnects: if it waits for its lock, it leaves the queue, and a function that has begun runs to
/// completion. A WebSocket or a unix socket stays open for other calls, so there the server continues the call; give such a call a
/// [`deadline`](Self::deadline). A [`cancellable`](Self::cancellable) call can be ended over any transport, even when its function
/// runs.
#[must_use = "a call is not sent until it is awaited"]
#[derive(Debug)]
pub struct Call<Out> {
    client: Client,
    /// An invalid request is reported when the call is awaited.
    request: Result<Request<'static>, Error>,
    lock: Option<Lock>,
    deadline: Option<Duration>,
    retry: Retry,
    repeat: Repeat,
    tokens: Option<Tokens>,
    out: PhantomData<fn() -> Out>,
}

impl<Out> Call<Out> {
    pub(crate) fn new(
        client: Client,
        function: &str,
        arguments: Result<RawObject<'static>, serde_json::Error>,
    ) -> Self {
        let arguments = arguments.map_err(|why| Error::InvalidRequest(why.into()));
        let request =
            request_to(function).and_then(|request| Ok(request.with_arguments(arguments?)));
        Self {
            retry: client.retry().clone(),
            client,
            request,
            lock: None,
            deadline: None,
            repeat: Repeat::IfNotRun,
            tokens: None,
            out: PhantomData,
        }
    }

    /// Runs the function under a lock.
    pub fn lock(mut self, lock: Lock) -> Self {
        self.lock = Some(lock);
        self
    }

    /// Calls this version of the function.
    pub fn version(mut self, version: &str) -> Self {
        let version = Version::parse(version).map_err(|why| Error::InvalidRequest(why.into()));
        self.request = self
            .request
            .and_then(|request| Ok(request.with_version(version?)));
        self
    }

    /// Sends this context, which has to serialise to a JSON object.
    pub fn context<T: Serialize + ?Sized>(mut self, context: &T) -> Self {
        let context = RawObject::from_serialize(context);
        let context = context.map_err(|why| Error::InvalidRequest(why.into()));
        self.request = self
            .request
            .and_then(|request| Ok(request.with_context(context?)));
        self
    }

    /// Adds an extension that this client has no method for.
    pub fn extension(mut self, extension: ExtensionRequest<'static>) -> Self {
        self.request = self
            .request
            .map(|request| request.with_extension(extension));
        self
    }

    /// How long the call may take, retries and pauses included. The server receives what is left, and ends the call then.
    pub fn deadline(mut self, time: Duration) -> Self {
        self.deadline = Some(time);
        self
    }

    /// How the call is retried, where that is safe.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    /// Declares that the function may safely run twice.
    pub fn idempotent(mut self) -> Self {
        self.repeat = Repeat::Always;
        self
    }

    /// Also returns a handle that cancels the call. A call that waits for its lock leaves the queue; a function is notified, and its lock
    /// is released when it has ended. Either way the call ends with [`Error::Cancelled`].
    ///
    /// ```no_run
    /// # async fn example(client: forrst_client::Client) -> Result<String, forrst_client::Error> {
    /// # let arguments = serde_json::json!({});
    /// # let user_gave_up = std::future::pending::<()>();
    /// let (call, cancel) = client.call("reports.build", arguments).cancellable();
    /// let mut call = call.into_future();
    /// tokio::select! {
    ///     report = &mut call => report,
    ///     () = user_gave_up => {
    ///         cancel.cancel().await?;
    ///         // `Error::Cancelled`, as soon as the function has stopped.
    ///         call.await
    ///     }
    /// }
    /// # }
    /// ```
    ///
    /// Each such call costs the server's store two more steps.
    pub fn cancellable(mut self) -> (Self, CancelHandle) {
        let tokens = Tokens::new();
        self.tokens = Some(tokens.clone());
        let handle = CancelHandle::new(self.client.clone(), tokens);
        (self, handle)
    }

    /// Sends the call, and gives the whole answer: result or errors, data of the extensions, and the node.
    ///
    /// # Errors
    ///
    /// Only when there is no answer. Errors that the server reports are in the response.
    pub async fn response(self) -> Result<Response, Error> {
        self.send().await.or_else(|error| match error.failure() {
            Some(failure) => Ok(failure.response().clone()),
            None => Err(error),
        })
    }

    async fn send(self) -> Result<Response, Error> {
        let request = self.request?;
        let function = request.call.function.as_str();
        let span = tracing::info_span!("forrst.call", function, id = request.id.as_str());
        let deadline = self
            .deadline
            .and_then(|time| Instant::now().checked_add(time));
        let mut tries = Tries::start(self.retry, self.repeat, deadline);
        if let Some(tokens) = &self.tokens {
            tries.stop_with(tokens.stop().clone());
        }
        let mut wait = Wait::start(self.lock.as_ref().and_then(Lock::wait_time));
        let send = async {
            loop {
                let mut request = request.clone();
                if let Some(lock) = &self.lock {
                    request = request.with_extension(lock.extension(wait.left())?);
                }
                if let Some(tokens) = &self.tokens {
                    request = request.with_extension(tokens.next()?);
                }
                let patience = self.client.patience(deadline, wait.left());
                let error = match self.client.send(request, patience).await {
                    Ok(response) => return Ok(response),
                    Err(error) => error,
                };
                if let Some(tokens) = &self.tokens
                    && error.failure().is_none()
                {
                    tokens.lost_answer();
                }
                let was_contended = is_contended(&error);
                tries.last_until(wait.end());
                tries.after(error).await?;
                if was_contended {
                    wait.restart();
                }
            }
        };
        send.instrument(span).await
    }
}

impl<Out: DeserializeOwned + 'static> IntoFuture for Call<Out> {
    type Output = Result<Out, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { result_of(self.send().await?) })
    }
}
