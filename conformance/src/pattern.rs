//! What an answer must look like.
//!
//! A pattern is JSON. Objects match when they have at least the members named, arrays when they have exactly these
//! elements, all other values when they are equal. A string that begins with `$`, or an object whose only member does,
//! is a matcher; `conformance/README.md` lists them.

mod matching;
mod reading;
#[cfg(test)]
mod tests;

use regex_lite::Regex;
use serde_json::{Map, Value};

use crate::mismatch::Mismatch;
use crate::template::{Template, Variables};

/// A pattern, read once when its vector is loaded.
#[derive(Debug, Clone)]
pub(crate) enum Pattern {
    Any,
    Absent,
    Type(JsonType),
    /// Version 4, in lower case with hyphens.
    Uuid,
    Timestamp,
    Fence,
    Regex(Regex),
    /// After this string in lexicographic order, which is also the order of fences and of timestamps.
    Greater(Template),
    Less(Template),
    Text(Template),
    /// Null, a boolean or a number.
    Literal(Value),
    Range(f64, f64),
    After {
        earlier: Template,
        at_least_ms: i64,
        at_most_ms: i64,
    },
    Object {
        members: Vec<(String, Pattern)>,
        others_allowed: bool,
    },
    Array(Vec<Pattern>),
    /// The same elements in any order.
    Unordered(Vec<Pattern>),
    /// Has these elements among others.
    Contains(Vec<Pattern>),
    Each(Box<Pattern>),
    Not(Box<Pattern>),
    OneOf(Vec<Pattern>),
    AllOf(Vec<Pattern>),
}

/// A type of JSON values; an integer is a number, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JsonType {
    String,
    Integer,
    Number,
    Boolean,
    Object,
    Array,
}

/// Why a JSON value is not a pattern.
#[derive(Debug, thiserror::Error)]
pub enum PatternError {
    /// A string begins with `$` and is not a known matcher.
    #[error("there is no matcher `{0}`; write a string that begins with `$` as `$$…`")]
    UnknownMatcher(String),
    /// A matcher has an operand of the wrong type.
    #[error("`{matcher}` takes {takes}")]
    WrongOperand {
        /// The matcher.
        matcher: &'static str,
        /// What it accepts.
        takes: &'static str,
    },
    /// The regular expression is invalid.
    #[error(transparent)]
    Regex(#[from] regex_lite::Error),
    /// It contains an invalid `${…}`.
    #[error(transparent)]
    Template(#[from] crate::template::TemplateError),
}

impl Pattern {
    /// Reads a pattern.
    pub(crate) fn parse(value: &Value) -> Result<Self, PatternError> {
        reading::pattern(value)
    }

    /// All differences between the value and the pattern.
    pub(crate) fn mismatches(&self, found: Option<&Value>, variables: &Variables) -> Vec<Mismatch> {
        matching::mismatches(self, found, variables)
    }

    fn object(members: &Map<String, Value>, others_allowed: bool) -> Result<Self, PatternError> {
        let members = members
            .iter()
            .map(|(name, member)| Ok((name.clone(), Self::parse(member)?)))
            .collect::<Result<_, PatternError>>()?;
        Ok(Self::Object {
            members,
            others_allowed,
        })
    }
}
