//! A call that is put together, and then awaited.

use std::marker::PhantomData;
use std::pin::Pin;
use std::time::Duration;

use forrst_protocol::{ExtensionRequest, RawObject, Request, Response, Version};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use tracing::Instrument;

use crate::client::{request_to, result_of};
use crate::tries::{Repeat, Tries};
use crate::wait::{Wait, is_contended};
use crate::{Client, Error, Lock, Retry};

/// A call of a function. Awaited, it is sent, and gives the function's result.
///
/// # What is tried again
///
/// A function may charge a card, so a call whose answer was lost is not simply sent again. By default it is only when the
/// function certainly did not begin: the server could not be reached, it answered `RATE_LIMITED` or that it is under maintenance,
/// or `UNAVAILABLE` before the call's lock was acquired. (Without a lock `UNAVAILABLE` proves nothing: a function that
/// is ended because its server shuts down answers so, too.) A lock that somebody else holds is a matter of
/// [`Retry::on_contention`].
///
/// [`idempotent`](Self::idempotent) calls are also tried again after a broken connection, an answer that did not come in time,
/// any `UNAVAILABLE`, and errors that the protocol calls retryable.
///
/// # Giving up
///
/// A call that is dropped disconnects over HTTP: if it waits for its lock, it leaves the queue. A WebSocket or a unix socket carries
/// other calls, too, and stays open, so there the server goes on; give such a call a [`deadline`](Self::deadline).
#[must_use = "a call is not sent until it is awaited"]
#[derive(Debug)]
pub struct Call<Out> {
    client: Client,
    /// The mistake, when there is one, is told to whoever awaits the call.
    request: Result<Request<'static>, Error>,
    lock: Option<Lock>,
    deadline: Option<Duration>,
    retry: Retry,
    repeat: Repeat,
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
            out: PhantomData,
        }
    }

    /// Lets the function run under a lock.
    pub fn lock(mut self, lock: Lock) -> Self {
        self.lock = Some(lock);
        self
    }

    /// Asks for one version of the function.
    pub fn version(mut self, version: &str) -> Self {
        let version = Version::parse(version).map_err(|why| Error::InvalidRequest(why.into()));
        self.request = self
            .request
            .and_then(|request| Ok(request.with_version(version?)));
        self
    }

    /// Sends context along, which has to be a JSON object when written.
    pub fn context<T: Serialize + ?Sized>(mut self, context: &T) -> Self {
        let context = RawObject::from_serialize(context);
        let context = context.map_err(|why| Error::InvalidRequest(why.into()));
        self.request = self
            .request
            .and_then(|request| Ok(request.with_context(context?)));
        self
    }

    /// Adds an extension that this client knows nothing of.
    pub fn extension(mut self, extension: ExtensionRequest<'static>) -> Self {
        self.request = self
            .request
            .map(|request| request.with_extension(extension));
        self
    }

    /// How long all of it may take, tries and pauses included. The server is told what is left, and ends the call then.
    pub fn deadline(mut self, time: Duration) -> Self {
        self.deadline = Some(time);
        self
    }

    /// How the call is repeated, where it may be.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    /// Says that the function does no harm when it runs twice.
    pub fn idempotent(mut self) -> Self {
        self.repeat = Repeat::Always;
        self
    }

    /// Sends the call, and gives the whole answer: result or errors, data of the extensions, and the node.
    ///
    /// # Errors
    ///
    /// Only what kept an answer from coming. Errors that the server names are in the response.
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
        let mut wait = Wait::start(self.lock.as_ref().and_then(Lock::waits));
        let send = async {
            loop {
                let mut request = request.clone();
                if let Some(lock) = &self.lock {
                    request = request.with_extension(lock.request(wait.left())?);
                }
                let patience = self.client.patience(deadline, wait.left());
                let error = match self.client.send(request, patience).await {
                    Ok(response) => return Ok(response),
                    Err(error) => error,
                };
                let was_contended = is_contended(&error);
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
