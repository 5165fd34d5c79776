//! JSON that nobody has looked into yet.

use std::borrow::Cow;
use std::fmt;
use std::sync::LazyLock;

use serde::de::{Deserialize, Deserializer, Error as _};
use serde::{Serialize, Serializer};
use serde_json::value::{RawValue, to_raw_value};

/// What a JSON value is, with the article that a message needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Object,
    Array,
    Text,
    Number,
    Boolean,
    Null,
}

impl Kind {
    /// The first byte tells, since a raw value is known to be JSON and has no space around it.
    pub(crate) fn of(raw: &RawValue) -> Self {
        Self::starting_with(raw.get().as_bytes()[0])
    }

    pub(crate) fn starting_with(first: u8) -> Self {
        match first {
            b'{' => Self::Object,
            b'[' => Self::Array,
            b'"' => Self::Text,
            b't' | b'f' => Self::Boolean,
            b'n' => Self::Null,
            _ => Self::Number,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Object => "an object",
            Self::Array => "an array",
            Self::Text => "a string",
            Self::Number => "a number",
            Self::Boolean => "a boolean",
            Self::Null => "null",
        })
    }
}

/// A JSON object that is kept as its text until someone needs it: arguments, context, options, extension data.
///
/// Borrows from the body that it was parsed from, so that a large one is not copied.
#[derive(Clone)]
pub struct RawObject<'a>(Cow<'a, RawValue>);

/// A JSON value of another kind stood where an object was needed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected an object, found {found}")]
pub struct NotAnObject {
    found: Kind,
}

impl RawObject<'static> {
    /// Writes any value that becomes a JSON object; fails for one that becomes something else.
    pub fn from_serialize<T: Serialize + ?Sized>(value: &T) -> Result<Self, serde_json::Error> {
        let raw = to_raw_value(value)?;
        Self::try_from(raw).map_err(serde::ser::Error::custom)
    }
}

impl<'a> RawObject<'a> {
    /// The text, `{…}`.
    pub fn get(&self) -> &str {
        self.0.get()
    }

    /// Reads the object into a type that may borrow from it.
    pub fn deserialize<'s, T: Deserialize<'s>>(&'s self) -> Result<T, serde_json::Error> {
        serde_json::from_str(self.get())
    }

    /// Copies what is borrowed, so that it may outlive the body it came from.
    pub fn into_owned(self) -> RawObject<'static> {
        RawObject(Cow::Owned(self.0.into_owned()))
    }
}

impl Default for RawObject<'_> {
    /// `{}`, without an allocation.
    fn default() -> Self {
        static EMPTY: LazyLock<&'static RawValue> =
            LazyLock::new(|| serde_json::from_str("{}").expect("`{}` is JSON"));
        Self(Cow::Borrowed(*EMPTY))
    }
}

impl<'a> TryFrom<&'a RawValue> for RawObject<'a> {
    type Error = NotAnObject;

    fn try_from(raw: &'a RawValue) -> Result<Self, Self::Error> {
        match Kind::of(raw) {
            Kind::Object => Ok(Self(Cow::Borrowed(raw))),
            found => Err(NotAnObject { found }),
        }
    }
}

impl TryFrom<Box<RawValue>> for RawObject<'static> {
    type Error = NotAnObject;

    fn try_from(raw: Box<RawValue>) -> Result<Self, Self::Error> {
        match Kind::of(&raw) {
            Kind::Object => Ok(Self(Cow::Owned(raw))),
            found => Err(NotAnObject { found }),
        }
    }
}

/// By their texts: two spellings of one object are not equal.
impl PartialEq for RawObject<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.get() == other.get()
    }
}

impl fmt::Debug for RawObject<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RawObject").field(&self.get()).finish()
    }
}

impl Serialize for RawObject<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for RawObject<'static> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        Self::try_from(raw).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_objects_become_raw_objects() {
        let object = RawObject::from_serialize(&json!({"a": [1]})).unwrap();
        assert_eq!(object.get(), r#"{"a":[1]}"#);
        for other in [
            json!([{}]),
            json!("{}"),
            json!(1),
            json!(-1),
            json!(true),
            json!(false),
            json!(null),
        ] {
            assert!(RawObject::from_serialize(&other).is_err(), "{other}");
        }
        let error = RawObject::from_serialize(&[1]).unwrap_err();
        assert_eq!(error.to_string(), "expected an object, found an array");
    }

    #[test]
    fn space_around_the_object_is_no_part_of_it() {
        let object: RawObject<'static> = serde_json::from_str(" { \"a\" : 1 } ").unwrap();
        assert_eq!(object.get(), "{ \"a\" : 1 }");
    }

    #[test]
    fn values_may_borrow_from_the_text() {
        let object = RawObject::from_serialize(&json!({"key": "user:123"})).unwrap();
        let read: std::collections::BTreeMap<&str, &str> = object.deserialize().unwrap();
        assert_eq!(read["key"], "user:123");
    }

    #[test]
    fn the_default_is_an_empty_object() {
        assert_eq!(RawObject::default().get(), "{}");
        assert!(matches!(RawObject::default().0, Cow::Borrowed(_)));
    }
}
