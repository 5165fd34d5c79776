//! Locks by their full keys, for whoever looks after them.

use std::time::{Duration, SystemTime};

use futures_util::stream::{self, Stream, StreamExt, TryStreamExt};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::tries::{Repeat, Tries};
use crate::wire_duration::millis;
use crate::{Client, Error, Fence};

pub(crate) const ACQUIRE: &str = "urn:cline:forrst:ext:atomic-lock:fn:acquire";
pub(crate) const EXTEND: &str = "urn:cline:forrst:ext:atomic-lock:fn:extend";
const RELEASE: &str = "urn:cline:forrst:ext:atomic-lock:fn:release";
const FORCE_RELEASE: &str = "urn:cline:forrst:ext:atomic-lock:fn:force-release";
const STATUS: &str = "urn:cline:forrst:ext:atomic-lock:fn:status";
const LIST: &str = "urn:cline:forrst:ext:atomic-lock:fn:list";

/// As many as a page may have.
const WHOLE_PAGE: usize = 1000;

/// What can be done with locks by their full keys (`lock:…`).
#[derive(Debug, Clone)]
pub struct Locks {
    client: Client,
}

/// A lock that is held, and by whom.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct LockInfo {
    /// The name of the lock.
    #[serde(rename = "key")]
    pub full_key: String,
    /// The token that proves whose it is.
    pub owner: String,
    /// Its fencing token.
    pub fence: Fence,
    /// When it was taken, by the server's clock.
    #[serde(deserialize_with = "crate::wire_time::deserialize")]
    pub acquired_at: SystemTime,
    /// When it ends, by the server's clock.
    #[serde(deserialize_with = "crate::wire_time::deserialize")]
    pub expires_at: SystemTime,
    /// How long it lasts, in whole seconds, rounded up.
    #[serde(deserialize_with = "whole_seconds")]
    pub ttl_remaining: Duration,
}

/// Some of the locks that are held.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct Page {
    /// They, in the order that the server's store has them.
    pub locks: Vec<LockInfo>,
    /// Where the next page starts; none after the last one.
    pub cursor: Option<String>,
}

/// A lock that was extended.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct Extended {
    /// When it ends now, by the server's clock.
    #[serde(deserialize_with = "crate::wire_time::deserialize")]
    pub expires_at: SystemTime,
    /// Its fencing token, which is the same as before.
    pub fence: Fence,
}

/// Whose lease is meant, as `release` and `extend` want it.
#[derive(Debug, Serialize)]
pub(crate) struct LeaseArguments<'a> {
    pub(crate) key: &'a str,
    pub(crate) owner: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fence: Option<Fence>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ttl: Option<forrst_protocol::Duration>,
}

fn whole_seconds<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    u64::deserialize(deserializer).map(Duration::from_secs)
}

impl Locks {
    pub(crate) fn new(client: Client) -> Self {
        Self { client }
    }

    /// Who holds the lock; none when it is free.
    pub async fn status(&self, full_key: &str) -> Result<Option<LockInfo>, Error> {
        #[derive(Deserialize)]
        struct Status {
            locked: bool,
            #[serde(flatten)]
            rest: serde_json::Value,
        }

        let status: Status = self.client.ask(STATUS, &json!({"key": full_key})).await?;
        if !status.locked {
            return Ok(None);
        }
        let info = LockInfo::deserialize(status.rest);
        info.map(Some).map_err(|why| Error::Protocol(why.into()))
    }

    /// Releases a lock by its owner's token, and only that lease where its fence is named.
    ///
    /// Repeated after a lost answer, it counts as done when the server says that it was done before.
    ///
    /// # Errors
    ///
    /// [`Error::NotHeld`], [`Error::AlreadyReleased`] and [`Error::Mismatch`] when it is not this owner's, or not any more.
    pub async fn release(
        &self,
        full_key: &str,
        owner: &str,
        fence: Option<Fence>,
    ) -> Result<(), Error> {
        let mut tries = Tries::start(self.client.retry().clone(), Repeat::Always, None);
        let released = self.release_by(full_key, owner, fence, &mut tries).await;
        match released {
            Err(Error::AlreadyReleased(_)) if tries.has_lost_answer() => Ok(()),
            released => released,
        }
    }

    pub(crate) async fn release_by(
        &self,
        full_key: &str,
        owner: &str,
        fence: Option<Fence>,
        tries: &mut Tries,
    ) -> Result<(), Error> {
        let arguments = LeaseArguments {
            key: full_key,
            owner,
            fence,
            ttl: None,
        };
        let released = self.client.ask_by(RELEASE, &arguments, tries).await;
        released.map(|IgnoredAny| ())
    }

    /// Ends the lease of any owner, and only that of `fence` where one is named.
    ///
    /// Not repeated when its answer is lost: without a fence it could hit the next holder.
    ///
    /// # Errors
    ///
    /// [`Error::NotHeld`] when the lock is free; [`Error::Mismatch`] when a lease with another fence holds it;
    /// [`Error::Forbidden`] for a caller that may not do this.
    pub async fn force_release(&self, full_key: &str, fence: Option<Fence>) -> Result<(), Error> {
        let mut tries = Tries::start(self.client.retry().clone(), Repeat::IfNotRun, None);
        let mut arguments = json!({"key": full_key});
        if let Some(fence) = fence {
            arguments["fence"] = json!(fence);
        }
        let released = self
            .client
            .ask_by(FORCE_RELEASE, &arguments, &mut tries)
            .await;
        released.map(|IgnoredAny| ())
    }

    /// Lets a lock end `ttl` from now.
    ///
    /// # Errors
    ///
    /// As [`release`](Self::release): a lock that has expired is not revived.
    pub async fn extend(
        &self,
        full_key: &str,
        owner: &str,
        fence: Option<Fence>,
        ttl: Duration,
    ) -> Result<Extended, Error> {
        let arguments = LeaseArguments {
            key: full_key,
            owner,
            fence,
            ttl: Some(millis(ttl)),
        };
        self.client.ask(EXTEND, &arguments).await
    }

    /// Some of the locks that are held: those whose full key starts with `prefix`, at most `limit` (100 when none, 1000 at
    /// most), from where `cursor` of the last page says.
    pub async fn list(
        &self,
        prefix: &str,
        limit: Option<usize>,
        cursor: Option<&str>,
    ) -> Result<Page, Error> {
        let mut arguments = json!({"prefix": prefix});
        if let Some(limit) = limit {
            arguments["limit"] = limit.into();
        }
        if let Some(cursor) = cursor {
            arguments["cursor"] = cursor.into();
        }
        self.client.ask(LIST, &arguments).await
    }

    /// All locks that are held and whose full key starts with `prefix`, page after page.
    ///
    /// Each page is a look of its own: what is acquired or released in between may be missed.
    pub fn list_all(
        &self,
        prefix: &str,
    ) -> impl Stream<Item = Result<LockInfo, Error>> + Send + use<> {
        let locks = self.clone();
        let prefix = prefix.to_owned();
        let pages = stream::try_unfold(Some(None::<String>), move |next| {
            let (locks, prefix) = (locks.clone(), prefix.clone());
            async move {
                let Some(cursor) = next else { return Ok(None) };
                let page = locks
                    .list(&prefix, Some(WHOLE_PAGE), cursor.as_deref())
                    .await?;
                let next = page.cursor.map(Some);
                Ok::<_, Error>(Some((page.locks, next)))
            }
        });
        pages
            .map_ok(|locks| stream::iter(locks).map(Ok))
            .try_flatten()
    }
}
