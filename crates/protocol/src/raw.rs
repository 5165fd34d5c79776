//! JSON that is kept as its text until it is needed. What a request passes on to a function is never converted on the way.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _};
use serde::{Serialize, Serializer};
use serde_json::value::{RawValue, to_raw_value};

use crate::scan::{Open, Scanner, unescape};

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
    /// The first byte tells, since the text is known to be JSON and has no space around it.
    pub(crate) fn of(json: &str) -> Self {
        json.bytes().next().map_or(Self::Null, Self::starting_with)
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

/// Whether a JSON value is `[]`.
pub(crate) fn is_empty_array(json: &str) -> bool {
    let inner = json
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    inner.is_some_and(|inner| inner.trim_ascii().is_empty())
}

/// A JSON object that is kept as its text until it is needed: arguments, context, options, extension data.
///
/// Borrows from the body that it was parsed from, so that a large one is not copied.
#[derive(Clone)]
pub struct RawObject<'a>(Cow<'a, str>);

/// A JSON value that is not an object, where one was needed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected an object, found {found}")]
pub struct NotAnObject {
    found: Kind,
}

impl RawObject<'static> {
    /// Serialises a value; fails unless it becomes a JSON object.
    pub fn from_serialize<T: Serialize + ?Sized>(value: &T) -> Result<Self, serde_json::Error> {
        Self::try_from(to_raw_value(value)?).map_err(serde::ser::Error::custom)
    }

    /// Takes over an object that was written by an [`ObjectWriter`](crate::ObjectWriter).
    pub(crate) fn written(object: String) -> Self {
        Self(Cow::Owned(object))
    }
}

impl<'a> RawObject<'a> {
    /// The object of a text that is known to be one.
    pub(crate) fn of_json(object: &'a str) -> Self {
        debug_assert_eq!(Kind::of(object), Kind::Object);
        Self(Cow::Borrowed(object))
    }

    /// The text, `{…}`.
    pub fn get(&self) -> &str {
        &self.0
    }

    /// The members in their order, each left raw.
    pub fn members(&self) -> Members<'_> {
        Members::new(&self.0)
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
        Self(Cow::Borrowed("{}"))
    }
}

impl<'a> RawObject<'a> {
    /// An object, or the empty array that PHP writes in place of an empty object.
    pub fn or_empty_array(raw: &'a RawValue) -> Result<Self, NotAnObject> {
        match is_empty_array(raw.get()) {
            true => Ok(Self::default()),
            false => Self::try_from(raw),
        }
    }
}

impl<'a> TryFrom<&'a RawValue> for RawObject<'a> {
    type Error = NotAnObject;

    fn try_from(raw: &'a RawValue) -> Result<Self, Self::Error> {
        match Kind::of(raw.get()) {
            Kind::Object => Ok(Self(Cow::Borrowed(raw.get()))),
            found => Err(NotAnObject { found }),
        }
    }
}

impl TryFrom<Box<RawValue>> for RawObject<'static> {
    type Error = NotAnObject;

    fn try_from(raw: Box<RawValue>) -> Result<Self, Self::Error> {
        match Kind::of(raw.get()) {
            Kind::Object => Ok(Self(Cow::Owned(Box::<str>::from(raw).into()))),
            found => Err(NotAnObject { found }),
        }
    }
}

/// The members of a [`RawObject`].
pub struct Members<'a> {
    scanner: Scanner<'a>,
    object: Open,
}

impl<'a> Members<'a> {
    fn new(object: &'a str) -> Self {
        let mut scanner = Scanner::new(object);
        let object = scanner.enter();
        Self { scanner, object }
    }
}

impl<'a> Iterator for Members<'a> {
    /// The key, and the value. A key that is not Unicode is left as it is in the text.
    type Item = (Cow<'a, str>, RawJson<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        // The text is known to be JSON.
        let key = self.scanner.next_key(&mut self.object).ok()??;
        let value = RawJson(self.scanner.value().ok()?);
        Some((unescape(key).unwrap_or(Cow::Borrowed(key)), value))
    }
}

/// The text of a JSON value that is a member of a [`RawObject`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawJson<'a>(&'a str);

impl<'a> RawJson<'a> {
    /// The text, without space around it.
    pub fn get(self) -> &'a str {
        self.0
    }

    /// The value, if it is a string of Unicode.
    pub fn as_str(self) -> Option<Cow<'a, str>> {
        (Kind::of(self.0) == Kind::Text).then(|| unescape(self.0))?
    }

    /// The value, if it is `true` or `false`.
    pub fn as_bool(self) -> Option<bool> {
        match self.0 {
            "true" => Some(true),
            "false" => Some(false),
            _ => None,
        }
    }

    /// The value, if it is an integer of that range that is written without fraction and exponent.
    pub fn as_u64(self) -> Option<u64> {
        self.0.parse().ok()
    }

    /// The members, if it is an object.
    pub fn members(self) -> Option<Members<'a>> {
        (Kind::of(self.0) == Kind::Object).then(|| Members::new(self.0))
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
        let raw: &RawValue = serde_json::from_str(&self.0).map_err(serde::ser::Error::custom)?;
        raw.serialize(serializer)
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
    fn space_around_the_object_is_not_part_of_it() {
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
