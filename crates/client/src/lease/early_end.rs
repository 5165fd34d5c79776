//! Notices that a lease may have ended before its time, such as by force, by watching its key.
//!
//! A watch decides nothing: it only brings the next renewal forward, whose answer proves that the lease is held or lost. So a server
//! that refuses to be watched, or answers nonsense, costs no lease, and prolongs none.

use std::time::Duration;

use serde::Deserialize;
use tokio::time::sleep;

use crate::watch::{WatchArguments, pause_after};
use crate::{Client, Fence, Held, Retry};

/// How many leases of a client are watched at once, because each one has a request under way. The others wait for their turn.
pub(crate) const MAX_WATCHED: usize = 64;

/// Leases that end before that cost no watch.
const BEGIN: Duration = Duration::from_millis(250);

/// A lease that is renewed as often as this needs no watch.
const OFTEN: Duration = Duration::from_secs(1);

/// For each holder, up to four of them: the more leases a lock has, the more often they change, and the more watch it.
const PAUSE_PER_HOLDER: Duration = Duration::from_millis(250);

/// Returns when the lease may have ended on the server.
///
/// `false_alarms` is how often that was said of this lease although it was held: then it is watched again after a longer and longer
/// pause. This happens to leases that are not among the first hundred of their lock, which is all that a server lists.
pub(super) async fn may_have_ended(client: &Client, held: &Held, ttl: Duration, false_alarms: u32) {
    if ttl / 3 <= OFTEN {
        return std::future::pending().await;
    }
    sleep(match false_alarms {
        0 => BEGIN,
        false_alarms => pause_between_false_alarms(false_alarms),
    })
    .await;
    // The semaphore is never closed.
    let _permit = client.watched_leases().acquire().await;
    let mut since: Option<String> = None;
    let mut failed = 0_u32;
    loop {
        let arguments = WatchArguments {
            // A lease on several keys ends on all of them at once.
            key: held.full_key(),
            since: since.as_deref(),
            owner: Some(&held.owner),
        };
        match client.watch_once::<Leases>(&arguments).await {
            Ok(leases) if !leases.have(held.fence) => return,
            Ok(leases) => {
                failed = 0;
                sleep(PAUSE_PER_HOLDER * leases.count()).await;
                since = Some(leases.revision);
            }
            Err(error) => {
                failed = failed.saturating_add(1);
                tracing::debug!(%error, failed, "a lease is not watched; trying again");
                sleep(pause_after(&error, failed)).await;
            }
        }
    }
}

fn pause_between_false_alarms(false_alarms: u32) -> Duration {
    let retry = Retry::default()
        .first_pause(Duration::from_secs(2))
        .longest_pause(Duration::from_secs(60));
    retry.backoff(false_alarms)
}

/// The leases on a key, as far as the caller may see them.
#[derive(Debug, Deserialize)]
struct Leases {
    revision: String,
    #[serde(default)]
    holders: Vec<Lease>,
}

#[derive(Debug, Deserialize)]
struct Lease {
    fence: Fence,
}

impl Leases {
    fn have(&self, fence: Fence) -> bool {
        self.holders.iter().any(|lease| lease.fence == fence)
    }

    fn count(&self) -> u32 {
        u32::try_from(self.holders.len()).unwrap_or(u32::MAX).min(4)
    }
}
