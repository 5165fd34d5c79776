//! rslock, an implementation of Redlock, with a single Redis. It has neither a queue nor fences.

use std::time::Duration;

use rslock::LockManager;

use super::{TTL, failed};
use crate::load::{Measured, Watched, repeat};

/// The longest pause before a caller tries again.
const RETRY: Duration = Duration::from_millis(5);

pub(crate) async fn cycles(
    url: &str,
    callers: usize,
    duration: Duration,
    watched: Watched<u32>,
) -> Result<Measured, String> {
    let manager = LockManager::new(vec![url]);
    repeat(callers, duration, watched, move |_, serial| {
        let manager = manager.clone();
        async move {
            let key = format!("rslock:{serial}");
            let lock = manager.lock(key.as_str(), TTL).await.map_err(failed)?;
            manager.unlock(&lock).await;
            Ok(())
        }
    })
    .await
}

/// One lock for all callers, which try again after a random pause of up to 5 ms.
pub(crate) async fn hand_overs(
    url: &str,
    callers: usize,
    duration: Duration,
    watched: Watched<u32>,
) -> Result<Measured, String> {
    let mut manager = LockManager::new(vec![url]);
    manager.set_retry(1_000_000, RETRY);
    repeat(callers, duration, watched, move |_, _| {
        let manager = manager.clone();
        async move {
            let lock = manager.lock("rslock-hot", TTL).await.map_err(failed)?;
            manager.unlock(&lock).await;
            Ok(())
        }
    })
    .await
}
