//! Times in the format of the wire: UTC, RFC 3339, with milliseconds and `Z`.

use std::fmt;

use chrono::{DateTime, Datelike, SecondsFormat, Timelike, Utc};
use forrst_lock::Timestamp;

/// A time of the store.
pub(crate) fn timestamp(at: Timestamp) -> String {
    format(date_time(at))
}

/// The current time.
pub(crate) fn now() -> String {
    format(Utc::now())
}

fn date_time(at: Timestamp) -> DateTime<Utc> {
    let millis = i64::try_from(at.as_millis()).unwrap_or(i64::MAX);
    DateTime::from_timestamp_millis(millis).unwrap_or(DateTime::<Utc>::MAX_UTC)
}

fn format(time: DateTime<Utc>) -> String {
    time.to_rfc3339_opts(SecondsFormat::Millis, true)
}

/// As [`timestamp`], formatted without an allocation: every response with a lock has one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WireTime(pub(crate) Timestamp);

impl fmt::Display for WireTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = date_time(self.0);
        let mut text = *b"0000-00-00T00:00:00.000Z";
        let year = u32::try_from(time.year())
            .ok()
            .filter(|year| *year < 10_000);
        let Some(year) = year else {
            return f.write_str(&format(time));
        };
        for (digits, number) in [
            (0..4, year),
            (5..7, time.month()),
            (8..10, time.day()),
            (11..13, time.hour()),
            (14..16, time.minute()),
            (17..19, time.second()),
            (20..23, time.timestamp_subsec_millis()),
        ] {
            let mut left = number;
            for digit in text[digits].iter_mut().rev() {
                *digit = b'0' + (left % 10) as u8;
                left /= 10;
            }
        }
        // All of it is ASCII.
        f.write_str(std::str::from_utf8(&text).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn both_ways_to_format_a_time_give_the_same_text(millis in prop_oneof![0..4_102_444_800_000_u64, any::<u64>()]) {
            let at = Timestamp::from_millis(millis);
            prop_assert_eq!(WireTime(at).to_string(), timestamp(at));
        }
    }
}
