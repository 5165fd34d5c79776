//! One alarm for each key that calls of this process wait for, due when a lease that blocks them ends.
//!
//! A key has one alarm, however many calls wait for it, so an expiry costs one call to the store. If that call fails, the alarm
//! is set again with a growing pause, so that many keys do not overload a store that is down.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::LockName;

/// The pauses of an alarm whose call to the store failed.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LAST_PAUSE: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(crate) struct Alarms {
    schedule: Mutex<Schedule>,
    /// Notified when an alarm becomes the first.
    earlier: Notify,
}

#[derive(Debug, Default)]
struct Schedule {
    by_name: HashMap<LockName, Alarm>,
    by_time: BTreeSet<(Instant, LockName)>,
}

/// The alarm of a key that calls of this process wait for.
#[derive(Debug, Default)]
struct Alarm {
    waiters: usize,
    at: Option<Instant>,
    /// How often it has backed off since it was last set.
    backoffs: u32,
}

impl Alarm {
    /// Doubles each time. Jitter takes off up to half, so that keys that fail together do not retry together.
    fn next_pause(&mut self) -> Duration {
        let longest = FIRST_PAUSE
            .saturating_mul(1 << self.backoffs)
            .min(LAST_PAUSE);
        if longest < LAST_PAUSE {
            self.backoffs += 1;
        }
        longest.mul_f64(0.5 + fastrand::f64() / 2.0)
    }
}

impl Alarms {
    /// One more call waits for `name`.
    pub(crate) fn add_waiter(&self, name: &LockName) {
        let mut schedule = self.schedule();
        schedule.by_name.entry(name.clone()).or_default().waiters += 1;
    }

    /// One call fewer waits for `name`. With the last one its alarm is removed.
    pub(crate) fn remove_waiter(&self, name: &LockName) {
        let mut schedule = self.schedule();
        let Some(alarm) = schedule.by_name.get_mut(name) else {
            return;
        };
        alarm.waiters -= 1;
        if alarm.waiters == 0 {
            let at = alarm.at;
            schedule.by_name.remove(name);
            at.map(|at| schedule.by_time.remove(&(at, name.clone())));
        }
    }

    /// Sets the alarm of `name`, unless it is due earlier already or no call waits for `name`.
    pub(crate) fn set(&self, name: &LockName, at: Instant) {
        self.set_with(name, |alarm| {
            alarm.backoffs = 0;
            at
        });
    }

    /// Sets the alarm of `name` after a pause, because its last one had no effect.
    pub(crate) fn back_off(&self, name: &LockName) {
        self.set_with(name, |alarm| Instant::now() + alarm.next_pause());
    }

    fn set_with(&self, name: &LockName, at: impl FnOnce(&mut Alarm) -> Instant) {
        let mut schedule = self.schedule();
        let Schedule { by_name, by_time } = &mut *schedule;
        let Some(alarm) = by_name.get_mut(name) else {
            return;
        };
        let at = at(alarm);
        if alarm.at.is_some_and(|set| set <= at) {
            return;
        }
        if let Some(set) = alarm.at.replace(at) {
            by_time.remove(&(set, name.clone()));
        }
        by_time.insert((at, name.clone()));
        let is_first = by_time.first().is_some_and(|(_, first)| first == name);
        drop(schedule);
        if is_first {
            self.earlier.notify_one();
        }
    }

    fn schedule(&self) -> MutexGuard<'_, Schedule> {
        self.schedule.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until an alarm is due, and clears it.
    pub(crate) async fn next_due(&self) -> LockName {
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
        let mut schedule = self.schedule();
        match schedule.by_time.first() {
            None => Err(None),
            Some((at, _)) if *at > Instant::now() => Err(Some(*at)),
            Some(_) => {
                let (_, name) = schedule.by_time.pop_first().ok_or(None)?;
                if let Some(alarm) = schedule.by_name.get_mut(&name) {
                    alarm.at = None;
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
    async fn a_key_has_one_alarm_at_its_earliest_time() {
        let alarms = Alarms::default();
        let start = Instant::now();
        for key in ["a", "a", "b"] {
            alarms.add_waiter(&name(key));
        }
        for seconds in [30, 10, 20, 10] {
            alarms.set(&name("a"), start + Duration::from_secs(seconds));
        }
        alarms.set(&name("b"), start + Duration::from_secs(15));

        assert_eq!(alarms.next_due().await, name("a"));
        assert_eq!(start.elapsed().as_secs(), 10);
        assert_eq!(alarms.next_due().await, name("b"));
        assert_eq!(start.elapsed().as_secs(), 15);
        assert!(alarms.schedule().by_time.is_empty());
    }

    #[test]
    fn a_key_without_waiters_has_no_alarm() {
        let alarms = Alarms::default();
        let at = Instant::now();
        alarms.set(&name("a"), at);
        assert!(alarms.schedule().by_time.is_empty());
        for _ in 0..2 {
            alarms.add_waiter(&name("a"));
            alarms.set(&name("a"), at);
        }
        alarms.remove_waiter(&name("a"));
        assert_eq!(alarms.schedule().by_time.len(), 1);
        alarms.remove_waiter(&name("a"));
        assert!(alarms.schedule().by_time.is_empty());
        assert!(alarms.schedule().by_name.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn an_earlier_alarm_wakes_a_task_that_waits_already() {
        let alarms = Arc::new(Alarms::default());
        let start = Instant::now();
        for key in ["late", "early"] {
            alarms.add_waiter(&name(key));
        }
        alarms.set(&name("late"), start + Duration::from_secs(60));
        let next_due = tokio::spawn({
            let alarms = alarms.clone();
            async move { alarms.next_due().await }
        });
        tokio::time::sleep(Duration::from_secs(1)).await;
        alarms.set(&name("early"), start + Duration::from_secs(5));
        assert_eq!(next_due.await.unwrap(), name("early"));
        assert_eq!(start.elapsed().as_secs(), 5);
    }
}
