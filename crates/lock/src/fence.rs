//! Fencing tokens, and how they are minted.
//!
//! A fence is minted from the time, so that it is larger than all earlier ones even after a store has lost its data.

use std::fmt;
use std::str::FromStr;

use crate::Timestamp;

/// A fencing token: it grows strictly with every grant of a key, across restarts and expiry.
///
/// As text it has 15 digits, so that fences have the same order as text and as numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(u64);

/// A text that is not a fence: 15 decimal digits, from `000000000000001` to `900000000000000`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be 15 decimal digits from 000000000000001 to 900000000000000")]
pub struct InvalidFence;

impl Fence {
    /// The smallest.
    pub const FIRST: Self = Self(1);
    /// The largest. After it nothing can be acquired; fences do not wrap.
    pub const MAX: Self = Self(900_000_000_000_000);
    /// From here on every grant logs a warning. Fences that follow the time get here in 2054.
    pub const WARN: Self = Self(90_000_000_000_000);

    /// The fence of this number; `None` if it is out of range.
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

    /// The fence of the next grant; `None` after [`Fence::MAX`].
    pub const fn next(self) -> Option<Self> {
        Self::new(self.0 + 1)
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Every grant is formatted at least once, and `{:015}` takes four times as long.
        let mut digits = [b'0'; 15];
        let mut left = self.0;
        for digit in digits.iter_mut().rev() {
            *digit = b'0' + (left % 10) as u8;
            left /= 10;
        }
        f.write_str(std::str::from_utf8(&digits).unwrap_or_default())
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

/// Mints the fences of some keys from the time: 100 per millisecond since 2026, and more only by borrowing from the future.
///
/// So after data was lost, by a crash, a restored backup or a deleted folder, the next fence is larger than the lost ones,
/// because it is later. This does not hold if the clock was ahead, if more fences were minted than the time has room for, or
/// after [`Fence::WARN`].
#[derive(Debug, Clone, Copy, Default)]
pub struct Fences {
    last: u64,
}

impl Fences {
    /// 2026-01-01 UTC, in milliseconds.
    pub const EPOCH_MILLIS: u64 = 1_767_225_600_000;
    /// How many fences each millisecond has room for.
    pub const PER_MILLISECOND: u64 = 100;

    /// Continues after a fence that was minted before.
    pub fn after(last: Option<Fence>) -> Self {
        Self {
            last: last.map_or(0, Fence::number),
        }
    }

    /// The next fence at the time `now`; `None` when they are exhausted.
    pub fn peek(&self, now: Timestamp) -> Option<Fence> {
        let by_time = now.as_millis().saturating_sub(Self::EPOCH_MILLIS);
        let by_time = by_time.saturating_mul(Self::PER_MILLISECOND);
        // A clock that is centuries ahead must not use them up.
        let by_time = by_time.min(Fence::WARN.number());
        Fence::new(by_time.max(self.last + 1))
    }

    /// Records that this fence was minted.
    pub fn advance_to(&mut self, fence: Fence) {
        self.last = self.last.max(fence.number());
    }

    /// Mints the next fence; `None` when they are exhausted.
    pub fn next(&mut self, now: Timestamp) -> Option<Fence> {
        let next = self.peek(now)?;
        self.advance_to(next);
        Some(next)
    }

    /// The largest that was minted.
    pub fn last(&self) -> Option<Fence> {
        Fence::new(self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_sort_in_the_order_of_the_numbers() {
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
    fn fences_never_wrap() {
        assert_eq!(Fence::MAX.next(), None);
        assert_eq!(Fence::new(0), None);
        assert_eq!(Fence::new(900_000_000_000_001), None);
    }

    #[test]
    fn other_texts_are_not_fences() {
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

    #[test]
    fn fences_follow_the_time_and_never_decrease() {
        let at = |millis| Timestamp::from_millis(Fences::EPOCH_MILLIS + millis);
        let mut fences = Fences::default();
        assert_eq!(fences.next(at(0)).map(Fence::number), Some(1));
        assert_eq!(fences.next(at(10)).map(Fence::number), Some(1000));
        assert_eq!(fences.next(at(10)).map(Fence::number), Some(1001));
        assert_eq!(
            fences.next(at(5)).map(Fence::number),
            Some(1002),
            "a clock that was set back"
        );
        // All data was lost, and time has passed.
        assert_eq!(
            Fences::default().next(at(11)).map(Fence::number),
            Some(1100)
        );
        let mut late = Fences::default();
        let far = Timestamp::from_millis(u64::MAX);
        assert_eq!(late.next(far), Some(Fence::WARN));
        let mut last = Fences::after(Some(Fence::MAX));
        assert_eq!(last.next(far), None);
    }
}
