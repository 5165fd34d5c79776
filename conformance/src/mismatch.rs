//! One difference between an answer and what was expected, and how values are printed in reports.

use std::fmt;

use serde::Serialize;
use serde_json::Value;

/// One difference between an answer and what was expected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Mismatch {
    /// Where in the answer: a JSON pointer into its body, or a name such as `status`.
    pub at: String,
    /// What was expected there.
    pub expected: String,
    /// What was found there.
    pub found: String,
}

impl Mismatch {
    pub(crate) fn new(
        at: impl Into<String>,
        expected: impl Into<String>,
        found: impl Into<String>,
    ) -> Self {
        Self {
            at: at.into(),
            expected: expected.into(),
            found: found.into(),
        }
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            at,
            expected,
            found,
        } = self;
        let at = if at.is_empty() { "(whole body)" } else { at };
        write!(f, "{at}: expected {expected}, found {found}")
    }
}

/// The most characters of a value that a report shows.
const MAX_SHOWN: usize = 2000;

/// A value for a report.
pub(crate) fn shown(value: Option<&Value>) -> String {
    match value {
        None => "nothing".to_owned(),
        Some(value) => shortened(&value.to_string()),
    }
}

/// The beginning of a text that may be long.
pub(crate) fn shortened(text: &str) -> String {
    match text.char_indices().nth(MAX_SHOWN) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}… ({} bytes)", &text[..end], text.len()),
    }
}
