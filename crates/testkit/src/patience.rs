//! Waits for conditions, so that tests need no fixed sleeps.

use std::thread;
use std::time::{Duration, Instant};

/// How long tests wait at most: a test that hangs fails, instead of running forever.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits for a condition; panics if it does not come true.
#[track_caller]
pub fn until(what: &str, condition: impl FnMut() -> bool) {
    until_for(PATIENCE, what, condition);
}

/// As [`until`], with another limit. Returns how long it took.
#[track_caller]
pub fn until_for(limit: Duration, what: &str, mut condition: impl FnMut() -> bool) -> Duration {
    let since = Instant::now();
    while !condition() {
        let never = format!("never came true within {limit:?}: {what}");
        assert!(since.elapsed() < limit, "{never}");
        thread::sleep(Duration::from_millis(5));
    }
    since.elapsed()
}
