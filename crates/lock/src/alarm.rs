//! One clock for all keys that somebody waits for: it rings when a holder's lease ends.
//!
//! However many wait for a key, there is one alarm for it, so that an expiry costs one call to the store. An alarm to which the
//! store did not answer rings again later and later, so that all keys together do not hammer a store that is down.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::LockName;

/// How soon an alarm that came to nothing rings again: at first, and at last.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LAST_PAUSE: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(crate) struct AlarmClock {
    alarms: Mutex<Alarms>,
    earlier: Notify,
}

#[derive(Debug, Default)]
struct Alarms {
    by_name: HashMap<LockName, Entry>,
    by_time: BTreeSet<(Instant, LockName)>,
}

/// A key that somebody waits for here.
#[derive(Debug, Default)]
struct Entry {
    waiting: usize,
    at: Option<Instant>,
    /// How often it was put off since it was last set.
    put_off: u32,
}

impl Entry {
    /// Twice as long each time; from half of that to all of it at random, so that keys that fail together do not come back
    /// together.
    fn next_pause(&mut self) -> Duration {
        let longest = FIRST_PAUSE
            .saturating_mul(1 << self.put_off)
            .min(LAST_PAUSE);
        if longest < LAST_PAUSE {
            self.put_off += 1;
        }
        longest.mul_f64(0.5 + fastrand::f64() / 2.0)
    }
}

impl AlarmClock {
    /// One more waits for `name`.
    pub(crate) fn join(&self, name: &LockName) {
        let mut alarms = self.alarms();
        alarms.by_name.entry(name.clone()).or_default().waiting += 1;
    }

    /// One fewer waits for `name`. With the last one its alarm goes, too.
    pub(crate) fn leave(&self, name: &LockName) {
        let mut alarms = self.alarms();
        let Some(entry) = alarms.by_name.get_mut(name) else {
            return;
        };
        entry.waiting -= 1;
        if entry.waiting == 0 {
            let at = entry.at;
            alarms.by_name.remove(name);
            at.map(|at| alarms.by_time.remove(&(at, name.clone())));
        }
    }

    /// Rings for `name` at `at`, or earlier if that was asked for before; never if nobody waits for it.
    pub(crate) fn set(&self, name: &LockName, at: Instant) {
        self.set_by(name, |entry| {
            entry.put_off = 0;
            at
        });
    }

    /// Rings for `name` once more after a while: its last alarm came to nothing.
    pub(crate) fn put_off(&self, name: &LockName) {
        self.set_by(name, |entry| Instant::now() + entry.next_pause());
    }

    fn set_by(&self, name: &LockName, at: impl FnOnce(&mut Entry) -> Instant) {
        let mut alarms = self.alarms();
        let Alarms { by_name, by_time } = &mut *alarms;
        let Some(entry) = by_name.get_mut(name) else {
            return;
        };
        let at = at(entry);
        if entry.at.is_some_and(|set| set <= at) {
            return;
        }
        if let Some(set) = entry.at.replace(at) {
            by_time.remove(&(set, name.clone()));
        }
        by_time.insert((at, name.clone()));
        let is_first = by_time.first().is_some_and(|(_, first)| first == name);
        drop(alarms);
        if is_first {
            self.earlier.notify_one();
        }
    }

    fn alarms(&self) -> MutexGuard<'_, Alarms> {
        self.alarms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next alarm and takes it off the clock.
    pub(crate) async fn ring(&self) -> LockName {
        loop {
            match self.next_or_due() {
                Ok(due) => return due,
                Err(Some(at)) => tokio::select! {
                    () = sleep_until(at) => {}
                    () = self.earlier.notified() => {}
                },
                Err(None) => self.earlier.notified().await,
            }
        }
    }

    /// The first alarm if it is due, else when it will be.
    fn next_or_due(&self) -> Result<LockName, Option<Instant>> {
        let mut alarms = self.alarms();
        match alarms.by_time.first() {
            None => Err(None),
            Some((at, _)) if *at > Instant::now() => Err(Some(*at)),
            Some(_) => {
                let (_, name) = alarms.by_time.pop_first().ok_or(None)?;
                if let Some(entry) = alarms.by_name.get_mut(&name) {
                    entry.at = None;
                }
                Ok(name)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::LockKey;

    fn name(key: &str) -> LockName {
        LockName::global(&LockKey::parse(key).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn one_key_rings_once_at_its_earliest_time() {
        let clock = AlarmClock::default();
        let start = Instant::now();
        for key in ["a", "a", "b"] {
            clock.join(&name(key));
        }
        for seconds in [30, 10, 20, 10] {
            clock.set(&name("a"), start + Duration::from_secs(seconds));
        }
        clock.set(&name("b"), start + Duration::from_secs(15));

        assert_eq!(clock.ring().await, name("a"));
        assert_eq!(start.elapsed().as_secs(), 10);
        assert_eq!(clock.ring().await, name("b"));
        assert_eq!(start.elapsed().as_secs(), 15);
        assert!(clock.alarms().by_time.is_empty());
    }

    #[test]
    fn a_key_that_nobody_waits_for_takes_no_room() {
        let clock = AlarmClock::default();
        let at = Instant::now();
        clock.set(&name("a"), at);
        assert!(clock.alarms().by_time.is_empty());
        for _ in 0..2 {
            clock.join(&name("a"));
            clock.set(&name("a"), at);
        }
        clock.leave(&name("a"));
        assert_eq!(clock.alarms().by_time.len(), 1);
        clock.leave(&name("a"));
        assert!(clock.alarms().by_time.is_empty());
        assert!(clock.alarms().by_name.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn an_earlier_alarm_is_heard_by_one_who_waits_already() {
        let clock = Arc::new(AlarmClock::default());
        let start = Instant::now();
        for key in ["late", "early"] {
            clock.join(&name(key));
        }
        clock.set(&name("late"), start + Duration::from_secs(60));
        let ringing = tokio::spawn({
            let clock = clock.clone();
            async move { clock.ring().await }
        });
        tokio::time::sleep(Duration::from_secs(1)).await;
        clock.set(&name("early"), start + Duration::from_secs(5));
        assert_eq!(ringing.await.unwrap(), name("early"));
        assert_eq!(start.elapsed().as_secs(), 5);
    }
}
