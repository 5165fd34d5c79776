//! Durations as they stand on the wire.

use std::time::Duration;

/// The time in the longest unit that has no remainder. What is below a millisecond is dropped, but never all of it: servers refuse
/// a duration of nothing.
pub(crate) fn millis(time: Duration) -> forrst_protocol::Duration {
    forrst_protocol::Duration::from_std(time.max(Duration::from_millis(1)))
}

#[cfg(test)]
mod tests {
    use serde_json::{json, to_value};

    use super::*;

    #[test]
    fn a_duration_is_sent_in_the_longest_unit_that_fits() {
        let minute = json!({"value": 1, "unit": "minute"});
        assert_eq!(to_value(millis(Duration::from_secs(60))).unwrap(), minute);
    }
}
