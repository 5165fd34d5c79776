//! Cancelling a call: the server is asked to end it, on whichever node it is.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forrst_protocol::{ErrorCode, ExtensionRequest, RawObject, Urn};
use futures_util::future::join_all;
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
    tries: Mutex<Sent>,
    /// Ends the tries here.
    stop: CancellationToken,
}

#[derive(Debug, Default)]
struct Sent {
    count: u32,
    /// Those without an answer, which may still be under way.
    lost: Vec<u32>,
}

impl Tokens {
    pub(crate) fn new() -> Self {
        Self(Arc::new(State {
            name: uuid::Uuid::new_v4(),
            tries: Mutex::default(),
            stop: CancellationToken::new(),
        }))
    }

    pub(crate) fn stop(&self) -> &CancellationToken {
        &self.0.stop
    }

    /// The extension for the next try; an error if the call was cancelled. A server that does not know it carries out the call all
    /// the same.
    pub(crate) fn next(&self) -> Result<ExtensionRequest<'static>, Error> {
        let mut sent = self.sent();
        if self.0.stop.is_cancelled() {
            return Err(match sent.lost.is_empty() {
                true => Error::Cancelled(None),
                false => {
                    Error::Interrupted("it was cancelled after a try without an answer".into())
                }
            });
        }
        sent.count += 1;
        let urn = Urn::parse("urn:forrst:ext:cancellation");
        let urn = urn.map_err(|why| Error::InvalidRequest(why.into()))?;
        let options = RawObject::from_serialize(&json!({"token": self.token(sent.count)}));
        let options = options.map_err(|why| Error::InvalidRequest(why.into()))?;
        Ok(ExtensionRequest {
            urn,
            options: Some(options),
            required: false,
        })
    }

    /// The last try has no answer.
    pub(crate) fn lost_answer(&self) {
        let mut sent = self.sent();
        let last = sent.count;
        sent.lost.push(last);
    }

    fn token(&self, number: u32) -> String {
        format!("{}.{number}", self.0.name.simple())
    }

    /// No critical section panics half-way.
    fn sent(&self) -> MutexGuard<'_, Sent> {
        self.0.tries.lock().unwrap_or_else(PoisonError::into_inner)
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
        let (last, lost) = {
            let sent = self.tokens.sent();
            self.tokens.0.stop.cancel();
            (sent.count, sent.lost.clone())
        };
        if last == 0 {
            return Ok(());
        }
        // Nothing else tells how those end whose answers were lost.
        let earlier = lost.into_iter().filter(|number| *number != last);
        let earlier = join_all(earlier.map(|number| self.cancel_try(number)));
        let (cancelled, _) = tokio::join!(self.cancel_last(last), earlier);
        cancelled
    }

    async fn cancel_last(&self, last: u32) -> Result<(), Error> {
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
