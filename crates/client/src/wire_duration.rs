//! Durations as requests have them.

use std::time::Duration;

/// The duration in the longest unit that divides it. Fractions of a millisecond are dropped, but at least one millisecond is left,
/// because servers refuse a duration of zero.
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
