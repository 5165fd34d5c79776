//! Cancelling a call: the server is asked to end it, on whichever node it is.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use forrst_protocol::{ErrorCode, ExtensionRequest, RawObject, Urn};
use serde::Deserialize;
use serde_json::json;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::{Client, Error};

const CANCEL: &str = "urn:cline:forrst:ext:cancellation:fn:cancel";

/// For how long a call that was just sent may be unknown to the server.
const UNKNOWN_FOR: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(20);

/// Cancels one call: see [`Call::cancellable`](crate::Call::cancellable). Cheap to clone.
#[derive(Debug, Clone)]
pub struct CancelHandle {
    client: Client,
    tokens: Tokens,
}

/// The tokens of the tries of one call: a try may still be under way on the server when the next one begins.
#[derive(Debug, Clone)]
pub(crate) struct Tokens(Arc<State>);

#[derive(Debug)]
struct State {
    name: uuid::Uuid,
    tries: AtomicU32,
    /// Ends the tries here.
    stop: CancellationToken,
}

impl Tokens {
    pub(crate) fn new() -> Self {
        Self(Arc::new(State {
            name: uuid::Uuid::new_v4(),
            tries: AtomicU32::new(0),
            stop: CancellationToken::new(),
        }))
    }

    pub(crate) fn stop(&self) -> &CancellationToken {
        &self.0.stop
    }

    /// The extension for the next try; an error if the call was cancelled.
    pub(crate) fn next(&self) -> Result<ExtensionRequest<'static>, Error> {
        let number = self.0.tries.fetch_add(1, Ordering::SeqCst) + 1;
        if self.0.stop.is_cancelled() {
            return Err(Error::Cancelled(None));
        }
        let urn = Urn::parse("urn:forrst:ext:cancellation");
        let urn = urn.map_err(|why| Error::InvalidRequest(why.into()))?;
        let options = RawObject::from_serialize(&json!({"token": self.token(number)}));
        let options = options.map_err(|why| Error::InvalidRequest(why.into()))?;
        Ok(ExtensionRequest::new(urn).with_options(options))
    }

    fn token(&self, number: u32) -> String {
        format!("{}.{number}", self.0.name.simple())
    }
}

#[derive(Deserialize)]
struct Cancelled {}

impl CancelHandle {
    pub(crate) fn new(client: Client, tokens: Tokens) -> Self {
        Self { client, tokens }
    }

    /// Cancels the call, and returns when the server has accepted that; the call ends soon after, with [`Error::Cancelled`].
    ///
    /// A call that was not sent yet will not be sent, and no try is repeated from now on.
    ///
    /// # Errors
    ///
    /// If the call has ended by now (`CANCELLATION_TOO_LATE`, `CANCELLATION_TOKEN_UNKNOWN`), or the server cannot be asked.
    pub async fn cancel(&self) -> Result<(), Error> {
        self.tokens.0.stop.cancel();
        let last = self.tokens.0.tries.load(Ordering::SeqCst);
        if last == 0 {
            return Ok(());
        }
        for earlier in 1..last {
            // Its answer was lost, so nothing else knows how it ends.
            let _ = self.cancel_try(earlier).await;
        }
        let started = Instant::now();
        loop {
            let Err(error) = self.cancel_try(last).await else {
                return Ok(());
            };
            // The cancellation may have overtaken the call.
            let is_unknown = error.code() == Some(&ErrorCode::CancellationTokenUnknown);
            if !is_unknown || started.elapsed() > UNKNOWN_FOR {
                return Err(error);
            }
            sleep(PAUSE).await;
        }
    }

    async fn cancel_try(&self, number: u32) -> Result<(), Error> {
        let arguments = json!({"token": self.tokens.token(number)});
        let cancelled = self.client.ask(CANCEL, &arguments).await;
        cancelled.map(|Cancelled {}| ())
    }
}
