//! Fencing tokens, which tell a newer lease from an older one.

use std::fmt;
use std::str::FromStr;

use serde::de::{Deserialize, Deserializer, Error as _};
use serde::ser::{Serialize, Serializer};

/// A fencing token. It grows with every grant of a lock, so a resource that refuses a token smaller than the largest it has seen is
/// safe from a holder that does not know yet that its lease has ended.
///
/// As text it has 15 digits, so that fences sort as text as they sort as numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(u64);

/// The text is not a [`Fence`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a fence is 15 decimal digits, found {0:?}")]
pub struct InvalidFence(String);

impl Fence {
    const DIGITS: usize = 15;

    /// The number, for resources that compare numbers.
    pub const fn number(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:0digits$}", self.0, digits = Self::DIGITS)
    }
}

impl FromStr for Fence {
    type Err = InvalidFence;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_fence = text.len() == Self::DIGITS && text.bytes().all(|b| b.is_ascii_digit());
        let number = text.parse().ok().filter(|_| is_fence);
        number
            .map(Self)
            .ok_or_else(|| InvalidFence(text.to_owned()))
    }
}

impl Serialize for Fence {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Fence {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_is_15_digits_and_reads_back_as_itself() {
        let fence: Fence = "000000000000042".parse().unwrap();
        assert_eq!(fence.number(), 42);
        assert_eq!(fence.to_string(), "000000000000042");
        for bad in [
            "",
            "42",
            "0000000000000042",
            "+00000000000042",
            "00000000000004x",
        ] {
            assert!(bad.parse::<Fence>().is_err(), "{bad}");
        }
    }
}
