//! What happens to an acquisition that nobody waits for any more.

use std::time::Duration;

use tokio::runtime::Handle;

use super::Arguments;
use crate::locks::ACQUIRE;
use crate::tries::{Repeat, Tries};
use crate::wire_duration::millis;
use crate::{Client, Error, Held};

/// A grant that is taken back has this long to be so, even when its answer is lost.
const SHORT: Duration = Duration::from_secs(2);

/// Takes an acquisition back when it is dropped: out of the queue, or out of a grant that nobody learns of.
///
/// Hanging up would do over HTTP most of the time, but not when the grant was on its way, and not over a WebSocket that others use.
/// So the same attempt is made again with hardly any time to wait. It takes the place of the first in the queue, and
/// leaves it; or it gets the lease of the first, and releases it.
pub(super) struct Withdrawal(Option<(Client, Arguments)>);

impl Withdrawal {
    pub(super) fn arm(client: Client, arguments: Arguments) -> Self {
        Self(Some((client, arguments)))
    }

    pub(super) fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for Withdrawal {
    fn drop(&mut self) {
        // Without a runtime nothing can be sent: the lease, if there is one, ends at its expiry.
        if let (Some((client, arguments)), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            runtime.spawn(async move {
                if let Err(error) = withdraw(client, arguments).await {
                    tracing::debug!(%error, "an acquisition could not be withdrawn");
                }
            });
        }
    }
}

async fn withdraw(client: Client, mut arguments: Arguments) -> Result<(), Error> {
    arguments.block = Some(millis(Duration::ZERO));
    let ttl = arguments.ttl.to_std().unwrap_or(SHORT);
    arguments.ttl = millis(ttl.min(SHORT));
    let mut tries = Tries::start(client.retry().clone(), Repeat::Always, None);
    match client.ask_by::<Held>(ACQUIRE, &arguments, &mut tries).await {
        Ok(held) => {
            let locks = client.locks();
            locks
                .release(&held.full_key, &held.owner, Some(held.fence))
                .await
        }
        Err(Error::Contended(_) | Error::TimedOut(_)) => Ok(()),
        Err(error) => Err(error),
    }
}
