//! Durations and sizes, in the notation of flags and of the file.

use std::str::FromStr;
use std::time::Duration;

use forrst_lock::ReleaseMemory;
use serde::Deserialize;
use serde::de::Error as _;

/// A duration such as `30s`, `5m` or `1h 30m`, more than zero.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Time(pub(crate) Duration);

impl FromStr for Time {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = "a duration such as `30s`, `5m` or `1h 30m`";
        match humantime::parse_duration(text) {
            Ok(duration) if !duration.is_zero() => Ok(Self(duration)),
            Ok(_) => Err(format!("must be more than zero: {expected}")),
            Err(error) => Err(format!("{error}: expected {expected}")),
        }
    }
}

/// How long to wait: a duration, or `0` for not at all.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct WaitTime(pub(crate) Duration);

impl FromStr for WaitTime {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let duration = humantime::parse_duration(text);
        duration.map(Self).map_err(|error| {
            format!("{error}: expected a duration such as `30s` or `5m`, or `0` for no wait")
        })
    }
}

/// How long releases are remembered, within the bounds of [`ReleaseMemory`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Memory(pub(crate) ReleaseMemory);

impl FromStr for Memory {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Time(duration) = text.parse()?;
        ReleaseMemory::new(duration).map(Self).ok_or_else(|| {
            let bounds = [ReleaseMemory::MIN, ReleaseMemory::MAX];
            let [min, max] = bounds.map(|bound| humantime::format_duration(bound.as_duration()));
            format!("must be between {min} and {max}")
        })
    }
}

/// A number of bytes such as `65536`, `512KiB` or `1MiB`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Size(pub(crate) usize);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let factor = match text[digits.len()..].to_ascii_lowercase().as_str() {
            "" | "b" => Some(1),
            "k" | "kib" => Some(1024),
            "m" | "mib" => Some(1024 * 1024),
            _ => None,
        };
        let count: Option<usize> = digits.trim().parse().ok();
        let size = count
            .zip(factor)
            .and_then(|(count, factor)| count.checked_mul(factor));
        match size {
            Some(size) if size > 0 => Ok(Self(size)),
            _ => Err("expected a size such as `65536`, `512KiB` or `1MiB`".to_owned()),
        }
    }
}

macro_rules! read_from_text {
    ($($type:ty)*) => {$(
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
            }
        }
    )*};
}
read_from_text!(Time WaitTime Memory Size);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_may_be_zero_and_other_durations_may_not() {
        for (text, duration) in [
            ("0", Duration::ZERO),
            ("0s", Duration::ZERO),
            ("1m 30s", Duration::from_secs(90)),
        ] {
            assert_eq!(text.parse(), Ok(WaitTime(duration)), "{text}");
        }
        for text in ["", "soon", "-1s", "30"] {
            assert!(text.parse::<WaitTime>().is_err(), "{text}");
        }
        assert!("0s".parse::<Time>().is_err());
    }

    #[test]
    fn sizes_have_binary_units() {
        for (text, bytes) in [
            ("1", 1),
            ("64k", 65_536),
            ("512KiB", 524_288),
            ("1MiB", 1_048_576),
        ] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
        for text in [
            "",
            "0",
            "-1",
            "1.5MiB",
            "1GB",
            "MiB",
            "99999999999999999999",
        ] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }
}
