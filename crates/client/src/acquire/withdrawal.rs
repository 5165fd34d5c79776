//! What happens to an acquisition that nobody waits for any more.

use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::Instant;

use super::Arguments;
use crate::locks::ACQUIRE;
use crate::tries::{Repeat, Tries};
use crate::wire_duration::millis;
use crate::{Client, Error, Held, Retry};

/// A grant that is taken back has this long to be so, even when its answer is lost.
const SHORT: Duration = Duration::from_secs(2);

/// Takes an acquisition back when it is dropped: out of the queue, or out of a grant that nobody learns of.
///
/// Disconnecting would do over HTTP most of the time, but not when the grant was on its way, and not over a WebSocket or a unix
/// socket that others use.
pub(super) struct Withdrawal {
    client: Client,
    arguments: Arguments,
    /// Whether nobody else can have this owner.
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
    let ttl = arguments.ttl.to_std().unwrap_or(SHORT);
    // Until the lease would be over anyway.
    let until = Instant::now().checked_add(ttl);
    let mut tries = Tries::start(Retry::in_background(ttl), Repeat::Always, until);
    let (key, owner, attempt) = (arguments.full_key(), &arguments.owner, &arguments.attempt);
    let locks = client.locks();
    match locks.withdraw_by(&key, owner, attempt, &mut tries).await {
        Err(Error::Rejected(_)) => ask_again(client, arguments, is_owner_unique, until).await,
        withdrawn => withdrawn.map(drop),
    }
}

/// For a store that cannot withdraw: the same attempt is made again with hardly any time to wait. It takes the position of the
/// first in the queue, and leaves it; or it gets the lease of the first, and releases it.
async fn ask_again(
    client: Client,
    mut arguments: Arguments,
    is_owner_unique: bool,
    until: Option<Instant>,
) -> Result<(), Error> {
    let locks = client.locks();
    let ttl = arguments.ttl.to_std().unwrap_or(SHORT);
    let mut releases = Tries::start(Retry::in_background(ttl), Repeat::Always, until);
    arguments.block = Some(millis(Duration::ZERO));
    arguments.ttl = millis(ttl.min(SHORT));
    let mut tries = Tries::start(client.retry().clone(), Repeat::Always, until);
    loop {
        let asked = client.ask_once::<Held>(ACQUIRE, &arguments, tries.patience(SHORT));
        match asked.await {
            Ok(held) => {
                let (full_key, fence) = (held.full_key(), Some(held.fence));
                let release = locks.release_by(full_key, &held.owner, fence, &mut releases);
                return release.await;
            }
            Err(Error::Contended(_) | Error::TimedOut(_)) => return Ok(()),
            // Asked again and again, it could be granted again and again. Its owner is enough to release it.
            Err(_) if is_owner_unique => {
                let full_key = arguments.full_key();
                let release = locks.release_by(&full_key, &arguments.owner, None, &mut releases);
                return release.await;
            }
            Err(error) => tries.after(error).await?,
        }
    }
}
