//! A resource that checks fences, and callers that change it under a lock.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use forrst_testkit::{Lock, Shown, post, until_for};

use crate::redis::nodes::{RECOVERY, SECOND};

/// Longer than any fault of these tests, so that overlapping holders are an error and not an expiry.
const TTL: Duration = Duration::from_secs(20);

/// Numbers, each protected by the lock with its name.
#[derive(Default)]
pub(crate) struct Protected {
    numbers: Mutex<HashMap<String, Number>>,
}

#[derive(Debug, Default)]
struct Number {
    value: u64,
    last_fence: u64,
    accepted: u64,
    /// The owner that has read it and is about to write it.
    writer: Option<String>,
}

impl Protected {
    /// Reads the number. From now on, a smaller fence cannot write it.
    fn read(&self, key: &str, lease: &Shown) -> u64 {
        let mut numbers = self.numbers.lock().unwrap();
        let number = numbers.entry(key.to_owned()).or_default();
        assert!(
            lease.fence > number.last_fence,
            "{lease:?} was granted after fence {}",
            number.last_fence
        );
        assert_eq!(
            number.writer, None,
            "{lease:?} holds {key} at the same time"
        );
        number.last_fence = lease.fence;
        number.writer = Some(lease.owner.clone());
        number.value
    }

    fn write(&self, key: &str, lease: &Shown, value: u64) {
        let mut numbers = self.numbers.lock().unwrap();
        let number = numbers.get_mut(key).expect("it was read");
        assert_eq!(
            number.last_fence, lease.fence,
            "the lease on {key} was replaced"
        );
        number.value = value;
        number.accepted += 1;
        number.writer = None;
    }

    /// Checks that no update is lost: the value is the number of accepted writes.
    #[track_caller]
    pub(crate) fn assert_no_lost_update(&self) {
        for (key, number) in &*self.numbers.lock().unwrap() {
            assert_eq!(number.value, number.accepted, "{key}: {number:?}");
        }
    }

    fn accepted_of(&self, key: &str) -> u64 {
        let numbers = self.numbers.lock().unwrap();
        numbers.get(key).map_or(0, |number| number.accepted)
    }
}

/// Callers that increment each number again and again, through each of the servers.
pub(crate) struct Load {
    pub(crate) resource: Arc<Protected>,
    keys: Vec<String>,
    is_over: Arc<AtomicBool>,
    unavailable: Arc<AtomicUsize>,
    callers: Vec<JoinHandle<()>>,
}

impl Load {
    /// Starts one caller for each address and key.
    pub(crate) fn start(addresses: &[String], keys: usize) -> Self {
        let keys: Vec<String> = (0..keys).map(|number| format!("number {number}")).collect();
        let mut load = Self {
            resource: Arc::default(),
            keys,
            is_over: Arc::default(),
            unavailable: Arc::default(),
            callers: Vec::new(),
        };
        for address in addresses {
            for key in &load.keys {
                let caller = Caller {
                    address: address.clone(),
                    key: key.clone(),
                    owner: format!("{key} through {address}"),
                    resource: load.resource.clone(),
                    is_over: load.is_over.clone(),
                    unavailable: load.unavailable.clone(),
                };
                load.callers.push(thread::spawn(move || caller.run()));
            }
        }
        load.until_every_number_changes();
        load
    }

    /// Waits until each number was changed again.
    #[track_caller]
    pub(crate) fn until_every_number_changes(&self) {
        let accepted = |key: &String| self.resource.accepted_of(key);
        let before: Vec<u64> = self.keys.iter().map(accepted).collect();
        let took = until_for(RECOVERY + TTL, "every number was changed again", || {
            let keys = self.keys.iter().zip(&before);
            self.assert_no_caller_failed();
            keys.into_iter()
                .all(|(key, before)| accepted(key) > *before + 1)
        });
        println!("every number was changed again after {took:?}");
    }

    /// How many calls got UNAVAILABLE.
    pub(crate) fn unavailable(&self) -> usize {
        self.unavailable.load(Ordering::Relaxed)
    }

    #[track_caller]
    fn assert_no_caller_failed(&self) {
        let ended = self.callers.iter().any(JoinHandle::is_finished);
        assert!(!ended, "a caller has failed: see above");
    }

    /// Ends the load, and checks that no update was lost.
    #[track_caller]
    pub(crate) fn stop(self) {
        self.is_over.store(true, Ordering::Relaxed);
        for caller in self.callers {
            assert!(caller.join().is_ok(), "a caller has failed: see above");
        }
        self.resource.assert_no_lost_update();
    }
}

struct Caller {
    address: String,
    key: String,
    owner: String,
    resource: Arc<Protected>,
    is_over: Arc<AtomicBool>,
    unavailable: Arc<AtomicUsize>,
}

impl Caller {
    fn run(&self) {
        let lock = Lock::global(&self.key);
        while !self.is_over.load(Ordering::Relaxed) {
            if let Some(lease) = self.acquire(&lock) {
                let value = self.resource.read(&self.key, &lease);
                thread::sleep(Duration::from_millis(2));
                self.resource.write(&self.key, &lease, value + 1);
                self.release(&lock, &lease);
            }
        }
    }

    fn acquire(&self, lock: &Lock) -> Option<Shown> {
        let answer = post(
            &self.address,
            &lock.acquire_within(&self.owner, TTL, SECOND),
        )
        .ok();
        let Some(answer) = answer else {
            // This server is down.
            thread::sleep(Duration::from_millis(50));
            return None;
        };
        match answer.code() {
            None => answer.granted(),
            Some("UNAVAILABLE") => {
                self.unavailable.fetch_add(1, Ordering::Relaxed);
                thread::sleep(Duration::from_millis(50));
                None
            }
            Some("LOCK_TIMEOUT") => None,
            Some(_) => panic!("{answer:?}"),
        }
    }

    /// Retries until the lock is known to be released: otherwise it would stay held until it expires.
    fn release(&self, lock: &Lock, lease: &Shown) {
        let give_up = Instant::now() + TTL;
        while Instant::now() < give_up {
            let answer = post(&self.address, &lock.release(&lease.owner, lease.fence)).ok();
            match answer.as_ref().and_then(|answer| answer.code()) {
                None if answer.is_some() => return,
                // The answer to an earlier try was lost.
                Some("LOCK_ALREADY_RELEASED" | "LOCK_NOT_FOUND" | "LOCK_OWNERSHIP_MISMATCH") => {
                    return;
                }
                None | Some("UNAVAILABLE") => thread::sleep(Duration::from_millis(50)),
                Some(_) => panic!("{answer:?}"),
            }
        }
    }
}
