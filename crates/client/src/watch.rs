//! Watching a lock: the server answers a request as soon as the leases on a key change, so that nothing has to be polled.
//!
//! These requests have connections of their own. They take long, and a server limits how many requests are under way on one
//! connection: those that watch must not delay a renewal or a release.

use std::time::Duration;

use forrst_protocol::RawObject;
use futures_util::stream::{self, Stream};
use serde::Deserialize;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokio::time::sleep;

use crate::client::{Patience, request_to, result_of};
use crate::lock_info::LockStatus;
use crate::{Client, Error, Failure, Retry};

const WATCH: &str = "urn:cline:forrst:ext:atomic-lock:fn:watch";

/// How long a server waits for a change before it answers anyway.
const SERVER_WAIT: Duration = Duration::from_secs(30);

/// How late that answer may be. A request that is lost is not worth waiting for: another one can be sent at any time.
const LATENESS: Duration = Duration::from_secs(15);

/// Between an answer and the next request, so that a lock that changes all the time does not keep both sides busy.
const PAUSE: Duration = Duration::from_millis(50);

#[derive(Debug, Serialize)]
pub(crate) struct WatchArguments<'a> {
    pub(crate) key: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) since: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) owner: Option<&'a str>,
}

impl Client {
    /// Sends one request, which is answered when the leases on the key are others than at the revision `since`, or after a while.
    pub(crate) async fn watch_once<Out: DeserializeOwned>(
        &self,
        arguments: &WatchArguments<'_>,
    ) -> Result<Out, Error> {
        let arguments = RawObject::from_serialize(arguments);
        let arguments = arguments.map_err(|why| Error::InvalidRequest(why.into()))?;
        let request = request_to(WATCH)?.with_arguments(arguments);
        let patience = Patience::For(SERVER_WAIT + self.timeout().min(LATENESS));
        let answer = self.send_over(self.watching(), request, patience).await;
        if matches!(answer, Err(Error::Interrupted(_))) {
            self.watching().distrust_connection();
        }
        result_of(answer?)
    }
}

/// How long to wait after an error, the last of `failed` in a row.
///
/// A server that is gone may be back at once. One that refuses will refuse the next request, too.
pub(crate) fn pause_after(error: &Error, failed: u32) -> Duration {
    let (first, longest) = match error {
        Error::Unreachable(_) | Error::Interrupted(_) | Error::Unavailable(_) => (100, 2_000),
        _ => (1_000, 60_000),
    };
    let retry = Retry::default()
        .first_pause(Duration::from_millis(first))
        .longest_pause(Duration::from_millis(longest));
    let named = error.failure().and_then(Failure::retry_after);
    retry.backoff(failed).max(named.unwrap_or_default())
}

/// The state of a lock, at first and after each change of its leases. See [`Locks::watch`](crate::Locks::watch).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Change {
    /// Who holds the lock now, if it is held.
    pub status: LockStatus,
    /// The JSON that the server sent, which may have members that this client does not know.
    pub json: Box<RawValue>,
}

/// The changes of a lock, without end.
pub(crate) fn changes(
    client: Client,
    full_key: String,
) -> impl Stream<Item = Result<Change, Error>> + Send + use<> {
    let watch = Watch {
        client,
        full_key,
        since: None,
        failed: 0,
        pause: Duration::ZERO,
    };
    stream::unfold(watch, async |mut watch| Some((watch.next().await, watch)))
}

struct Watch {
    client: Client,
    full_key: String,
    since: Option<String>,
    failed: u32,
    /// Before the next request.
    pause: Duration,
}

impl Watch {
    async fn next(&mut self) -> Result<Change, Error> {
        loop {
            sleep(self.pause).await;
            match self.ask().await {
                Ok((revision, change)) => {
                    self.failed = 0;
                    self.pause = PAUSE;
                    let is_new = self.since.as_ref() != Some(&revision);
                    self.since = Some(revision);
                    if is_new {
                        return Ok(change);
                    }
                }
                Err(error) => {
                    // The next answer is an update, changed or not.
                    self.since = None;
                    self.failed = self.failed.saturating_add(1);
                    self.pause = pause_after(&error, self.failed);
                    return Err(error);
                }
            }
        }
    }

    async fn ask(&self) -> Result<(String, Change), Error> {
        #[derive(Deserialize)]
        struct Revised {
            revision: String,
        }

        let json: Box<RawValue> = self
            .client
            .watch_once(&WatchArguments {
                key: &self.full_key,
                since: self.since.as_deref(),
                owner: None,
            })
            .await?;
        let unreadable = |why: serde_json::Error| Error::Protocol(why.into());
        let Revised { revision } = Revised::deserialize(&*json).map_err(unreadable)?;
        let status = LockStatus::deserialize(&*json).map_err(unreadable)?;
        Ok((revision, Change { status, json }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_with_the_failures_and_are_longer_after_a_refusal() {
        let gone = Error::Unreachable("gone".into());
        let refused = Error::Forbidden(None);
        for (error, first, longest) in [(gone, 100, 2_000), (refused, 1_000, 60_000)] {
            let (first, longest) = (Duration::from_millis(first), Duration::from_millis(longest));
            assert!((first / 2..=first).contains(&pause_after(&error, 1)));
            assert!((longest / 2..=longest).contains(&pause_after(&error, u32::MAX)));
        }
    }
}
