//! Durations as they are on the wire: `{"value": 30, "unit": "second"}`.

use std::fmt;
use std::time;

use serde::{Deserialize, Serialize};

/// A duration in the unit that its sender chose. The unit is kept: an answer echoes `1 hour` as such, not as 3600000
/// milliseconds.
///
/// ```
/// use forrst_protocol::Duration;
///
/// let ttl: Duration = serde_json::from_str(r#"{"value": 30, "unit": "second"}"#)?;
/// assert_eq!(ttl.to_std()?, std::time::Duration::from_secs(30));
/// assert_eq!(ttl.to_string(), "30 seconds");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Duration {
    /// How many of the unit. Whether 0 is allowed depends on what the duration is for.
    pub value: u64,
    /// The unit.
    pub unit: Unit,
}

/// A unit of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// A thousandth of a second.
    Millisecond,
    /// A second.
    Second,
    /// 60 seconds.
    Minute,
    /// 60 minutes.
    Hour,
    /// 24 hours.
    Day,
}

/// A duration that is longer than a `std::time::Duration` can be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0} is too long a time")]
pub struct DurationOverflow(Duration);

impl Unit {
    /// From the longest to the shortest, for finding the longest that fits.
    const DESCENDING: [Unit; 5] = [
        Unit::Day,
        Unit::Hour,
        Unit::Minute,
        Unit::Second,
        Unit::Millisecond,
    ];

    /// The unit as it is on the wire, which is also its English singular.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Millisecond => "millisecond",
            Self::Second => "second",
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
        }
    }

    /// The unit of that name on the wire.
    pub fn parse(name: &str) -> Option<Self> {
        let mut all = Self::DESCENDING.into_iter();
        all.find(|unit| unit.as_str() == name)
    }

    const fn in_millis(self) -> u64 {
        match self {
            Self::Millisecond => 1,
            Self::Second => 1000,
            Self::Minute => 60 * 1000,
            Self::Hour => 60 * 60 * 1000,
            Self::Day => 24 * 60 * 60 * 1000,
        }
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl Duration {
    /// That many of a unit.
    pub const fn new(value: u64, unit: Unit) -> Self {
        Self { value, unit }
    }

    /// That many milliseconds.
    pub const fn millis(value: u64) -> Self {
        Self::new(value, Unit::Millisecond)
    }

    /// The same duration as a [`std::time::Duration`].
    pub fn to_std(self) -> Result<time::Duration, DurationOverflow> {
        if self.unit == Unit::Millisecond {
            return Ok(time::Duration::from_millis(self.value));
        }
        let seconds_each = self.unit.in_millis() / Unit::Second.in_millis();
        self.value
            .checked_mul(seconds_each)
            .map(time::Duration::from_secs)
            .ok_or(DurationOverflow(self))
    }

    /// The duration in the longest unit that leaves no remainder. Parts of a millisecond are cut off, and zero is 0 milliseconds.
    pub fn from_std(time: time::Duration) -> Self {
        // Milliseconds overflow after half a billion years; whole seconds are exact enough there.
        let Ok(millis) = u64::try_from(time.as_millis()) else {
            return Self::new(time.as_secs(), Unit::Second);
        };
        if millis == 0 {
            return Self::millis(0);
        }
        Unit::DESCENDING
            .into_iter()
            .find(|unit| millis.is_multiple_of(unit.in_millis()))
            .map_or(Self::millis(millis), |unit| {
                Self::new(millis / unit.in_millis(), unit)
            })
    }
}

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.value == 1 { "" } else { "s" };
        write!(f, "{} {}{plural}", self.value, self.unit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Result<Duration, serde_json::Error> {
        serde_json::from_str(text)
    }

    #[test]
    fn each_unit_is_read_written_and_converted() {
        for (unit, seconds) in [
            ("second", 1),
            ("minute", 60),
            ("hour", 3600),
            ("day", 86400),
        ] {
            let text = format!(r#"{{"value":2,"unit":"{unit}"}}"#);
            let duration = read(&text).unwrap();
            assert_eq!(serde_json::to_string(&duration).unwrap(), text);
            assert_eq!(
                duration.to_std(),
                Ok(time::Duration::from_secs(2 * seconds))
            );
        }
        assert_eq!(
            read(r#"{"unit":"millisecond","value":2}"#)
                .unwrap()
                .to_std(),
            Ok(time::Duration::from_millis(2))
        );
    }

    #[test]
    fn value_is_an_unsigned_integer_and_nothing_else() {
        assert_eq!(read(r#"{"value":0,"unit":"second"}"#).unwrap().value, 0);
        assert_eq!(
            read(r#"{"value":18446744073709551615,"unit":"day"}"#)
                .unwrap()
                .value,
            u64::MAX
        );
        for value in [
            "30.0",
            "3e1",
            "-1",
            "\"30\"",
            "null",
            "true",
            "[30]",
            "18446744073709551616",
        ] {
            let text = format!(r#"{{"value":{value},"unit":"second"}}"#);
            assert!(read(&text).is_err(), "{text}");
        }
    }

    #[test]
    fn missing_unknown_and_repeated_members_are_errors() {
        for text in [
            "{}",
            r#"{"value":1}"#,
            r#"{"unit":"second"}"#,
            r#"{"value":1,"unit":"seconds"}"#,
            r#"{"value":1,"unit":"Second"}"#,
            r#"{"value":1,"unit":"second","approximate":true}"#,
            r#"{"value":1,"value":2,"unit":"second"}"#,
            "30",
            r#""30s""#,
        ] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn too_long_a_time_is_an_error_not_a_wrap() {
        assert!(Duration::new(u64::MAX, Unit::Second).to_std().is_ok());
        let error = Duration::new(u64::MAX, Unit::Minute).to_std().unwrap_err();
        assert_eq!(
            error.to_string(),
            "18446744073709551615 minutes is too long a time"
        );
        assert!(Duration::new(u64::MAX / 86400, Unit::Day).to_std().is_ok());
        assert!(
            Duration::new(u64::MAX / 86400 + 1, Unit::Day)
                .to_std()
                .is_err()
        );
    }

    #[test]
    fn text_has_the_right_plural() {
        assert_eq!(Duration::new(1, Unit::Second).to_string(), "1 second");
        assert_eq!(Duration::new(5, Unit::Second).to_string(), "5 seconds");
        assert_eq!(Duration::new(0, Unit::Day).to_string(), "0 days");
    }

    #[test]
    fn from_std_takes_the_longest_exact_unit() {
        for (time, expected) in [
            (time::Duration::ZERO, Duration::millis(0)),
            (time::Duration::from_nanos(1_999_999), Duration::millis(1)),
            (time::Duration::from_millis(1500), Duration::millis(1500)),
            (
                time::Duration::from_secs(90),
                Duration::new(90, Unit::Second),
            ),
            (
                time::Duration::from_secs(120),
                Duration::new(2, Unit::Minute),
            ),
            (
                time::Duration::from_secs(7200),
                Duration::new(2, Unit::Hour),
            ),
            (
                time::Duration::from_secs(172_800),
                Duration::new(2, Unit::Day),
            ),
            (time::Duration::MAX, Duration::new(u64::MAX, Unit::Second)),
        ] {
            assert_eq!(Duration::from_std(time), expected);
        }
    }

    proptest! {
        #[test]
        fn from_std_keeps_every_millisecond(millis: u64, below in 0u32..1_000_000) {
            let whole = time::Duration::from_millis(millis);
            let duration = Duration::from_std(whole.saturating_add(time::Duration::from_nanos(below.into())));
            prop_assert_eq!(duration.to_std().unwrap(), whole);
        }
    }
}
