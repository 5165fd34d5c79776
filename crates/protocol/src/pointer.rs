//! JSON pointers (RFC 6901).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Where in a request something is, as an RFC 6901 JSON pointer: `/extensions/0/options/ttl/unit`.
///
/// ```
/// use forrst_protocol::Pointer;
///
/// let pointer = Pointer::root().key("call").key("arguments").key("a/b").index(0);
/// assert_eq!(pointer.as_str(), "/call/arguments/a~1b/0");
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pointer(String);

/// The text is not a JSON pointer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "a JSON pointer is empty or starts with `/`, and has `~` only in `~0` and `~1`; found {0:?}"
)]
pub struct InvalidPointer(String);

impl Pointer {
    /// The pointer to the whole request, which is the empty string.
    pub const fn root() -> Self {
        Self(String::new())
    }

    /// Parses a pointer, as it is on the wire.
    pub fn parse(text: &str) -> Result<Self, InvalidPointer> {
        let starts_well = text.is_empty() || text.starts_with('/');
        let escapes_well = text
            .split('~')
            .skip(1)
            .all(|after| after.starts_with(['0', '1']));
        if starts_well && escapes_well {
            Ok(Self(text.to_owned()))
        } else {
            Err(InvalidPointer(text.to_owned()))
        }
    }

    /// The member of that name in the object pointed at.
    #[must_use]
    pub fn key(mut self, name: &str) -> Self {
        self.0.reserve(1 + name.len());
        self.0.push('/');
        if !name.contains(['~', '/']) {
            self.0.push_str(name);
            return self;
        }
        for character in name.chars() {
            match character {
                '~' => self.0.push_str("~0"),
                '/' => self.0.push_str("~1"),
                other => self.0.push(other),
            }
        }
        self
    }

    /// As [`key`](Self::key), for a name that a caller chose: `None` when the pointer would have more than 512 bytes. Otherwise a
    /// key of half a megabyte would be repeated by every error below it.
    pub fn key_within_limit(&self, name: &str) -> Option<Self> {
        const MAX_BYTES: usize = 512;
        if self.0.len() + name.len() >= MAX_BYTES {
            return None;
        }
        let longer = self.clone().key(name);
        (longer.0.len() <= MAX_BYTES).then_some(longer)
    }

    /// The element at that index of the array pointed at.
    #[must_use]
    pub fn index(mut self, index: usize) -> Self {
        self.0.push('/');
        self.0.push_str(&index.to_string());
        self
    }

    /// The pointer as it is on the wire.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl FromStr for Pointer {
    type Err = InvalidPointer;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text)
    }
}

impl Serialize for Pointer {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Pointer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reserved_characters_are_escaped_in_the_right_order() {
        assert_eq!(Pointer::root().key("~1").as_str(), "/~01");
        assert_eq!(Pointer::root().key("a/b~c").as_str(), "/a~1b~0c");
        assert_eq!(Pointer::root().key("").as_str(), "/");
    }

    #[test]
    fn only_rfc_6901_texts_are_pointers() {
        for good in ["", "/", "/a/0", "/~0~1", "//"] {
            assert!(Pointer::parse(good).is_ok(), "{good}");
        }
        for bad in ["a", "a/b", "/~", "/~2", "#/a", "/a~"] {
            assert!(Pointer::parse(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn a_built_pointer_finds_its_value(keys in proptest::collection::vec("[a/~01é]{0,4}", 0..4), index in 0usize..3) {
            let mut pointer = Pointer::root();
            for key in &keys {
                pointer = pointer.key(key);
            }
            pointer = pointer.index(index);

            let mut value = serde_json::json!(["x", "y", "z"]);
            for key in keys.iter().rev() {
                value = serde_json::json!({ key.as_str(): value });
            }
            prop_assert_eq!(value.pointer(pointer.as_str()).unwrap(), ["x", "y", "z"][index]);
            prop_assert_eq!(Pointer::parse(pointer.as_str()).unwrap(), pointer);
        }
    }
}
