//! Durations as they stand on the wire.

use std::time::Duration;

/// The time in the longest unit that has no remainder. What is below a millisecond is dropped, but never all of it: servers refuse
/// a duration of nothing.
pub(crate) fn millis(time: Duration) -> forrst_protocol::Duration {
    forrst_protocol::Duration::from_std(time.max(Duration::from_millis(1)))
}
