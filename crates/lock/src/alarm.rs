//! One clock for all keys that somebody waits for: it rings when a holder's lease ends.
//!
//! However many wait for a key, there is one alarm for it, so that an expiry costs one call to the store.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::LockName;

#[derive(Debug, Default)]
pub(crate) struct AlarmClock {
    alarms: Mutex<Alarms>,
    earlier: Notify,
}

#[derive(Debug, Default)]
struct Alarms {
    by_name: HashMap<LockName, Instant>,
    by_time: BTreeSet<(Instant, LockName)>,
}

impl AlarmClock {
    /// Rings for `name` at `at`, or earlier if that was asked for before.
    pub(crate) fn set(&self, name: &LockName, at: Instant) {
        let mut alarms = self.alarms.lock().unwrap_or_else(PoisonError::into_inner);
        match alarms.by_name.get(name).copied() {
            Some(set) if set <= at => return,
            Some(set) => {
                alarms.by_time.remove(&(set, name.clone()));
            }
            None => {}
        }
        alarms.by_name.insert(name.clone(), at);
        alarms.by_time.insert((at, name.clone()));
        let is_first = alarms.by_time.first().is_some_and(|(_, n)| n == name);
        drop(alarms);
        if is_first {
            self.earlier.notify_one();
        }
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
        let mut alarms = self.alarms.lock().unwrap_or_else(PoisonError::into_inner);
        match alarms.by_time.first() {
            None => Err(None),
            Some((at, _)) if *at > Instant::now() => Err(Some(*at)),
            Some(_) => {
                let (_, name) = alarms.by_time.pop_first().ok_or(None)?;
                alarms.by_name.remove(&name);
                Ok(name)
            }
        }
    }
}

/// What a waiter carries so that its own grant sets the clock for the next one.
#[derive(Debug)]
pub(crate) struct Alarm {
    pub(crate) clock: Arc<AlarmClock>,
    pub(crate) name: LockName,
    pub(crate) after: Duration,
}

impl Alarm {
    pub(crate) fn set(&self) {
        self.clock.set(&self.name, Instant::now() + self.after);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LockKey;

    fn name(key: &str) -> LockName {
        LockName::global(&LockKey::parse(key).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn one_key_rings_once_at_its_earliest_time() {
        let clock = AlarmClock::default();
        let start = Instant::now();
        for seconds in [30, 10, 20, 10] {
            clock.set(&name("a"), start + Duration::from_secs(seconds));
        }
        clock.set(&name("b"), start + Duration::from_secs(15));

        assert_eq!(clock.ring().await, name("a"));
        assert_eq!(start.elapsed().as_secs(), 10);
        assert_eq!(clock.ring().await, name("b"));
        assert_eq!(start.elapsed().as_secs(), 15);
        assert!(clock.alarms.lock().unwrap().by_time.is_empty());
        assert!(clock.alarms.lock().unwrap().by_name.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn an_earlier_alarm_is_heard_by_one_who_waits_already() {
        let clock = Arc::new(AlarmClock::default());
        let start = Instant::now();
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
