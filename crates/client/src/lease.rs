//! A lease in the hands of this process.

mod notice;
mod renewal;
mod tenure;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tokio::time::Instant;

pub use self::notice::LossNotice;
use self::renewal::Renewal;
pub use self::tenure::Loss;
use self::tenure::{Tenure, Term};
use crate::acquire::Grant;
use crate::tries::{Repeat, Tries};
use crate::{Client, Error, Fence, Held, Retry};

/// How long a release in the background is tried at least.
const LAST_TRY: Duration = Duration::from_secs(2);

/// A lock that is held here and renews itself.
///
/// Whether it is still held is decided by this machine's monotonic clock alone: a lease ends here no later than on the server,
/// because its time counts from before the request was sent. An answer that comes later than that changes nothing; lost stays
/// lost. A process that was stopped for too long finds its lease lost when it goes on, and time that the machine slept counts, too
/// (on Linux and Android; elsewhere as the system's monotonic clock has it).
///
/// Renewal begins after a third of the ttl, and is tried again until the lease is over; an answer that it belongs to somebody else
/// ends it at once.
///
/// Dropped, it is released in the background, as far as that is possible; [`release`](Self::release) makes sure.
#[derive(Debug)]
pub struct Lease {
    client: Client,
    held: Held,
    tenure: Arc<Tenure>,
    /// None until the lease is known to be held.
    renewal: Option<AbortHandle>,
    /// Where it is released when it is dropped, which may happen outside.
    runtime: Handle,
    is_ours: bool,
}

impl Lease {
    /// Makes sure that the granted lock is held, and keeps it so.
    pub(crate) async fn begin(client: Client, grant: Grant, ttl: Duration) -> Result<Self, Error> {
        let Grant { held, since, sent } = grant;
        let term = match held.span_from_request() {
            Some(span) => Term::new(sent, span, held.expires_at),
            None => Term::new(since, ttl, held.expires_at),
        };
        let tenure = Arc::new(Tenure::new(term));
        let renewal = Renewal {
            client: client.clone(),
            held: held.clone(),
            ttl,
            tenure: tenure.clone(),
        };
        let mut lease = Self {
            client,
            held,
            tenure,
            renewal: None,
            runtime: Handle::current(),
            is_ours: true,
        };
        lease.prove(&renewal, ttl).await?;
        lease.renewal = Some(tokio::spawn(renewal.run()).abort_handle());
        Ok(lease)
    }

    /// A lease that was granted to a repeated request may be an old one; and after a long wait, or where the server does not tell
    /// what is left of it, it may have begun long ago as far as is known here. A renewal makes it a fresh one.
    async fn prove(&mut self, renewal: &Renewal, ttl: Duration) -> Result<(), Error> {
        if self.remaining() > ttl / 2 {
            return Ok(());
        }
        let mut tries = Tries::start(self.client.retry().clone(), Repeat::Always, None);
        loop {
            let error = match renewal.extend(ttl).await {
                Ok(term) => {
                    self.tenure.settle(term);
                    return Ok(());
                }
                Err(error) => error,
            };
            if let Some(loss) = Loss::by(&error) {
                self.is_ours = false;
                return Err(Error::Lost(loss));
            }
            if let Err(error) = tries.after(error).await {
                // What is left of it may do; the renewal goes on trying.
                return if self.is_held() { Ok(()) } else { Err(error) };
            }
        }
    }

    /// The name of the lock; of a lock on several keys, the first.
    pub fn full_key(&self) -> &str {
        self.held.full_key()
    }

    /// The names of all its keys, in the order that they were asked for.
    pub fn full_keys(&self) -> &[String] {
        &self.held.full_keys
    }

    /// The token that proves whose it is.
    pub fn owner(&self) -> &str {
        &self.held.owner
    }

    /// What a protected resource compares. It stays the same over renewals.
    pub fn fence(&self) -> Fence {
        self.held.fence
    }

    /// When it ends by the server's clock, as of the last renewal.
    pub fn expires_at(&self) -> SystemTime {
        self.tenure.term().expires_at
    }

    /// The moment from which on it counts as lost, unless it is renewed before. Work that must not outlive the lease ends by then.
    ///
    /// Every renewal moves it, so look again when it comes near.
    pub fn held_until(&self) -> Instant {
        self.tenure.term().until.instant()
    }

    /// How long it is held for certain.
    pub fn remaining(&self) -> Duration {
        self.tenure.term().until.remaining()
    }

    /// Whether it is held.
    pub fn is_held(&self) -> bool {
        self.tenure.loss().is_none()
    }

    /// Returns when it is lost, and says why.
    pub async fn lost(&self) -> Loss {
        self.tenure.lost().await
    }

    /// What other tasks await to learn of the loss.
    pub fn notice(&self) -> LossNotice {
        LossNotice::new(self.tenure.clone())
    }

    /// Gives the lock back.
    ///
    /// Tried again as the client's [`Retry`] says, because a release does no harm the second time. Dropped half-way, or failed
    /// without an answer, it goes on in the background until the lease is over anyway.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] when it was lost before: somebody else may have held the lock since.
    pub async fn release(mut self) -> Result<(), Error> {
        self.stop_renewal();
        if let Some(loss) = self.tenure.loss() {
            return Err(Error::Lost(loss));
        }
        // A server that is silent for longer need not be asked any more: then the lease is over.
        let until = Some(self.held_until());
        let mut tries = Tries::start(self.client.retry().clone(), Repeat::Always, until);
        if let Err(error) = release(&self.client, &self.held, &mut tries).await {
            // What could not expire yet was ended by the release whose answer was lost.
            let was_done_before = tries.has_lost_answer()
                && (self.is_held() || matches!(error, Error::AlreadyReleased(_)));
            match Loss::by(&error) {
                None => return Err(error),
                Some(_) if was_done_before => {}
                Some(loss) => {
                    self.is_ours = false;
                    return Err(Error::Lost(loss));
                }
            }
        }
        self.is_ours = false;
        self.tenure.end();
        Ok(())
    }

    /// Stops renewing and leaves the lock to its expiry, or to whoever releases it by its owner.
    pub fn keep(mut self) -> Held {
        self.stop_renewal();
        self.is_ours = false;
        self.tenure.end();
        Held {
            expires_at: self.expires_at(),
            ..self.held.clone()
        }
    }

    fn stop_renewal(&mut self) {
        if let Some(renewal) = self.renewal.take() {
            renewal.abort();
        }
    }
}

async fn release(client: &Client, held: &Held, tries: &mut Tries) -> Result<(), Error> {
    let locks = client.locks();
    locks
        .release_by(held.full_key(), &held.owner, Some(held.fence), tries)
        .await
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.stop_renewal();
        self.tenure.end();
        if !self.is_ours {
            return;
        }
        // What is over here may last longer on the server, so it is tried once at least.
        let time = self.remaining().max(LAST_TRY);
        let until = Instant::now().checked_add(time);
        let mut tries = Tries::start(Retry::in_background(time), Repeat::Always, until);
        let (client, held) = (self.client.clone(), self.held.clone());
        self.client.in_background(&self.runtime, async move {
            if let Err(error) = release(&client, &held, &mut tries).await {
                tracing::debug!(%error, "a lease that was dropped could not be released");
            }
        });
    }
}
