//! One connection of the benchmark, which takes and releases locks until the run ends.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forrst_client::{Client, Error, Held};
use hdrhistogram::Histogram;
use tokio::sync::watch;

use super::checker::{Checker, Grant};

/// The settings of a run, for all connections.
pub(super) struct Load {
    /// A random part of all keys of this run.
    pub(super) run: String,
    pub(super) hot: f64,
    pub(super) hold: Duration,
    pub(super) ttl: Duration,
    pub(super) block: Duration,
    /// How often each connection takes a lock; `None` for as often as it can.
    pub(super) interval: Option<Duration>,
    pub(super) starts_at: Instant,
    pub(super) ends_at: Instant,
    pub(super) checker: Checker,
    /// Whether the run was ended before its time.
    pub(super) is_stopped: watch::Sender<bool>,
}

/// What one connection, or all of them, have measured.
pub(super) struct Tally {
    /// From the time an acquisition was due to its outcome, in microseconds: of those that were granted, timed out, or never sent.
    pub(super) acquire: Histogram<u64>,
    /// The part of it in which another connection held the lock.
    pub(super) waiting: Histogram<u64>,
    /// The rest of it.
    pub(super) service: Histogram<u64>,
    /// In microseconds.
    pub(super) release: Histogram<u64>,
    pub(super) granted: u64,
    /// Those before the end of the run; later ones are not in the rate.
    pub(super) granted_in_time: u64,
    pub(super) timed_out: u64,
    /// Those that were due, but not sent before the end because the connection was busy.
    pub(super) unsent: u64,
    pub(super) refused: u64,
    /// Leases that had ended before they were released.
    pub(super) lost: u64,
    /// By code, or by the error where the server has not answered.
    pub(super) errors: BTreeMap<String, u64>,
}

impl Tally {
    pub(super) fn new() -> Self {
        Self {
            acquire: histogram(),
            waiting: histogram(),
            service: histogram(),
            release: histogram(),
            granted: 0,
            granted_in_time: 0,
            timed_out: 0,
            unsent: 0,
            refused: 0,
            lost: 0,
            errors: BTreeMap::new(),
        }
    }

    pub(super) fn add(&mut self, other: &Self) {
        // It cannot fail, because both have the same bounds.
        let _ = self.acquire.add(&other.acquire);
        let _ = self.waiting.add(&other.waiting);
        let _ = self.service.add(&other.service);
        let _ = self.release.add(&other.release);
        self.granted += other.granted;
        self.granted_in_time += other.granted_in_time;
        self.timed_out += other.timed_out;
        self.unsent += other.unsent;
        self.refused += other.refused;
        self.lost += other.lost;
        for (code, count) in &other.errors {
            *self.errors.entry(code.clone()).or_default() += count;
        }
    }

    fn record(&mut self, acquire: Duration, waiting: Duration) {
        record(&mut self.acquire, acquire);
        record(&mut self.waiting, waiting);
        record(&mut self.service, acquire.saturating_sub(waiting));
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

/// Runs until the end. `phase`, from 0 to 1, spreads the schedules of the connections over the interval.
pub(super) async fn work(client: Client, load: Arc<Load>, phase: f64) -> Tally {
    let mut tally = Tally::new();
    let mut schedule = load.schedule(phase);
    while Instant::now() < load.ends_at && !*load.is_stopped.borrow() {
        let due = match &mut schedule {
            None => Instant::now(),
            Some(schedule) => tokio::select! {
                due = schedule.next(load.ends_at) => match due {
                    Some(due) => due,
                    None => break,
                },
                () = load.stopped() => break,
            },
        };
        let key = load.pick();
        let asked_at = Instant::now();
        let lock = client.lock(load.name(key)).ttl(load.ttl).wait(load.block);
        let held = tokio::select! {
            held = lock.hold() => held,
            // The acquisition is dropped, and leaves the queue.
            () = load.stopped() => break,
        };
        let now = Instant::now();
        match held {
            Ok(held) => {
                tally.granted += 1;
                tally.granted_in_time += u64::from(now < load.ends_at);
                let grant = Grant {
                    fence: held.fence,
                    held_until: asked_at + load.ttl,
                };
                let free_since = load.checker.granted(key, grant, now);
                let waiting = free_since.map(|since| since.saturating_duration_since(asked_at));
                tally.record(now - due, waiting.unwrap_or_default());
                hold(&client, &load, key, &held, &mut tally).await;
            }
            Err(Error::TimedOut(_)) => {
                tally.timed_out += 1;
                tally.record(now - due, load.block);
            }
            Err(Error::Contended(_)) => tally.refused += 1,
            Err(error) => {
                tally.failed(&error);
                // A server that is down must not be asked a thousand times a second.
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    if let Some(schedule) = schedule {
        for waited in schedule.unsent(Instant::now().min(load.ends_at)) {
            tally.unsent += 1;
            tally.record(waited, Duration::ZERO);
        }
    }
    tally
}

/// When one connection takes locks, however slow the server is.
struct Schedule {
    next: Instant,
    interval: Duration,
}

impl Schedule {
    /// Waits until the next acquisition is due, and returns since when. `None` if that is after the end.
    async fn next(&mut self, ends_at: Instant) -> Option<Instant> {
        let due = self.next;
        if due >= ends_at {
            return None;
        }
        self.next += self.interval;
        if due <= Instant::now() {
            // The connection was busy because the server is slow: that time counts.
            return Some(due);
        }
        tokio::time::sleep_until(due.into()).await;
        // Timers fire up to a millisecond late: that time does not count.
        Some(Instant::now())
    }

    /// How long each acquisition has waited that was due by now.
    fn unsent(self, now: Instant) -> impl Iterator<Item = Duration> {
        let all = std::iter::successors(Some(self.next), move |due| Some(*due + self.interval));
        all.take_while(move |due| *due < now)
            .map(move |due| now - due)
    }
}

async fn hold(client: &Client, load: &Load, key: usize, held: &Held, tally: &mut Tally) {
    if !load.hold.is_zero() {
        tokio::select! {
            () = tokio::time::sleep(load.hold) => {}
            () = load.stopped() => {}
        }
    }
    let sent_at = Instant::now();
    load.checker.releases(key, held.fence, sent_at);
    let released = client
        .locks()
        .release(held.full_key(), &held.owner, Some(held.fence))
        .await;
    match released {
        Ok(()) => record(&mut tally.release, sent_at.elapsed()),
        Err(Error::NotHeld(_) | Error::Mismatch(_) | Error::AlreadyReleased(_)) => tally.lost += 1,
        Err(error) => tally.failed(&error),
    }
}

impl Load {
    /// Ends the run before its time.
    pub(super) fn stop(&self) {
        self.is_stopped.send_replace(true);
    }

    /// Returns when the run was ended before its time.
    async fn stopped(&self) {
        // The sender is `self`, so it exists.
        let _ = self
            .is_stopped
            .subscribe()
            .wait_for(|is_stopped| *is_stopped)
            .await;
    }

    fn schedule(&self, phase: f64) -> Option<Schedule> {
        let interval = self.interval?;
        // So that the connections do not all begin at once.
        let next = self.starts_at + interval.mul_f64(phase);
        Some(Schedule { next, interval })
    }

    fn pick(&self) -> usize {
        if fastrand::f64() < self.hot {
            0
        } else {
            fastrand::usize(..self.checker.keys())
        }
    }

    fn name(&self, key: usize) -> String {
        format!("bench:{}:{key}", self.run)
    }
}
