//! Operations on locks by their full keys, for operators and for leases that are not held by this client.

use std::time::Duration;

use futures_util::stream::{self, Stream, StreamExt, TryStreamExt};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::lock_info::{Extended, LockInfo, LockStatus, Page, Waiter, Withdrawn};
use crate::tries::{Repeat, Tries};
use crate::wire_duration::millis;
use crate::{Change, Client, Error, Fence, Query, watch};

pub(crate) const ACQUIRE: &str = "urn:cline:forrst:ext:atomic-lock:fn:acquire";
pub(crate) const EXTEND: &str = "urn:cline:forrst:ext:atomic-lock:fn:extend";
const RELEASE: &str = "urn:cline:forrst:ext:atomic-lock:fn:release";
const FORCE_RELEASE: &str = "urn:cline:forrst:ext:atomic-lock:fn:force-release";
const WITHDRAW: &str = "urn:cline:forrst:ext:atomic-lock:fn:withdraw";
const WAITERS: &str = "urn:cline:forrst:ext:atomic-lock:fn:waiters";
const STATUS: &str = "urn:cline:forrst:ext:atomic-lock:fn:status";
const LIST: &str = "urn:cline:forrst:ext:atomic-lock:fn:list";

/// The most locks that a page may have.
const MAX_PAGE_SIZE: usize = 1000;

/// Operations on locks by their full keys (`lock:…`).
#[derive(Debug, Clone)]
pub struct Locks {
    client: Client,
}

/// The arguments of `release` and `extend`, which name one lease.
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

    /// Whether the lock is held, and by which leases.
    pub fn status(&self, full_key: &str) -> Query<LockStatus> {
        Query::new(self.client.clone(), STATUS, json!({"key": full_key}))
    }

    /// The state of a lock: now, and as soon as its leases change, on whichever node. Neither renewals nor changes of the queue count.
    ///
    /// Nothing is sent while the stream is not polled, so it yields only the newest of several changes, and may miss a lease that has
    /// come and gone. An error does not end it: polled again, it waits a moment, longer after each error, asks again,
    /// and yields the state then, changed or not. It takes no lock, and no position in the queue.
    pub fn watch(
        &self,
        full_key: &str,
    ) -> impl Stream<Item = Result<Change, Error>> + Send + use<> {
        watch::changes(self.client.clone(), full_key.to_owned())
    }

    /// Releases a lock with its owner token; with a fence, only the lease that has it. Any key of a lock on several will do.
    ///
    /// It is retried after a lost answer, and succeeds when the server answers that the lease was already released.
    ///
    /// # Errors
    ///
    /// [`Error::NotHeld`], [`Error::AlreadyReleased`] and [`Error::Mismatch`] when this owner does not hold it, or no longer does;
    /// [`Error::Rejected`] when the owner has several leases on the key, and no fence is named.
    pub async fn release(
        &self,
        full_key: &str,
        owner: &str,
        fence: Option<Fence>,
    ) -> Result<(), Error> {
        let mut tries = Tries::start(self.client.retry().clone(), Repeat::Always, None);
        let released = self.release_with(full_key, owner, fence, &mut tries).await;
        match released {
            Err(Error::AlreadyReleased(_)) if tries.has_lost_answer() => Ok(()),
            released => released,
        }
    }

    pub(crate) async fn release_with(
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
        let released = self.client.ask_with(RELEASE, &arguments, tries).await;
        released.map(|IgnoredAny| ())
    }

    /// Ends every lease on a key, of any owner, or only that with `fence`, if one is named. Returns how many it has ended.
    ///
    /// It is not retried after a lost answer: without a fence, it could end the lease of the next holder.
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
            /// A server with only the bare extension has one lease on a key, and does not count.
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
            .ask_with(FORCE_RELEASE, &arguments, &mut tries)
            .await?;
        Ok(forced.leases)
    }

    /// Withdraws an attempt whose outcome is not known, whatever it was. See [`Acquire::attempt`](crate::Acquire::attempt).
    pub async fn withdraw(
        &self,
        full_key: &str,
        owner: &str,
        attempt: &str,
    ) -> Result<Withdrawn, Error> {
        let mut tries = Tries::start(self.client.retry().clone(), Repeat::Always, None);
        self.withdraw_with(full_key, owner, attempt, &mut tries)
            .await
    }

    pub(crate) async fn withdraw_with(
        &self,
        full_key: &str,
        owner: &str,
        attempt: &str,
        tries: &mut Tries,
    ) -> Result<Withdrawn, Error> {
        #[derive(Deserialize)]
        struct Answer {
            was: Withdrawn,
        }

        let arguments = json!({"key": full_key, "owner": owner, "attempt": attempt});
        let answer: Answer = self.client.ask_with(WITHDRAW, &arguments, tries).await?;
        Ok(answer.was)
    }

    /// The callers that wait for a lock, the next one first; at most `limit` of them (100 by default, 1000 at most).
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

    /// Extends a lease: it ends `ttl` from now, which may also be earlier.
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

    /// A page of the held locks whose full key starts with `prefix`: at most `limit` of them (100 by default, 1000 at most), from
    /// the `cursor` of the page before.
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

    /// All held locks whose full key starts with `prefix`, page after page.
    ///
    /// This is not a snapshot: locks that are acquired or released between two pages may be missed.
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
                    .list(&prefix, Some(MAX_PAGE_SIZE), cursor.as_deref())
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
