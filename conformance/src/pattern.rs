//! What an answer must look like.
//!
//! A pattern is JSON. Objects match when they have at least the members named, arrays when they have
//! exactly the elements, everything else when it is equal; texts that begin with `$` and objects whose only member does
//! are matchers. `conformance/README.md` lists them all.

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
    Kind(Kind),
    /// Version 4, in lower case with hyphens.
    Uuid,
    Timestamp,
    Fence,
    Regex(Regex),
    /// After this one in the order of texts, which for fences and timestamps is their own order.
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

/// A type of JSON values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    String,
    Integer,
    Number,
    Boolean,
    Object,
    Array,
}

/// Why a JSON value is no pattern.
#[derive(Debug, thiserror::Error)]
pub enum PatternError {
    /// A text begins with `$` and means nothing.
    #[error("there is no matcher `{0}`; a text that begins with `$` is written `$$`")]
    UnknownMatcher(String),
    /// A matcher is given something it cannot use.
    #[error("`{matcher}` takes {takes}")]
    WrongOperand {
        /// The matcher.
        matcher: &'static str,
        /// What it wants.
        takes: &'static str,
    },
    /// The regular expression is none.
    #[error(transparent)]
    Regex(#[from] regex_lite::Error),
    /// A `${…}` in it means nothing.
    #[error(transparent)]
    Template(#[from] crate::template::TemplateError),
}

impl Pattern {
    /// Reads a pattern.
    pub(crate) fn parse(value: &Value) -> Result<Self, PatternError> {
        reading::pattern(value)
    }

    /// Everything in which the value differs from the pattern.
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
