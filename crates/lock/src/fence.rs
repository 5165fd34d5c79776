//! The number that tells a newer lease from an older one.

use std::fmt;
use std::str::FromStr;

/// A fencing token: it grows strictly with every grant of a key, across restarts and expiry.
///
/// Its text has 15 digits, so that fences sort the same as text and as numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(u64);

/// The text of a fence is 15 decimal digits, from `000000000000001` to `900000000000000`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be 15 decimal digits from 000000000000001 to 900000000000000")]
pub struct InvalidFence;

impl Fence {
    /// The first fence of a new store.
    pub const FIRST: Self = Self(1);
    /// The last one: past it nothing can be acquired any more, and nothing wraps.
    pub const MAX: Self = Self(900_000_000_000_000);
    /// From here on every grant logs a warning. At a million grants a second that is three years after the start.
    pub const WARN: Self = Self(90_000_000_000_000);

    /// A fence of this number, if it is one.
    pub const fn new(number: u64) -> Option<Self> {
        if number >= Self::FIRST.0 && number <= Self::MAX.0 {
            Some(Self(number))
        } else {
            None
        }
    }

    /// The number.
    pub const fn number(self) -> u64 {
        self.0
    }

    /// The fence of the next grant; none past [`Fence::MAX`].
    pub const fn next(self) -> Option<Self> {
        Self::new(self.0 + 1)
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:015}", self.0)
    }
}

impl FromStr for Fence {
    type Err = InvalidFence;

    fn from_str(text: &str) -> Result<Self, InvalidFence> {
        if text.len() != 15 || !text.bytes().all(|b| b.is_ascii_digit()) {
            return Err(InvalidFence);
        }
        text.parse().ok().and_then(Self::new).ok_or(InvalidFence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_number_sort_alike() {
        let fences = [1, 9, 10, 99_999, 100_000, 900_000_000_000_000];
        let texts: Vec<String> = fences
            .iter()
            .map(|&n| Fence::new(n).unwrap().to_string())
            .collect();
        assert!(texts.is_sorted());
        assert!(texts.iter().all(|text| text.len() == 15));
        for (text, number) in texts.iter().zip(fences) {
            assert_eq!(text.parse(), Ok(Fence(number)));
        }
    }

    #[test]
    fn it_never_wraps() {
        assert_eq!(Fence::MAX.next(), None);
        assert_eq!(Fence::new(0), None);
        assert_eq!(Fence::new(900_000_000_000_001), None);
    }

    #[test]
    fn other_texts_are_no_fences() {
        for text in [
            "",
            "1",
            "00000000000001",
            "0000000000000001",
            "00000000000000x",
            "+00000000000001",
            "000000000000000",
            "900000000000001",
        ] {
            assert_eq!(text.parse::<Fence>(), Err(InvalidFence), "{text}");
        }
    }
}
