//! One connection, which takes locks and gives them back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forrst_client::{Client, Error, Held};
use hdrhistogram::Histogram;

use super::referee::{Grant, Referee};

/// What all connections do.
pub(super) struct Load {
    /// What sets the locks of this run apart.
    pub(super) run: String,
    pub(super) hot: f64,
    pub(super) hold: Duration,
    pub(super) ttl: Duration,
    pub(super) block: Duration,
    pub(super) ends_at: Instant,
    pub(super) referee: Referee,
}

/// What became of it.
pub(super) struct Tally {
    /// In microseconds, of those that were granted.
    pub(super) acquire: Histogram<u64>,
    /// In microseconds.
    pub(super) release: Histogram<u64>,
    pub(super) timed_out: u64,
    pub(super) refused: u64,
    /// Leases that were over when they were to be released.
    pub(super) lost: u64,
    /// By code, or by what went wrong where no server has said it.
    pub(super) errors: BTreeMap<String, u64>,
}

impl Tally {
    pub(super) fn new() -> Self {
        Self {
            acquire: histogram(),
            release: histogram(),
            timed_out: 0,
            refused: 0,
            lost: 0,
            errors: BTreeMap::new(),
        }
    }

    pub(super) fn add(&mut self, other: &Self) {
        // Both have the same bounds, so there is nothing that would not fit.
        let _ = self.acquire.add(&other.acquire);
        let _ = self.release.add(&other.release);
        self.timed_out += other.timed_out;
        self.refused += other.refused;
        self.lost += other.lost;
        for (code, count) in &other.errors {
            *self.errors.entry(code.clone()).or_default() += count;
        }
    }

    fn failed(&mut self, error: &Error) {
        let code = match (error.code(), error) {
            (Some(code), _) => code.to_string(),
            (None, Error::Unreachable(_)) => "unreachable".to_owned(),
            (None, Error::Interrupted(_)) => "no answer".to_owned(),
            (None, other) => other.to_string(),
        };
        *self.errors.entry(code).or_default() += 1;
    }
}

/// Up to an hour, to three digits.
fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 3_600_000_000, 3).expect("the bounds are in order")
}

fn record(histogram: &mut Histogram<u64>, time: Duration) {
    histogram.saturating_record(u64::try_from(time.as_micros()).unwrap_or(u64::MAX).max(1));
}

/// Works until the time is over.
pub(super) async fn work(client: Client, load: Arc<Load>) -> Tally {
    let mut tally = Tally::new();
    while Instant::now() < load.ends_at && !load.referee.is_over() {
        let key = load.pick();
        let asked_at = Instant::now();
        let lock = client.lock(load.name(key)).ttl(load.ttl).wait(load.block);
        let held = tokio::select! {
            held = lock.hold() => held,
            // Dropped, it leaves the queue.
            () = load.referee.is_ended() => break,
        };
        match held {
            Ok(held) => {
                let now = Instant::now();
                record(&mut tally.acquire, now - asked_at);
                let grant = Grant {
                    fence: held.fence,
                    held_until: asked_at + load.ttl,
                };
                load.referee.granted(key, grant, now);
                hold(&client, &load, key, &held, &mut tally).await;
            }
            Err(Error::TimedOut(_)) => tally.timed_out += 1,
            Err(Error::Contended(_)) => tally.refused += 1,
            Err(error) => {
                tally.failed(&error);
                // A server that is down is not to be asked a thousand times a second.
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    tally
}

async fn hold(client: &Client, load: &Load, key: usize, held: &Held, tally: &mut Tally) {
    if !load.hold.is_zero() {
        tokio::select! {
            () = tokio::time::sleep(load.hold) => {}
            () = load.referee.is_ended() => {}
        }
    }
    load.referee.releases(key, held.fence);
    let sent_at = Instant::now();
    let released = client
        .locks()
        .release(&held.full_key, &held.owner, Some(held.fence))
        .await;
    match released {
        Ok(()) => record(&mut tally.release, sent_at.elapsed()),
        Err(Error::NotHeld(_) | Error::Mismatch(_) | Error::AlreadyReleased(_)) => tally.lost += 1,
        Err(error) => tally.failed(&error),
    }
}

impl Load {
    fn pick(&self) -> usize {
        if fastrand::f64() < self.hot {
            0
        } else {
            fastrand::usize(..self.referee.keys())
        }
    }

    fn name(&self, key: usize) -> String {
        format!("bench:{}:{key}", self.run)
    }
}
