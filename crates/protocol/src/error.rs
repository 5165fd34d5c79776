//! Errors as an answer lists them: a code for programs, a message for people, and where in the request the problem is.

use serde::de::{Deserializer, Error as _};
use serde::ser::{SerializeMap, Serializer};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{ErrorCode, Pointer};

/// One thing that went wrong.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ErrorObject {
    /// For programs.
    pub code: ErrorCode,
    /// For people.
    pub message: String,
    /// Where in the request the problem is, if it has a location.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
    /// More about the problem, for programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<Map<String, Value>>,
}

impl ErrorObject {
    /// An error without source and details.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            source: None,
            details: None,
        }
    }

    /// Points at a member of the request.
    #[must_use]
    pub fn at(mut self, pointer: Pointer) -> Self {
        self.source = Some(Source::Pointer(pointer));
        self
    }

    /// Sets the byte of the body, counted from 0.
    #[must_use]
    pub fn at_position(mut self, position: usize) -> Self {
        self.source = Some(Source::Position(position));
        self
    }

    /// Adds one detail.
    #[must_use]
    pub fn with_detail(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.details
            .get_or_insert_default()
            .insert(name.into(), value.into());
        self
    }
}

/// What in the request an error is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A member or an element. One that is missing is named by where it should be.
    Pointer(Pointer),
    /// A byte of the body, counted from 0; the body's length where it ends too early.
    Position(usize),
}

impl Serialize for Source {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut source = serializer.serialize_map(Some(1))?;
        match self {
            Self::Pointer(pointer) => source.serialize_entry("pointer", pointer)?,
            Self::Position(position) => source.serialize_entry("position", position)?,
        }
        source.end()
    }
}

impl<'de> Deserialize<'de> for Source {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Wire {
            pointer: Option<Pointer>,
            position: Option<usize>,
        }

        match Wire::deserialize(deserializer)? {
            Wire {
                pointer: Some(pointer),
                position: None,
            } => Ok(Self::Pointer(pointer)),
            Wire {
                pointer: None,
                position: Some(position),
            } => Ok(Self::Position(position)),
            _ => Err(D::Error::custom(
                "an error source must have either `pointer` or `position`",
            )),
        }
    }
}

/// The errors of a failed request: one or more.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Vec<ErrorObject>")]
pub struct Errors(Vec<ErrorObject>);

/// An empty list was given as the errors of a failed request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`errors` must hold at least one error")]
pub struct NoErrors;

impl Errors {
    /// Adds one more.
    pub fn push(&mut self, error: ErrorObject) {
        self.0.push(error);
    }

    /// All of them; at least one.
    pub fn as_slice(&self) -> &[ErrorObject] {
        &self.0
    }

    /// The errors in their order.
    pub fn iter(&self) -> std::slice::Iter<'_, ErrorObject> {
        self.0.iter()
    }

    /// The HTTP status of an answer with these errors: that of a single one, and 400 for several, since no other
    /// status would be true of all.
    pub fn http_status(&self) -> u16 {
        match self.0.as_slice() {
            [only] => only.code.http_status(),
            _ => 400,
        }
    }
}

impl From<ErrorObject> for Errors {
    fn from(error: ErrorObject) -> Self {
        Self(vec![error])
    }
}

impl TryFrom<Vec<ErrorObject>> for Errors {
    type Error = NoErrors;

    fn try_from(errors: Vec<ErrorObject>) -> Result<Self, Self::Error> {
        if errors.is_empty() {
            Err(NoErrors)
        } else {
            Ok(Self(errors))
        }
    }
}

impl IntoIterator for Errors {
    type Item = ErrorObject;
    type IntoIter = std::vec::IntoIter<ErrorObject>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'a> IntoIterator for &'a Errors {
    type Item = &'a ErrorObject;
    type IntoIter = std::slice::Iter<'a, ErrorObject>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_error_writes_only_the_parts_that_it_has() {
        let bare = ErrorObject::new(ErrorCode::Forbidden, "Not you");
        assert_eq!(
            serde_json::to_string(&bare).unwrap(),
            r#"{"code":"FORBIDDEN","message":"Not you"}"#
        );
        let full = bare
            .at(Pointer::root().key("context"))
            .with_detail("tries", 3)
            .with_detail("allowed", json!(["a"]));
        assert_eq!(
            serde_json::to_value(&full).unwrap(),
            json!({"code": "FORBIDDEN", "message": "Not you", "source": {"pointer": "/context"},
                   "details": {"tries": 3, "allowed": ["a"]}})
        );
    }

    #[test]
    fn a_source_has_a_pointer_or_a_position_and_not_both() {
        let read = |text| serde_json::from_str::<Source>(text);
        assert_eq!(
            read(r#"{"pointer": "/call"}"#).unwrap(),
            Source::Pointer(Pointer::root().key("call"))
        );
        assert_eq!(
            read(r#"{"position": 52, "line": 2}"#).unwrap(),
            Source::Position(52)
        );
        for bad in [
            "{}",
            r#"{"pointer": "/call", "position": 1}"#,
            r#"{"pointer": "call"}"#,
            r#"{"position": -1}"#,
            r#"{"position": "1"}"#,
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn errors_are_never_none() {
        assert_eq!(Errors::try_from(Vec::new()), Err(NoErrors));
        assert!(serde_json::from_str::<Errors>("[]").is_err());
    }

    #[test]
    fn status_is_that_of_the_single_error_and_400_of_several() {
        let mut errors = Errors::from(ErrorObject::new(ErrorCode::LockTimeout, "Too late"));
        assert_eq!(errors.http_status(), 423);
        errors.push(ErrorObject::new(ErrorCode::LockTimeout, "Too late again"));
        assert_eq!(errors.http_status(), 400);
    }
}
