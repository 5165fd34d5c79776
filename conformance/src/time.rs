//! The timestamps of the contract: UTC, RFC 3339 with milliseconds and `Z`. No other form is accepted.

use chrono::{DateTime, SecondsFormat, TimeDelta, Utc};

/// Parses the only form that the contract allows.
pub(crate) fn parse(text: &str) -> Option<DateTime<Utc>> {
    let timestamp = DateTime::parse_from_rfc3339(text).ok()?.to_utc();
    (format(timestamp) == text).then_some(timestamp)
}

/// The same timestamp, moved by a number of milliseconds.
pub(crate) fn moved(text: &str, by_ms: i64) -> Option<String> {
    let by = TimeDelta::try_milliseconds(by_ms)?;
    parse(text)?.checked_add_signed(by).map(format)
}

/// The milliseconds from the first timestamp to the second.
pub(crate) fn between(first: DateTime<Utc>, second: DateTime<Utc>) -> i64 {
    (second - first).num_milliseconds()
}

fn format(timestamp: DateTime<Utc>) -> String {
    timestamp.to_rfc3339_opts(SecondsFormat::Millis, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_utc_with_milliseconds_and_z_is_a_timestamp() {
        assert!(parse("2024-03-15T10:30:30.000Z").is_some());
        for text in [
            "2024-03-15T10:30:30Z",
            "2024-03-15T10:30:30.00Z",
            "2024-03-15T10:30:30.000+00:00",
            "2024-03-15 10:30:30.000Z",
            "2024-02-30T10:30:30.000Z",
            "soon",
        ] {
            assert!(parse(text).is_none(), "{text}");
        }
    }

    #[test]
    fn distance_is_in_milliseconds() {
        let first = parse("2024-12-31T23:59:59.999Z").unwrap();
        let second = parse("2025-01-01T00:00:01.000Z").unwrap();
        assert_eq!(between(first, second), 1001);
        assert_eq!(between(second, first), -1001);
    }
}
