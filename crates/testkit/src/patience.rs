//! Waiting for what is to come true.

use std::thread;
use std::time::{Duration, Instant};

/// So that what hangs is a failed test and not one that never ends.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits for a condition; panics when it does not come true.
#[track_caller]
pub fn until(what: &str, is_so: impl FnMut() -> bool) {
    until_for(PATIENCE, what, is_so);
}

/// The same with a limit of its own. Returns how long it took.
#[track_caller]
pub fn until_for(limit: Duration, what: &str, mut is_so: impl FnMut() -> bool) -> Duration {
    let since = Instant::now();
    while !is_so() {
        let never = format!("never came true within {limit:?}: {what}");
        assert!(since.elapsed() < limit, "{never}");
        thread::sleep(Duration::from_millis(5));
    }
    since.elapsed()
}
