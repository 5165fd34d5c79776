//! Locks by their full keys, for operators.

use std::time::Duration;

use futures_util::stream::{self, Stream, StreamExt, TryStreamExt};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::lock_info::{Extended, LockInfo, LockStatus, Page, Waiter, Withdrawn};
use crate::tries::{Repeat, Tries};
use crate::wire_duration::millis;
use crate::{Client, Error, Fence, Query};

pub(crate) const ACQUIRE: &str = "urn:cline:forrst:ext:atomic-lock:fn:acquire";
pub(crate) const EXTEND: &str = "urn:cline:forrst:ext:atomic-lock:fn:extend";
const RELEASE: &str = "urn:cline:forrst:ext:atomic-lock:fn:release";
const FORCE_RELEASE: &str = "urn:cline:forrst:ext:atomic-lock:fn:force-release";
const WITHDRAW: &str = "urn:cline:forrst:ext:atomic-lock:fn:withdraw";
const WAITERS: &str = "urn:cline:forrst:ext:atomic-lock:fn:waiters";
const STATUS: &str = "urn:cline:forrst:ext:atomic-lock:fn:status";
const LIST: &str = "urn:cline:forrst:ext:atomic-lock:fn:list";

/// As many as a page may have.
const WHOLE_PAGE: usize = 1000;

/// What can be done with locks by their full keys (`lock:…`).
#[derive(Debug, Clone)]
pub struct Locks {
    client: Client,
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

impl Locks {
    pub(crate) fn new(client: Client) -> Self {
        Self { client }
    }

    /// Whether the lock is held, and by whom.
    pub fn status(&self, full_key: &str) -> Query<LockStatus> {
        Query::new(self.client.clone(), STATUS, json!({"key": full_key}))
    }

    /// Releases a lock by its owner's token, and only that lease where its fence is named. Any key of a lock on several will do.
    ///
    /// Repeated after a lost answer, it counts as done when the server says that it was done before.
    ///
    /// # Errors
    ///
    /// [`Error::NotHeld`], [`Error::AlreadyReleased`] and [`Error::Mismatch`] when it is not this owner's, or not any more;
    /// [`Error::Rejected`] when the owner has several leases on the key, and none is named.
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

    /// Ends every lease on a key, of any owner, or only that of `fence` where one is named; says how many.
    ///
    /// Not repeated when its answer is lost: without a fence it could hit the next holder.
    ///
    /// # Errors
    ///
    /// [`Error::NotHeld`] when the lock is free; [`Error::Mismatch`] when leases with other fences hold it;
    /// [`Error::Forbidden`] for a caller that may not do this, or not to every key of a lease.
    pub async fn force_release(
        &self,
        full_key: &str,
        fence: Option<Fence>,
    ) -> Result<usize, Error> {
        #[derive(Deserialize)]
        struct Forced {
            /// A server of the bare extension has one lease on a key, and does not count.
            #[serde(default = "one")]
            leases: usize,
        }

        const fn one() -> usize {
            1
        }

        let mut tries = Tries::start(self.client.retry().clone(), Repeat::IfNotRun, None);
        let mut arguments = json!({"key": full_key});
        if let Some(fence) = fence {
            arguments["fence"] = json!(fence);
        }
        let forced: Forced = self
            .client
            .ask_by(FORCE_RELEASE, &arguments, &mut tries)
            .await?;
        Ok(forced.leases)
    }

    /// Takes an attempt back whose outcome is not known, whatever that was. See [`Acquire::attempt`](crate::Acquire::attempt).
    pub async fn withdraw(
        &self,
        full_key: &str,
        owner: &str,
        attempt: &str,
    ) -> Result<Withdrawn, Error> {
        let mut tries = Tries::start(self.client.retry().clone(), Repeat::Always, None);
        self.withdraw_by(full_key, owner, attempt, &mut tries).await
    }

    pub(crate) async fn withdraw_by(
        &self,
        full_key: &str,
        owner: &str,
        attempt: &str,
        tries: &mut Tries,
    ) -> Result<Withdrawn, Error> {
        #[derive(Deserialize)]
        struct Taken {
            was: Withdrawn,
        }

        let arguments = json!({"key": full_key, "owner": owner, "attempt": attempt});
        let withdrawn: Taken = self.client.ask_by(WITHDRAW, &arguments, tries).await?;
        Ok(withdrawn.was)
    }

    /// Who waits for a lock, the next one first; at most `limit` of them (100 when none, 1000 at most).
    pub fn waiters(&self, full_key: &str, limit: Option<usize>) -> Query<Vec<Waiter>> {
        #[derive(Deserialize)]
        struct Queue {
            waiters: Vec<Waiter>,
        }

        let mut arguments = json!({"key": full_key});
        if let Some(limit) = limit {
            arguments["limit"] = limit.into();
        }
        Query::<Queue>::new(self.client.clone(), WAITERS, arguments)
            .read_by(|json| Ok(Queue::deserialize(json)?.waiters))
    }

    /// Lets a lock end `ttl` from now.
    ///
    /// # Errors
    ///
    /// As [`release`](Self::release): a lock that has expired is not revived.
    pub fn extend(
        &self,
        full_key: &str,
        owner: &str,
        fence: Option<Fence>,
        ttl: Duration,
    ) -> Query<Extended> {
        let mut arguments = json!({"key": full_key, "owner": owner, "ttl": millis(ttl)});
        if let Some(fence) = fence {
            arguments["fence"] = json!(fence);
        }
        Query::new(self.client.clone(), EXTEND, arguments)
    }

    /// Some of the locks that are held: those whose full key starts with `prefix`, at most `limit` (100 when none, 1000 at
    /// most), from where `cursor` of the last page says.
    pub fn list(&self, prefix: &str, limit: Option<usize>, cursor: Option<&str>) -> Query<Page> {
        let mut arguments = json!({"prefix": prefix});
        if let Some(limit) = limit {
            arguments["limit"] = limit.into();
        }
        if let Some(cursor) = cursor {
            arguments["cursor"] = cursor.into();
        }
        Query::new(self.client.clone(), LIST, arguments)
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
