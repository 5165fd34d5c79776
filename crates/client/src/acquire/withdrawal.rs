//! Withdraws an acquisition in the background when its caller has stopped waiting for it.

use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::Instant;

use super::Arguments;
use crate::locks::ACQUIRE;
use crate::tries::{Repeat, Tries};
use crate::wire_duration::millis;
use crate::{Client, Error, Held, Retry};

/// The ttl of an acquisition that is repeated only to be released: it expires soon even if that fails.
const BRIEF: Duration = Duration::from_secs(2);

/// Withdraws an acquisition when it is dropped: the call leaves the queue, or the lock that it was granted is released.
///
/// Disconnecting is not enough: the grant may be on its way, and a WebSocket or a unix socket stays open for other calls.
pub(super) struct Withdrawal {
    client: Client,
    arguments: Arguments,
    /// Whether the owner token was made up here, so that no other lease has it.
    is_owner_unique: bool,
    is_armed: bool,
}

impl Withdrawal {
    pub(super) fn unarmed(client: Client, arguments: Arguments, is_owner_unique: bool) -> Self {
        Self {
            client,
            arguments,
            is_owner_unique,
            is_armed: false,
        }
    }

    pub(super) fn arm(&mut self) {
        self.is_armed = true;
    }

    pub(super) fn disarm(&mut self) {
        self.is_armed = false;
    }
}

impl Drop for Withdrawal {
    fn drop(&mut self) {
        if !self.is_armed {
            return;
        }
        // Without a runtime nothing can be sent: the lease, if there is one, ends at its expiry.
        if let Ok(runtime) = Handle::try_current() {
            let (client, arguments) = (self.client.clone(), self.arguments.clone());
            let is_owner_unique = self.is_owner_unique;
            self.client.in_background(&runtime, async move {
                if let Err(error) = withdraw(client, arguments, is_owner_unique).await {
                    tracing::debug!(%error, "an acquisition could not be withdrawn");
                }
            });
        }
    }
}

async fn withdraw(
    client: Client,
    arguments: Arguments,
    is_owner_unique: bool,
) -> Result<(), Error> {
    let ttl = arguments.ttl.to_std().unwrap_or(BRIEF);
    // By then the lease has expired anyway.
    let until = Instant::now().checked_add(ttl);
    let mut tries = Tries::start(Retry::in_background(ttl), Repeat::Always, until);
    let (key, owner, attempt) = (arguments.full_key(), &arguments.owner, &arguments.attempt);
    let locks = client.locks();
    match locks.withdraw_with(&key, owner, attempt, &mut tries).await {
        Err(Error::Rejected(_)) => {
            repeat_and_release(client, arguments, is_owner_unique, until).await
        }
        withdrawn => withdrawn.map(drop),
    }
}

/// For a store that cannot withdraw: repeats the attempt with hardly any time to wait. It takes over the queue position of the
/// first request, and leaves it; or it gets the lease of the first request, and releases it.
async fn repeat_and_release(
    client: Client,
    mut arguments: Arguments,
    is_owner_unique: bool,
    until: Option<Instant>,
) -> Result<(), Error> {
    let locks = client.locks();
    let ttl = arguments.ttl.to_std().unwrap_or(BRIEF);
    let mut releases = Tries::start(Retry::in_background(ttl), Repeat::Always, until);
    arguments.block = Some(millis(Duration::ZERO));
    arguments.ttl = millis(ttl.min(BRIEF));
    let mut tries = Tries::start(client.retry().clone(), Repeat::Always, until);
    loop {
        let answer = client.ask_once::<Held>(ACQUIRE, &arguments, tries.patience(BRIEF));
        match answer.await {
            Ok(held) => {
                let (full_key, fence) = (held.full_key(), Some(held.fence));
                let release = locks.release_with(full_key, &held.owner, fence, &mut releases);
                return release.await;
            }
            Err(Error::Contended(_) | Error::TimedOut(_)) => return Ok(()),
            // Another request could be granted once more. The owner is enough to release the lock.
            Err(_) if is_owner_unique => {
                let full_key = arguments.full_key();
                let release = locks.release_with(&full_key, &arguments.owner, None, &mut releases);
                return release.await;
            }
            Err(error) => tries.after(error).await?,
        }
    }
}
