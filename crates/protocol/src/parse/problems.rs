//! All that is wrong with a request, gathered while reading goes on.

use std::fmt;

use super::path::Path;
use crate::{ErrorCode, ErrorObject, Errors};

/// The most errors an answer lists: a body full of mistakes must not become an answer many times its size.
const MAX_LISTED: usize = 64;

/// The most characters of a mistaken text that a message repeats, for the same reason.
const MAX_EXCERPT: usize = 48;

#[derive(Debug, Default)]
pub(super) struct Problems {
    listed: Vec<ErrorObject>,
    unlisted: usize,
}

impl Problems {
    /// Keeps a problem, or only counts it where there are enough; then it is not even worded.
    pub(super) fn note(&mut self, problem: impl FnOnce() -> ErrorObject) {
        if self.listed.len() < MAX_LISTED {
            self.listed.push(problem());
        } else {
            self.unlisted += 1;
        }
    }

    pub(super) fn invalid(&mut self, path: Path<'_>, message: impl FnOnce() -> String) {
        self.note(|| ErrorObject::new(ErrorCode::InvalidRequest, message()).at(path.to_pointer()));
    }

    /// The errors to answer, if there are any; the last one tells how many were left out.
    pub(super) fn into_errors(mut self) -> Option<Errors> {
        if self.unlisted > 0 {
            self.listed.pop();
            let unlisted = self.unlisted + 1;
            let message = format!("{unlisted} more problems are not listed");
            self.listed.push(
                ErrorObject::new(ErrorCode::InvalidRequest, message)
                    .with_detail("unlisted", unlisted),
            );
        }
        Errors::try_from(self.listed).ok()
    }
}

/// The beginning of a text, quoted.
pub(super) struct Excerpt<'a>(pub(super) &'a str);

impl fmt::Display for Excerpt<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.char_indices().nth(MAX_EXCERPT) {
            None => write!(f, "{:?}", self.0),
            Some((end, _)) => write!(f, "{:?}…", &self.0[..end]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(count: usize) -> Vec<ErrorObject> {
        let mut problems = Problems::default();
        for index in 0..count {
            problems.invalid(Path::Root.element(index), || "bad".into());
        }
        problems
            .into_errors()
            .map_or(Vec::new(), |errors| errors.into_iter().collect())
    }

    #[test]
    fn no_problems_are_no_errors() {
        assert!(with(0).is_empty());
    }

    #[test]
    fn up_to_64_problems_are_all_listed() {
        let errors = with(64);
        assert_eq!(errors.len(), 64);
        assert!(errors.iter().all(|error| error.source.is_some()));
    }

    #[test]
    fn of_more_than_64_the_last_says_how_many_are_not_listed() {
        let errors = with(100);
        assert_eq!(errors.len(), 64);
        assert_eq!(errors[63].message, "37 more problems are not listed");
        assert_eq!(errors[63].details.as_ref().unwrap()["unlisted"], 37);
    }

    #[test]
    fn a_long_text_is_repeated_only_in_part() {
        assert_eq!(Excerpt("a\"b").to_string(), r#""a\"b""#);
        let long = Excerpt(&"é".repeat(1000)).to_string();
        assert_eq!(long, format!("\"{}\"…", "é".repeat(48)));
    }
}
