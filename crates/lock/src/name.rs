//! Names of locks: the key that a caller chose, and the full name under which the store has the lock.
//!
//! Both are NFC-normalised, so that two spellings that look the same are the same lock.

use std::borrow::{Borrow, Cow};
use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;
use smol_str::SmolStr;
use unicode_normalization::{UnicodeNormalization, is_nfc};

use crate::{CallToken, Caller};

/// Why a text is not a valid key, name, owner or attempt.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidText {
    /// It is empty.
    #[error("must not be empty")]
    Empty,
    /// It is longer than the limit.
    #[error("must be at most {max} bytes of UTF-8, but is {actual}")]
    TooLong {
        /// The limit, in bytes.
        max: usize,
        /// Its length, in bytes.
        actual: usize,
    },
    /// It contains a control character, such as a line break or NUL.
    #[error("must not contain control characters, but has U+{:04X}", u32::from(*.0))]
    Control(char),
    /// It is a full name that does not start with [`LockName::PREFIX`].
    #[error("must start with `lock:`, as the full key in an answer does")]
    NoPrefix,
}

/// Checks the rules that all these texts share.
pub(crate) fn check(text: &str, max: usize) -> Result<(), InvalidText> {
    if text.is_empty() {
        return Err(InvalidText::Empty);
    }
    if text.len() > max {
        return Err(InvalidText::TooLong {
            max,
            actual: text.len(),
        });
    }
    match text.chars().find(|c| c.is_control()) {
        Some(control) => Err(InvalidText::Control(control)),
        None => Ok(()),
    }
}

/// In NFC.
fn normalised(raw: &str) -> Cow<'_, str> {
    if is_nfc(raw) {
        raw.into()
    } else {
        raw.nfc().collect()
    }
}

