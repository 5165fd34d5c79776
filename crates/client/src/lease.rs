//! Leases that this process holds: renewed in the background, and lost at the latest at a local deadline, before the server gives
//! the lock to another client.

mod early_end;
mod notice;
mod renewal;
mod tenure;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tokio::time::Instant;

pub(crate) use self::early_end::MAX_WATCHED;
pub use self::notice::LossNotice;
use self::renewal::Renewal;
pub use self::tenure::Loss;
use self::tenure::{Tenure, Term};
use crate::acquire::Grant;
use crate::tries::{Repeat, Tries};
use crate::{Client, Error, Fence, Held, Retry};

/// How long a release in the background is retried at least.
const MIN_RELEASE_TIME: Duration = Duration::from_secs(2);

/// A lock that is held here and renews itself.
///
/// This machine's clock alone decides whether it is still held: a lease ends here no later than on the server, because its time
/// counts from before the request was sent. A later answer changes nothing: a lost lease stays lost. A process that was stopped
/// for too long finds its lease lost when it continues, and the time that the machine slept counts, too (on Linux and Android;
/// elsewhere if the system's monotonic clock counts it).
///
/// Renewal begins after a third of the ttl, and is retried until the lease ends. An answer that says that the lease has ended, or
/// that the lock belongs to another one, ends it at once.
///
/// A lease that lives for more than a moment is also watched, so that it is renewed, and found lost, within about a second of its end
/// on the server: by a forced release, a release with its owner token, or a shortened ttl. A client watches 64 leases at once; others
/// are found lost by their next renewal, as are all of them where the server refuses to be watched.
///
/// A lease that is dropped is released in the background, if possible; [`release`](Self::release) waits for it.
#[derive(Debug)]
pub struct Lease {
    client: Client,
    held: Held,
    tenure: Arc<Tenure>,
    /// `None` until the lease is known to be held.
    renewal: Option<AbortHandle>,
    /// Where it is released if it is dropped, which may happen outside of a runtime.
    runtime: Handle,
    /// Whether it still has to be released.
    is_ours: bool,
}

impl Lease {
    /// Makes sure that the granted lock is still held, and begins to renew it.
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
        lease.ensure_fresh(&renewal, ttl).await?;
        lease.renewal = Some(tokio::spawn(renewal.run()).abort_handle());
        Ok(lease)
    }

    /// Renews the lease unless half of it is known to be left: it may have been granted to an earlier try, or during a wait by a
    /// server that does not say what is left.
    async fn ensure_fresh(&mut self, renewal: &Renewal, ttl: Duration) -> Result<(), Error> {
        if self.remaining() > ttl / 2 {
            return Ok(());
        }
        let mut tries = Tries::start(self.client.retry().clone(), Repeat::Always, None);
        loop {
            let error = match renewal.extend(ttl).await {
                Ok(term) => {
                    self.tenure.set_first_term(term);
                    return Ok(());
                }
                Err(error) => error,
            };
            if let Some(loss) = Loss::from_error(&error) {
                self.is_ours = false;
                return Err(Error::Lost(loss));
            }
            if let Err(error) = tries.after(error).await {
                // What is left may be enough: the renewal in the background retries.
                return if self.is_held() { Ok(()) } else { Err(error) };
            }
        }
    }

    /// The full key of the lock; the first, for a lock on several keys.
    pub fn full_key(&self) -> &str {
        self.held.full_key()
    }

    /// The full keys of the lock, in the order in which they were requested.
    pub fn full_keys(&self) -> &[String] {
        &self.held.full_keys
    }

    /// The owner token, which releases and extends it.
    pub fn owner(&self) -> &str {
        &self.held.owner
    }

    /// The fencing token, for the resource that the lock protects. Renewals do not change it.
    pub fn fence(&self) -> Fence {
        self.held.fence
    }

    /// When it ends by the server's clock, as of the last renewal.
    pub fn expires_at(&self) -> SystemTime {
        self.tenure.term().expires_at
    }

    /// When it counts as lost, unless it is renewed before. Work that must not outlive the lease has to end by then.
    ///
    /// Every renewal moves this moment, so read it again when it comes near.
    pub fn held_until(&self) -> Instant {
        self.tenure.term().until.instant()
    }

    /// How long it is certainly held.
    pub fn remaining(&self) -> Duration {
        self.tenure.term().until.remaining()
    }

    /// Whether it is held.
    pub fn is_held(&self) -> bool {
        self.tenure.loss().is_none()
    }

    /// Waits until it is lost, and returns why.
    pub async fn lost(&self) -> Loss {
        self.tenure.lost().await
    }

    /// A notice of loss, which other tasks can await.
    pub fn notice(&self) -> LossNotice {
        LossNotice::new(self.tenure.clone())
    }

    /// Releases the lock.
    ///
    /// It is retried by the client's [`Retry`], because a release may safely be repeated. If it is dropped before it is done, or
    /// gets no answer, it goes on in the background until the lease has expired anyway.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] when the lease was lost before: another client may have held the lock since.
    pub async fn release(mut self) -> Result<(), Error> {
        self.stop_renewal();
        if let Some(loss) = self.tenure.loss() {
            return Err(Error::Lost(loss));
        }
        // After that the lease has ended, and there is nothing to release.
        let until = Some(self.held_until());
        let mut tries = Tries::start(self.client.retry().clone(), Repeat::Always, until);
        if let Err(error) = release(&self.client, &self.held, &mut tries).await {
            // A lease that cannot have expired yet was ended by an earlier try, whose answer was lost.
            let was_done_before = tries.has_lost_answer()
                && (self.is_held() || matches!(error, Error::AlreadyReleased(_)));
            match Loss::from_error(&error) {
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

    /// Stops the renewal without releasing the lock: it ends when it expires, or is released with its owner token.
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
        .release_with(held.full_key(), &held.owner, Some(held.fence), tries)
        .await
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.stop_renewal();
        self.tenure.end();
        if !self.is_ours {
            return;
        }
        // A lease that has ended here may last a little longer on the server, so there is at least one try.
        let time = self.remaining().max(MIN_RELEASE_TIME);
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
