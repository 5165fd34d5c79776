//! The task that renews and watches one lease until it is lost or the task is aborted.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, sleep_until};
use tracing::Instrument;

use super::Loss;
use super::early_end::may_have_ended;
use super::tenure::{Tenure, Term};
use crate::client::Patience;
use crate::clock::Moment;
use crate::lock_info::Extended;
use crate::locks::{EXTEND, LeaseArguments};
use crate::wire_duration::millis;
use crate::{Client, Error, Held};

/// The longest pause before a failed renewal is retried, however long the ttl is.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

pub(super) struct Renewal {
    pub(super) client: Client,
    pub(super) held: Held,
    pub(super) ttl: Duration,
    pub(super) tenure: Arc<Tenure>,
}

impl Renewal {
    pub(super) async fn run(self) {
        let span = tracing::info_span!("forrst.renew", fence = %self.held.fence);
        let loss = self.until_lost().instrument(span.clone()).await;
        span.in_scope(|| tracing::warn!(%loss, "a lease is lost"));
    }

    async fn until_lost(&self) -> Loss {
        let mut mistakes = 0;
        let watch = |mistakes| may_have_ended(&self.client, &self.held, self.ttl, mistakes);
        let mut early_end = pin!(watch(mistakes));
        loop {
            let is_early = tokio::select! {
                () = sleep_until(self.tenure.term().proven.instant + self.ttl / 3) => false,
                () = &mut early_end => true,
            };
            let mut is_watch_over = is_early;
            // Short enough that several tries are left after one that is never answered.
            while let Err(error) = self.renew(self.ttl / 6).await {
                if let Some(loss) = Loss::from_error(&error) {
                    self.tenure.lose(loss);
                }
                self.tenure.note_error(&error);
                if let Some(loss) = self.tenure.loss() {
                    return loss;
                }
                // The connection of the watch may be as dead.
                is_watch_over |= matches!(error, Error::Interrupted(_));
                tracing::debug!(%error, "a lease was not renewed; trying again");
                let pause = (self.ttl / 24).min(LONGEST_PAUSE);
                sleep(pause / 2 + pause.mul_f64(fastrand::f64() / 2.0)).await;
            }
            if let Some(loss) = self.tenure.loss() {
                return loss;
            }
            if is_watch_over {
                mistakes += u32::from(is_early);
                early_end.set(watch(mistakes));
            }
        }
    }

    async fn renew(&self, patience: Duration) -> Result<(), Error> {
        let term = self.extend(patience).await?;
        self.tenure.extend(term);
        Ok(())
    }

    /// Sends one request to extend the lease, and returns the term that its answer proves.
    pub(super) async fn extend(&self, patience: Duration) -> Result<Term, Error> {
        let arguments = LeaseArguments {
            key: self.held.full_key(),
            owner: &self.held.owner,
            fence: Some(self.held.fence),
            ttl: Some(millis(self.ttl)),
        };
        let sent = Moment::now();
        let patience = Patience::For(patience.min(self.client.timeout()));
        let extended = self
            .client
            .ask_once::<Extended>(EXTEND, &arguments, patience)
            .await;
        if matches!(extended, Err(Error::Interrupted(_))) {
            self.client.transport().distrust_connection();
            self.client.watching().distrust_connection();
        }
        let extended = extended?;
        Ok(Term::new(sent, self.ttl, extended.expires_at))
    }
}