/// Full keys of the PHP library begin with `forrst_lock:`.
fn with_prefix(name: Cow<'_, str>) -> Cow<'_, str> {
    match name.strip_prefix(OTHER_PREFIX) {
        Some(rest) => Cow::Owned(format!("{}{rest}", LockName::PREFIX)),
        None => name,
    }
}

const OTHER_PREFIX: &str = "forrst_lock:";

/// With one allocation, because every call with a lock builds a name.
fn joined(parts: &[&str]) -> Arc<str> {
    let mut text: SmallVec<[u8; 128]> = SmallVec::new();
    parts
        .iter()
        .for_each(|part| text.extend_from_slice(part.as_bytes()));
    let text = std::str::from_utf8(&text);
    text.expect("texts that are joined stay UTF-8").into()
}

/// The key that a caller chose, such as `user:123`: NFC-normalised, 1 to 512 bytes, no control characters.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockKey(SmolStr);

impl LockKey {
    /// The longest key, in bytes of UTF-8 after normalisation.
    pub const MAX_BYTES: usize = 512;

    /// Normalises and validates a text.
    pub fn parse(raw: &str) -> Result<Self, InvalidText> {
        // Normalisation shrinks a text to a quarter at the least, so a longer one is refused without that work.
        if raw.len() > 4 * Self::MAX_BYTES {
            return Err(InvalidText::TooLong {
                max: Self::MAX_BYTES,
                actual: raw.len(),
            });
        }
        let key = normalised(raw);
        check(&key, Self::MAX_BYTES)?;
        Ok(Self(key.into()))
    }

    /// The normalised text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for LockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The full key of a lock: `lock:<function>:<key>`, or `lock:<key>` when it is global.
///
/// A store also has names of [calls](Self::call), which are not locks: they are neither listed nor counted nor reported, and no
/// key of a caller can name one.
///
/// Cheap to clone: the text is shared.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockName(Arc<str>);

impl LockName {
    /// The prefix of every name.
    pub const PREFIX: &'static str = "lock:";

    /// The longest name that can be built: prefix, function, colon, key.
    pub const MAX_BYTES: usize =
        Self::PREFIX.len() + Self::MAX_FUNCTION_BYTES + 1 + LockKey::MAX_BYTES;

    /// The longest function name that can scope a lock.
    pub const MAX_FUNCTION_BYTES: usize = 255;

    /// The name of a lock within one function.
    pub fn scoped(function: &str, key: &LockKey) -> Result<Self, InvalidText> {
        check(function, Self::MAX_FUNCTION_BYTES)?;
        Ok(Self(joined(&[Self::PREFIX, function, ":", key.as_str()])))
    }

    /// The name of a lock that is shared by all functions.
    pub fn global(key: &LockKey) -> Self {
        Self(joined(&[Self::PREFIX, key.as_str()]))
    }

    /// The name of a call that can be cancelled by a token. A lease on it means that the call is under way; ending that lease cancels
    /// the call, on whichever node it is. Its releases are remembered for [`CALL_MEMORY`](crate::model::CALL_MEMORY).
    pub fn call(caller: Option<&Caller>, token: &CallToken) -> Self {
        let caller = caller.map_or("", Caller::as_str);
        // The length keeps the callers apart: both texts may contain colons.
        let length = caller.len().to_string();
        Self(joined(&[
            Self::CALL_PREFIX,
            &length,
            ":",
            caller,
            ":",
            token.as_str(),
        ]))
    }

    const CALL_PREFIX: &'static str = "call:";

    /// Whether it is the name of a [call](Self::call), and not of a lock.
    pub fn is_call(&self) -> bool {
        self.0.starts_with(Self::CALL_PREFIX)
    }

    /// Reads a name that a store has written: of a lock, or of a call.
    ///
    /// # Errors
    ///
    /// If it is neither.
    pub fn restore(text: &str) -> Result<Self, InvalidText> {
        if text.starts_with(Self::CALL_PREFIX) {
            check(text, Self::MAX_BYTES)?;
            return Ok(Self(text.into()));
        }
        Self::parse(text)
    }

    /// Parses a full key, as answers contain it.
    pub fn parse(raw: &str) -> Result<Self, InvalidText> {
        if raw.len() > 4 * Self::MAX_BYTES {
            return Err(InvalidText::TooLong {
                max: Self::MAX_BYTES,
                actual: raw.len(),
            });
        }
        let name = with_prefix(normalised(raw));
        check(&name, Self::MAX_BYTES)?;
        match name.strip_prefix(Self::PREFIX) {
            None => Err(InvalidText::NoPrefix),
            Some("") => Err(InvalidText::Empty),
            Some(_) => Ok(Self(name.into())),
        }
    }

    /// Normalises a prefix, so that it matches the normalised names that begin with it.
    pub fn normalised_prefix(raw: &str) -> String {
        with_prefix(normalised(raw)).into_owned()
    }

    /// The whole text, including `lock:`.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Borrow<str> for LockName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_that_look_the_same_are_one_key() {
        let composed = LockKey::parse("caf\u{e9}").unwrap();
        let decomposed = LockKey::parse("cafe\u{301}").unwrap();
        assert_eq!(composed, decomposed);
        assert_eq!(composed.as_str(), "caf\u{e9}");
    }

    #[test]
    fn length_is_counted_in_bytes_after_normalisation() {
        assert!(LockKey::parse(&"k".repeat(512)).is_ok());
        assert!(LockKey::parse(&"\u{e9}".repeat(256)).is_ok());
        // 768 bytes as sent, 512 when normalised.
        assert!(LockKey::parse(&"e\u{301}".repeat(256)).is_ok());
        for too_long in ["k".repeat(513), "\u{e9}".repeat(257), "k".repeat(1_000_000)] {
            assert!(matches!(
                LockKey::parse(&too_long),
                Err(InvalidText::TooLong { max: 512, .. })
            ));
        }
    }

    #[test]
    fn normalisation_never_shrinks_a_text_below_a_quarter() {
        // The refusal of very long raw text relies on it.
        let shrinks_most = (0..=0x10_FFFF_u32)
            .filter_map(char::from_u32)
            .map(|composed| {
                let decomposed: String = std::iter::once(composed).nfd().collect();
                let back: String = decomposed.nfc().collect();
                decomposed.len().div_ceil(back.len())
            })
            .max();
        assert!(shrinks_most <= Some(4), "{shrinks_most:?}");
    }

    #[test]
    fn empty_and_control_characters_are_refused() {
        assert_eq!(LockKey::parse(""), Err(InvalidText::Empty));
        for control in ['\0', '\n', '\u{7f}', '\u{85}'] {
            assert_eq!(
                LockKey::parse(&format!("a{control}b")),
                Err(InvalidText::Control(control))
            );
        }
    }

    #[test]
    fn names_have_the_form_of_the_contract() {
        let key = LockKey::parse("user:123").unwrap();
        assert_eq!(
            LockName::scoped("payments.charge", &key).unwrap().as_str(),
            "lock:payments.charge:user:123"
        );
        assert_eq!(LockName::global(&key).as_str(), "lock:user:123");
    }

    #[test]
    fn every_name_that_can_be_built_can_be_parsed() {
        let key = LockKey::parse(&"k".repeat(512)).unwrap();
        let function = "f".repeat(LockName::MAX_FUNCTION_BYTES);
        let name = LockName::scoped(&function, &key).unwrap();
        assert_eq!(LockName::parse(name.as_str()), Ok(name));
    }

    #[test]
    fn calls_of_different_callers_never_have_one_name() {
        let caller = |name: &str| Caller::parse(name).unwrap();
        let token = |text: &str| CallToken::parse(text).unwrap();
        let (short, long) = (caller("a"), caller("a:b"));
        let name = LockName::call(Some(&short), &token("b:c"));
        assert_ne!(LockName::call(Some(&long), &token("c")), name);
        assert_ne!(LockName::call(None, &token("a:b:c")), name);
        assert_eq!(LockName::restore(name.as_str()), Ok(name));
    }

    #[test]
    fn the_name_of_a_call_is_not_a_full_key() {
        let token = CallToken::parse(&"t".repeat(255)).unwrap();
        let caller = Caller::parse(&"c".repeat(255)).unwrap();
        let name = LockName::call(Some(&caller), &token);
        assert!(name.is_call());
        assert_eq!(LockName::parse(name.as_str()), Err(InvalidText::NoPrefix));
        assert_eq!(LockName::restore(name.as_str()), Ok(name));
    }

    #[test]
    fn the_prefix_of_the_php_library_is_another_spelling() {
        let name = LockName::parse("lock:a:b").unwrap();
        assert_eq!(LockName::parse("forrst_lock:a:b"), Ok(name));
        assert_eq!(LockName::parse("forrst_lock:"), Err(InvalidText::Empty));
        assert_eq!(LockName::normalised_prefix("forrst_lock:a"), "lock:a");
    }

    #[test]
    fn a_full_key_needs_its_prefix_and_a_key() {
        assert_eq!(LockName::parse("user:123"), Err(InvalidText::NoPrefix));
        assert_eq!(LockName::parse("lock:"), Err(InvalidText::Empty));
        assert!(LockName::parse("lock:x\n").is_err());
    }
}
